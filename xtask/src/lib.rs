//! All automation of the project: one module per task, and [`lab`], which makes the hosts that the
//! demo and the whole-chain tests run on.
#![forbid(unsafe_code)]

pub mod bench;
pub mod build_ebpf;
pub mod demo;
pub mod e2e;
pub mod fuzz;
pub mod image;
pub mod interrupt;
pub mod kube;
pub mod lab;
pub mod manifests;
pub mod probe;
pub mod progress;
pub mod self_signed;
pub mod setup;
pub mod test;
pub mod wait;
pub mod workspace;
