//! What people and the redirector ask of a running proxy: the control socket with `explain` and
//! `ping`, the directory socket, the pages of `/debug` and those for browsers; and the spans that a collector gets. The
//! subcommands, which ask, are in `culvert-proxy-commands`.
#![forbid(unsafe_code)]

pub mod control;
pub mod dashboard;
pub mod debug;
pub mod directory_socket;
pub mod explain;
pub(crate) mod observe;
pub(crate) mod ping;
pub mod scraped;
pub mod spans;
pub mod stream_list;
pub mod view;
