//! What the cluster says of another proxy: its address is a hint, never an identity.

use culvert_api::HostPort;

use crate::instance::Instance;

/// Another proxy of the cluster, as its Lease describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListedPeer {
    /// Which run of a proxy it is.
    pub(crate) instance: Instance,
    /// Where it says that other proxies may dial it.
    pub(crate) address: HostPort,
    /// The tunnels that it held when it last renewed its Lease.
    pub(crate) tunnels: u32,
}
