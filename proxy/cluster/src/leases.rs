//! How the proxies of a cluster find each other: each keeps a Lease (coordination.k8s.io/v1) in
//! Culvert's namespace and follows those of the others.
//!
//! A Lease is a hint, never an identity. A user who may write Leases in the namespace can make this
//! proxy dial an address, and no more: what answers there has to show the certificate of a proxy.
//! What a Lease says is checked, and only so many are used.

mod follow;
mod own;
mod record;
mod seen;
mod watch_clock;

use std::collections::BTreeSet;
use std::time::Duration;

use culvert_api::HostPort;
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::listed_peer::ListedPeer;
use culvert_proxy_core::metrics::Metrics;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::sync::watch;

use super::Cluster;
use follow::Follower;
use own::HeldLease;
pub use seen::MAX_LISTED;

/// The time between renewals, as of kubelets' Leases.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The time after which a Lease that is not renewed ends: three renewals may fail.
const LASTS: Duration = Duration::from_secs(40);

/// What the Lease of this proxy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnLease {
    /// Which run of this proxy it is.
    pub instance: Instance,
    /// Where other proxies dial.
    pub address: HostPort,
}

impl Cluster {
    /// Keeps the Lease of this proxy, if it has one, and `listed_tx` equal to the other proxies
    /// whose Leases are alive. While the API server does not answer, those that are known stay.
    ///
    /// At `end` it deletes the Lease, unless another run of the proxy has it by then: no further
    /// proxy is to dial this one.
    pub(crate) async fn follow_leases(
        self,
        own: Option<OwnLease>,
        tunnels: impl Fn() -> u32 + Send + Sync,
        listed_tx: watch::Sender<BTreeSet<ListedPeer>>,
        metrics: Metrics,
        end: impl Future<Output = ()> + Send,
    ) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let follower = Follower::new(leases.clone(), own.as_ref(), listed_tx, metrics);
        let Some(own) = own else {
            tokio::select! {
                never = follower.follow() => match never {},
                () = end => return Ok(()),
            }
        };
        let mut held = HeldLease::new(leases, own);
        tokio::select! {
            never = follower.follow() => match never {},
            never = held.renew_forever(&tunnels) => match never {},
            () = end => {}
        }
        held.release().await;
        Ok(())
    }
}
