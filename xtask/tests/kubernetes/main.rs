//! The proxy in a cluster: real programs against a real, bare API server.
//!
//! Needs `KUBEBUILDER_ASSETS` (etcd, kube-apiserver, kubectl); without it every test is *skipped*,
//! or fails under `REQUIRE_PRIVILEGED=1`. Several run at once, each with an
//! API server and ports of its own.

mod check;
mod claims;
mod cluster;
mod crowd;
mod directory;
mod events;
mod hosts;
mod identity;
mod loopback;
mod ports;
mod proxy;
mod revocation;
mod service;
