//! Revocations that proxies report to each other, whether or not there is a cluster. A proxy that was
//! away admits no new node until another proxy has reported what was revoked meanwhile.

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::NodeUid;
use tokio::sync::watch;

use super::ledger::LATEST_REVOCATION;
use super::{Revocations, Trust, TrustError};

/// A node's last revocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revoked {
    /// The node.
    pub node: NodeName,
    /// In a cluster: of its Node.
    pub uid: Option<NodeUid>,
    /// When, by the clock of the proxy where it was made.
    pub at: UnixTime,
    /// Outside of a cluster: certificates that an operator issued are void if they end by then.
    pub until: UnixTime,
}

/// Whether this proxy waits for the revocations of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerSync {
    /// There is no other proxy to wait for, or one has reported its revocations.
    Done,
    Pending,
}

impl Trust {
    /// From now on no new node is admitted until [`Self::record_peer_sync`].
    pub fn require_peer_sync(&self) {
        self.0.peer_sync.send_replace(PeerSync::Pending);
    }

    /// Records that another proxy has reported all its revocations.
    pub fn record_peer_sync(&self) {
        self.0.peer_sync.send_replace(PeerSync::Done);
    }

    /// Waits until another proxy has reported its revocations, if there is any to wait for.
    pub async fn wait_for_peer_sync(&self) {
        let mut sync = self.0.peer_sync.subscribe();
        // The sender is a part of this trust.
        drop(sync.wait_for(|sync| *sync == PeerSync::Done).await);
    }

    /// Sees a change whenever there is a new revocation, from here or from elsewhere.
    pub fn revocation_changes(&self) -> watch::Receiver<()> {
        self.0.revoked_tx.subscribe()
    }

    /// Every revocation that this proxy knows.
    pub fn all_revoked(&self) -> Vec<Revoked> {
        if let Some(shares) = &self.0.cluster {
            let known = shares.known.borrow();
            let all = known.all().map(|(uid, node, at)| Revoked {
                node: node.clone(),
                uid: Some(uid.clone()),
                at,
                until: UnixTime::default(),
            });
            return all.collect();
        }
        let ledger = self.ledger();
        let all = ledger.revocations().map(|(node, at, until)| Revoked {
            node: node.clone(),
            uid: None,
            at,
            until,
        });
        all.collect()
    }

    /// Applies revocations of another proxy: at once, and if that cannot be written, until this
    /// process ends. Those of another kind of installation, with a cluster or without, are ignored.
    pub fn apply_revocations(&self, reported: &[Revoked]) -> Result<(), TrustError> {
        if self.0.cluster.is_some() {
            self.merge_revocations(&self.of_present_nodes(reported));
            return self.write_revocations();
        }
        let now = UnixTime::now();
        let admission = self.admission();
        let mut ledger = self.ledger_mut();
        let mut changed = false;
        for revoked in reported {
            if revoked.uid.is_none() {
                changed |= ledger.merge(&revoked.node, (revoked.at, revoked.until), now);
            }
        }
        drop(ledger);
        drop(admission);
        if !changed {
            return Ok(());
        }
        self.0.revoked_tx.send_replace(());
        self.write_ledger()
    }

    /// The revocations of the cluster's present Nodes. The others come with the ConfigMap, which no
    /// proxy fills with what does not exist.
    fn of_present_nodes(&self, reported: &[Revoked]) -> Revocations {
        let mut found = Revocations::default();
        for revoked in reported {
            let Some(uid) = &revoked.uid else {
                continue;
            };
            let is_present = self.0.directory.uid(&revoked.node).as_ref() == Some(uid);
            if is_present && revoked.at <= LATEST_REVOCATION {
                let one = Revocations::one(revoked.node.clone(), uid.clone(), revoked.at);
                found = found.merged(&one);
            }
        }
        found
    }
}
