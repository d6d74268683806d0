//! The subcommands of `culvert-proxy` by which `culvert` reaches its host: `control-stdio` and
//! `check-host`. They depend on nothing of the proxy that runs, but on its facts of the cluster.
#![forbid(unsafe_code)]

pub mod check;
pub mod control_client;
pub mod control_stdio;
