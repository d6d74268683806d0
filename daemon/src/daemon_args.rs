//! Flags that several daemons have, with defaults of their own.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::net::{AddrParseError, SocketAddr};
use std::path::PathBuf;

use anyhow::Result;

use crate::units::parse_size;
use crate::{LogFormat, Logs, listen_address};

/// The defaults of a daemon.
pub trait DaemonDefaults: Clone + Debug + Send + Sync + 'static {
    /// The default of `--admin-listen`.
    const ADMIN_LISTEN: &'static str;
    /// The port of `--metrics-listen`, unless that names one.
    const METRICS_PORT: u16;
    /// The default of `--admin-socket`.
    const ADMIN_SOCKET: &'static str;
    /// The default of `--log`.
    const LOG: &'static str;
}

/// The defaults of an end of tunnels.
pub trait TunnelDefaults: Clone + Debug + Send + Sync + 'static {
    /// The default of `--buffer-budget`.
    const BUFFER_BUDGET: &'static str;
}

/// Where a daemon serves its own pages.
#[derive(clap::Args, Clone, Debug)]
pub struct AdminArgs<D: DaemonDefaults> {
    /// Address of /livez, /readyz, /metrics and /debug; the proxy has /dashboard too.
    #[arg(
        long,
        env = "CULVERT_ADMIN_LISTEN",
        value_name = "IP:PORT",
        default_value = D::ADMIN_LISTEN
    )]
    pub admin_listen: SocketAddr,

    /// Address of /metrics alone, such as `[::]`, for scrapers that do not reach --admin-listen. Off
    /// by default.
    #[arg(
        long,
        env = "CULVERT_METRICS_LISTEN",
        value_name = "IP[:PORT]",
        value_parser = metrics_listen::<D>
    )]
    pub metrics_listen: Option<SocketAddr>,

    #[arg(skip)]
    defaults: PhantomData<D>,
}

fn metrics_listen<D: DaemonDefaults>(text: &str) -> Result<SocketAddr, AddrParseError> {
    listen_address(text, D::METRICS_PORT)
}

/// What a daemon logs, and where that is changed while it runs.
#[derive(clap::Args, Clone, Debug)]
pub struct LogArgs<D: DaemonDefaults> {
    /// Unix socket, mode 0600, of the running program's pages and of the `log` command.
    #[arg(
        long,
        env = "CULVERT_ADMIN_SOCKET",
        value_name = "PATH",
        default_value = D::ADMIN_SOCKET,
        global = true
    )]
    pub admin_socket: PathBuf,

    /// What to log: a level such as `info`, or filters such as `info,culvert_daemon=debug`.
    #[arg(
        long,
        env = "CULVERT_LOG",
        value_name = "FILTER",
        default_value = D::LOG,
        global = true
    )]
    pub log: String,

    /// How log lines look: `text` or `json`.
    #[arg(
        long,
        env = "CULVERT_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text",
        global = true
    )]
    pub log_format: LogFormat,

    #[arg(skip)]
    defaults: PhantomData<D>,
}

impl<D: DaemonDefaults> LogArgs<D> {
    /// Begins the log.
    ///
    /// # Errors
    /// A filter is not one.
    pub fn init(&self) -> Result<Logs> {
        Logs::init(&self.log, self.log_format)
    }
}

/// What connections in tunnels may have under way.
#[derive(clap::Args, Clone, Debug)]
pub struct BufferArgs<D: TunnelDefaults> {
    /// Bytes that one stream may have under way, 256KiB to 16MiB: the throughput of a stream times
    /// the round trip. A stalled reader may hold a quarter more in memory.
    #[arg(
        long,
        env = "CULVERT_STREAM_WINDOW",
        value_name = "SIZE",
        default_value = "4MiB",
        value_parser = parse_size,
    )]
    pub stream_window: u32,

    /// Bytes that may wait in memory for clients or backends that do not read, all together; as many
    /// may wait to be sent. Over it a connection is reset: of the client, backend, node or proxy
    /// whose connections hold most, the one that has waited longest.
    #[arg(
        long,
        env = "CULVERT_BUFFER_BUDGET",
        value_name = "SIZE",
        default_value = D::BUFFER_BUDGET,
        value_parser = parse_size,
    )]
    pub buffer_budget: u32,

    #[arg(skip)]
    defaults: PhantomData<D>,
}
