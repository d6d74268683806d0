//! The scaffold of Culvert's three binaries: logs, supervised tasks, drain on a signal, and the
//! admin server.
//!
//! A binary parses its flags, builds its parts, adds each to the [`Supervisor`] by name and runs
//! it. The first task to end, or a signal, starts the drain. After the grace period, the remaining
//! tasks are dropped.
#![forbid(unsafe_code)]

mod admin;
mod admin_pages;
mod admin_socket;
mod atomic_file;
mod backoff;
mod chain;
mod closed_pipe;
mod counted;
mod daemon_args;
mod flags_page;
mod foreign_names;
mod forward_proxy;
mod generate;
mod handover;
mod host_addresses;
mod http;
mod idle;
mod introduction;
mod listen_address;
mod listeners;
mod local_socket;
mod log_budget;
mod log_command;
mod logs;
mod open_files;
mod optional_port;
mod page_client;
mod payload_bytes;
mod problem;
mod process_metrics;
mod quota;
mod readiness;
mod run_main;
mod small_pages;
mod supervisor;
mod systemd;
mod tasks;
mod tunnel_tcp_args;
mod units;
mod workers;

pub use admin::{Admin, AdminListen, page};
pub use admin_pages::AdminPages;
pub use admin_socket::AdminSocket;
pub use atomic_file::write_atomic;
pub use backoff::{Backoff, jittered};
pub use chain::chain;
pub use counted::counted;
pub use daemon_args::{AdminArgs, BufferArgs, DaemonDefaults, LogArgs, TunnelDefaults};
pub use forward_proxy::{
    ConnectAdvice, ConnectFailure, ConnectStatus, ForwardProxies, ForwardProxy,
    InvalidForwardProxy, connect_through,
};
pub use handover::{
    Coverage, HANDOVER_TIMEOUT, HANDOVER_VERSION, Handed, HandedKind, Handover, HandoverError,
    Message,
};
pub use host_addresses::{InterfaceAddress, host_addresses, interface_addresses, source_address};
pub use http::serve_http;
pub use idle::{Counts, Idle};
pub use introduction::Introduction;
pub use listen_address::listen_address;
pub use listeners::{LISTENER_FAMILIES, Listeners, SocketUse, is_listener};
pub use local_socket::{LocalSocket, SocketAccess};
pub use log_budget::LogBudget;
pub use log_command::LogCommand;
pub use logs::{LogFormat, Logs};
pub use open_files::raise_open_file_limit;
pub use optional_port::{BIND_RETRY, OptionalPort, TakenPorts, is_taken};
pub use page_client::PageClient;
pub use payload_bytes::PayloadBytes;
pub use problem::Problem;
pub use quota::{Permit, Quota};
pub use readiness::{Gate, Readiness};
pub use run_main::run_main;
pub use supervisor::{Drain, Supervisor};
pub use systemd::report_to_systemd;
pub use tasks::{RunningTasks, Runtimes, TaskCounts, tasks_page};
pub use tunnel_tcp_args::TunnelTcpArgs;
pub use units::parse_duration;
pub use workers::{Worker, Workers};

/// The version of all of Culvert's binaries, as in `Cargo.toml`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What `--version` prints after the name of the program: [`VERSION`], and in a program of `cargo
/// xtask dist` also the commit and its date.
pub const BUILD: &str = match option_env!("CULVERT_BUILD") {
    Some(build) => build,
    None => VERSION,
};
