//! Tests of the proxy in a cluster: real programs with a real, bare API server.
//!
//! They need the programs of `cargo xtask kube`, or `KUBEBUILDER_ASSETS`. Without them every test is
//! *skipped*, or fails under `REQUIRE_PRIVILEGED=1`. Several run at once, each with its own API
//! server and ports.

mod chart;
mod check;
mod claims;
mod cluster;
mod connect;
mod crowd;
mod culvert;
mod directory;
mod events;
mod forwards;
mod hosts;
mod hub;
mod identity;
mod leases;
mod loopback;
mod migrate;
mod names;
mod placement;
mod ports;
mod proxy;
mod revocation;
mod service;
mod ssh;
mod uninstall;
mod view;
