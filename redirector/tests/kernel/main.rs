//! The redirector on a real kernel: real hooks, real nft, real routes, the real binary, in namespaces and a cgroup of their
//! own. Needs root; each test says that it was skipped without it, and fails under `REQUIRE_PRIVILEGED=1`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clients;
mod coexistence;
mod dns;
mod fake_directory;
mod foreign;
mod lifecycle;
mod nftables;
mod proxy;
mod redirector;
mod sockets;
mod steering;
mod world;
