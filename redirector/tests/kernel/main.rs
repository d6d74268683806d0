//! The redirector on a real kernel: real hooks, real nft, real routes, the real binary, in
//! namespaces and a cgroup of their own. Needs root; each test says that it was skipped without it,
//! and fails under `REQUIRE_PRIVILEGED=1`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod addresses;
mod cilium;
#[allow(unsafe_code, reason = "connects with addresses that std does not make")]
mod clients;
mod coexistence;
mod dns;
mod fake_directory;
#[allow(unsafe_code, reason = "bpf(2), for programs of others")]
mod foreign;
mod guard;
mod hooks;
mod lifecycle;
mod nftables;
mod own_networks;
mod proxy;
mod redirector;
mod reserved_ports;
mod reuse;
mod saved_directory;
mod sockets;
mod source_ports;
mod steering;
mod strangers;
mod table;
mod world;
