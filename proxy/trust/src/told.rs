//! Revocations as proxies tell them to each other, whether or not there is a cluster. A proxy that
//! was away admits nobody new until another proxy has told it what was revoked meanwhile.

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

/// Whether another proxy has told its revocations since the start of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeersNews {
    /// There is no other proxy to wait for, or one has.
    Known,
    Awaited,
}

impl Trust {
    /// From now on nobody new is admitted until [`Self::peer_has_told`].
    pub fn await_peers(&self) {
        self.0.peers_news.send_replace(PeersNews::Awaited);
    }

    /// Notes that another proxy has told all that it knows.
    pub fn peer_has_told(&self) {
        self.0.peers_news.send_replace(PeersNews::Known);
    }

    /// Waits until another proxy has told its revocations, if there is any to wait for.
    pub async fn peers_have_told(&self) {
        let mut news = self.0.peers_news.subscribe();
        // The sender is a part of this trust.
        drop(news.wait_for(|news| *news == PeersNews::Known).await);
    }

    /// Sees a change whenever there is a new revocation, from here or from elsewhere.
    pub fn revocation_news(&self) -> watch::Receiver<()> {
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

    /// Takes revocations of another proxy: at once, and if that cannot be written, until this
    /// process ends. Those of another kind of installation, with a cluster or without, are none.
    pub fn take_revoked(&self, told: &[Revoked]) -> Result<(), TrustError> {
        if self.0.cluster.is_some() {
            self.merge_revocations(&self.of_present_nodes(told));
            return self.write_revocations();
        }
        let now = UnixTime::now();
        let admission = self.admission();
        let mut ledger = self.ledger_mut();
        let mut news = false;
        for revoked in told {
            if revoked.uid.is_none() {
                news |= ledger.merge(&revoked.node, (revoked.at, revoked.until), now);
            }
        }
        drop(ledger);
        drop(admission);
        if !news {
            return Ok(());
        }
        self.0.revoked_tx.send_replace(());
        self.write_noted()
    }

    /// The revocations of the cluster's present Nodes. The others come with the ConfigMap, which no
    /// proxy fills with what does not exist.
    fn of_present_nodes(&self, told: &[Revoked]) -> Revocations {
        let mut found = Revocations::default();
        for revoked in told {
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
