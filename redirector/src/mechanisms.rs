//! What steers connections, one room for each part of the kernel: connect hooks, nftables, and the
//! routes of VIPs, which steer nothing but keep VIPs from being reached for real.

pub(crate) mod bpf;
pub(crate) mod nft;
pub(crate) mod vip_routes;
