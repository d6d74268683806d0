//! The project's automation: one module per task. Tasks and tests share [`culvert_lab`].
#![forbid(unsafe_code)]

pub mod bench;
pub mod book;
pub mod build;
pub mod build_ebpf;
mod cargo_tool;
pub mod cluster;
mod crates;
pub mod demo;
pub mod deps;
pub mod dist;
pub mod e2e;
pub mod enter;
pub mod flags;
pub mod fuzz;
pub mod image;
pub mod kube;
mod licences;
pub mod manifests;
pub mod pictures;
pub mod processor;
pub mod setup;
pub mod structure;
mod tar;
pub mod test;
