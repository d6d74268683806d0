//! What the cluster says of another proxy: its address is a hint, never an identity.

use culvert_api::HostPort;

use crate::instance::Instance;

/// Another proxy of the cluster, as its Lease describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedPeer {
    /// Which run of a proxy it is.
    pub instance: Instance,
    /// Where it says that other proxies may dial it.
    pub address: HostPort,
    /// The tunnels that it held when it last renewed its Lease.
    pub tunnels: u32,
}
