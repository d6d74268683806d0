//! The parts of the kernel that steer connections: connect hooks and nftables; the routes of VIPs,
//! which keep unsteered connections to VIPs on this host; and the rules of routing, which are only
//! read.

pub(crate) mod bpf;
pub(crate) mod nft;
pub(crate) mod policy_rules;
pub(crate) mod recent;
pub(crate) mod vip_routes;
