//! The parts of the kernel that steer connections: connect hooks and nftables; and the routes of
//! VIPs, which keep unsteered connections to VIPs on this host.

pub(crate) mod bpf;
pub(crate) mod nft;
pub(crate) mod vip_routes;
