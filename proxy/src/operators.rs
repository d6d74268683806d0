//! What people ask: the command line, the control socket, `explain`, `ping`, `check` and `/debug`;
//! and the spans that they collect.

pub(crate) mod check;
pub(crate) mod cli;
pub(crate) mod control;
pub(crate) mod debug;
pub(crate) mod directory_socket;
pub(crate) mod explain;
pub(crate) mod migrate;
pub(crate) mod ping;
pub(crate) mod scraped;
pub(crate) mod spans;
pub(crate) mod stream_list;
