//! The subcommands of `culvert-proxy` that ask: `check`, and the command lines of operators, which
//! speak to the control socket of the running proxy. They depend on nothing of the proxy that runs,
//! but on its facts of the cluster.
#![forbid(unsafe_code)]

pub mod check;
pub mod cli;
pub mod control_stdio;
