//! Revokes nodes' certificates, and shares revocations with the cluster's other proxies.

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use tokio::sync::watch;

use super::{REVOCATIONS, Revocations, Shares, Trust, TrustError};

impl Trust {
    /// Whether a revocation at one proxy of a cluster reaches all of them. Certificates that an
    /// operator issued are revoked at one proxy only.
    pub fn revokes_everywhere(&self) -> bool {
        self.0.cluster.is_some() && self.material().authority().is_some()
    }

    /// Revokes all present certificates of the node: at once, and if that cannot be written, until
    /// this process ends. In a cluster these are the certificates of the present Node: other Nodes
    /// have none to revoke.
    pub fn revoke(&self, node: &NodeName) -> Result<(), TrustError> {
        let now = UnixTime::now();
        let shared = self.revoke_shared(node, now);
        self.revoke_in_ledger(node, now);
        shared.and(self.write_ledger())
    }

    fn revoke_in_ledger(&self, node: &NodeName, now: UnixTime) {
        let mut ledger = self.ledger_mut();
        ledger.set_served(self.served());
        ledger.revoke(node, now + self.0.config.certificate_lifetime, now);
        drop(ledger);
        self.0.revoked_tx.send_replace(());
    }

    fn revoke_shared(&self, node: &NodeName, now: UnixTime) -> Result<(), TrustError> {
        let Some(shares) = &self.0.cluster else {
            return Ok(());
        };
        let Some(uid) = self.0.directory.uid(node) else {
            return Ok(());
        };
        shares.known.send_modify(|known| known.add(node, &uid, now));
        self.write_shared(shares)
    }

    fn write_shared(&self, shares: &Shares) -> Result<(), TrustError> {
        let mut written = shares.written.lock();
        let known = shares.known.borrow().clone();
        if *written != known {
            self.0.config.state.write(REVOCATIONS, &known)?;
            *written = known;
        }
        Ok(())
    }

    /// Revokes the certificates of a node that is no longer in the directory: at once, and a moment
    /// later on disk, together with others. In a cluster they are void by themselves, unless an
    /// operator issued them.
    pub fn departed(&self, node: &NodeName) {
        if self.revokes_everywhere() {
            return;
        }
        self.revoke_in_ledger(node, UnixTime::now());
    }

    /// The same for nodes that were removed while this proxy was not running.
    pub fn departed_meanwhile(&self) {
        let mut departed = Vec::new();
        for node in self.ledger().holders() {
            if !self.0.directory.contains(node) {
                departed.push(node.clone());
            }
        }
        for node in &departed {
            self.departed(node);
        }
    }

    /// The revocations that this proxy knows, in a cluster. The receiver sees new ones.
    pub fn revocations(&self) -> Option<watch::Receiver<Revocations>> {
        self.0
            .cluster
            .as_ref()
            .map(|shares| shares.known.subscribe())
    }

    /// Merges the cluster's revocations into what this proxy knows. Returns what the cluster should
    /// have.
    pub fn merge_revocations(&self, found: &Revocations) -> Revocations {
        let Some(shares) = &self.0.cluster else {
            return found.clone();
        };
        let directory = &self.0.directory;
        let mut news = false;
        let admission = self.admission();
        shares.known.send_if_modified(|known| {
            let all = known.clone().merged(found).pruned(
                |node, uid| !directory.is_live() || directory.uid(node).as_ref() == Some(uid),
                UnixTime::now(),
            );
            news = *known != all;
            *known = all;
            news
        });
        drop(admission);
        if news {
            self.0.revoked_tx.send_replace(());
        }
        shares.known.borrow().clone()
    }

    /// Writes the cluster's revocations that this proxy knows and has not on disk yet.
    pub fn write_revocations(&self) -> Result<(), TrustError> {
        match &self.0.cluster {
            Some(shares) => self.write_shared(shares),
            None => Ok(()),
        }
    }

    /// Notes that the cluster has these revocations now. An agent with none of them may be
    /// admitted.
    pub fn revocations_agreed(&self, agreed: Revocations) {
        if let Some(shares) = &self.0.cluster {
            shares.agreed.send_replace(Some(agreed));
        }
    }

    /// Waits until the cluster has all revocations that this proxy knows, so that every other proxy
    /// learns of them. Returns at once outside a cluster.
    pub async fn revocations_shared(&self) {
        let Some(shares) = &self.0.cluster else {
            return;
        };
        let known = shares.known.borrow().clone();
        let mut agreed = shares.agreed.subscribe();
        let all_know = agreed.wait_for(|agreed| match agreed {
            Some(agreed) => agreed.clone().merged(&known) == *agreed,
            None => false,
        });
        // The sender is a part of this trust.
        drop(all_know.await);
    }
}
