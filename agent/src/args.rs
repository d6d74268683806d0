//! The command line, and the environment variables that stand in for it. [`crate::config`] checks
//! what it means.

use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use culvert_api::{AllowedRange, HostPort};
use culvert_daemon::{
    LogCommand, LogFormat, TunnelTcpArgs, listen_address, parse_duration, parse_size,
};

use crate::certificate::join::JoinArgs;

/// Makes services of an edge node reachable from the cloud: dials out to the proxies, keeps tunnels
/// open, and connects their streams to what its allow-list names. Join first, then run it.
#[derive(Parser, Debug)]
#[command(name = "culvert-agent", version = culvert_daemon::BUILD, next_line_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Directory with the agent's key and certificate; made if missing, readable by its owner only.
    #[arg(
        long,
        env = "CULVERT_STATE_DIR",
        default_value = "/var/lib/culvert/agent",
        global = true
    )]
    pub(crate) state_dir: PathBuf,

    /// Unix socket, mode 0600, of the running agent's pages and of the `log` command.
    #[arg(
        long,
        env = "CULVERT_ADMIN_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/agent/admin.sock",
        global = true
    )]
    pub(crate) admin_socket: PathBuf,

    /// What to log: a level such as `info`, or filters such as `info,culvert_agent=debug`.
    #[arg(long, env = "CULVERT_LOG", default_value = "info", global = true)]
    pub(crate) log: String,

    /// How log lines look: `text` or `json`.
    #[arg(
        long,
        env = "CULVERT_LOG_FORMAT",
        default_value = "text",
        global = true
    )]
    pub(crate) log_format: LogFormat,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// What the running agent needs.
#[derive(clap::Args, Debug)]
pub(crate) struct RunArgs {
    /// An address that leads to a proxy, or to any of several; repeat it for more. Default: the
    /// proxies of the join.
    #[arg(
        long,
        env = "CULVERT_PROXY",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    pub(crate) proxy: Vec<HostPort>,

    /// Different proxies to keep tunnels to, 1 to 16. Any of them serves clients of all that are
    /// peers; of proxies that are not, name as many as there are.
    #[arg(
        long,
        env = "CULVERT_PROXIES",
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=16),
    )]
    pub(crate) proxies: u8,

    /// Tunnels to each of these proxies, 1 to 16.
    #[arg(
        long,
        env = "CULVERT_TUNNELS",
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=16),
    )]
    pub(crate) tunnels: u8,

    /// Further tunnels to each of these proxies while bulk data keeps the others busy, 0 to 16. The
    /// bulk data of each connection moves to one of its own, and others wait for no queue of it.
    #[arg(
        long,
        env = "CULVERT_EXTRA_TUNNELS",
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u8).range(0..=16),
    )]
    pub(crate) extra_tunnels: u8,

    /// A port that may be dialled on this node's own addresses and on loopback, besides 10250,
    /// 10255, 9100 and the port of --admin-listen; repeat it for more.
    #[arg(
        long,
        env = "CULVERT_PORTS",
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    pub(crate) port: Vec<u16>,

    /// A port that may be dialled there, and no other one: --ports-config is not read, and the
    /// default ports are closed; repeat it for more.
    #[arg(
        long,
        env = "CULVERT_ONLY_PORTS",
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with = "port",
    )]
    pub(crate) only_port: Vec<u16>,

    /// A port that neither --ports-config nor a default opens; repeat it for more.
    #[arg(
        long,
        env = "CULVERT_DENY_PORTS",
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    pub(crate) deny_port: Vec<u16>,

    /// Folder with further ports: the mounted ConfigMap culvert-ports of a Kubernetes cluster. A
    /// change applies at once; a mistake is an error in the log, and the last good ports stay.
    #[arg(long, env = "CULVERT_PORTS_CONFIG", value_name = "DIR")]
    pub(crate) ports_config: Option<PathBuf>,

    /// A port that is always dialled on 127.0.0.1, whichever address the client dialled; repeat it
    /// for more.
    #[arg(
        long,
        env = "CULVERT_LOCALHOST_PORTS",
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    pub(crate) localhost_port: Vec<u16>,

    /// A destination that may be dialled though it is not this node's own: `ADDRESS:PORT`, or
    /// `CIDR:PORT` for all addresses of a range; repeat it for more.
    #[arg(
        long,
        env = "CULVERT_ALLOW",
        value_name = "CIDR:PORT",
        value_delimiter = ','
    )]
    pub(crate) allow: Vec<AllowedRange>,

    /// An address of this node; repeat it for more. Default: those of its interfaces, without dummy
    /// ones, which hold addresses of services.
    #[arg(
        long,
        env = "CULVERT_NODE_ADDRESS",
        value_name = "IP",
        value_delimiter = ','
    )]
    pub(crate) node_address: Vec<IpAddr>,

    /// Address of /livez, /readyz, /metrics and /debug.
    #[arg(
        long,
        env = "CULVERT_ADMIN_LISTEN",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:7429"
    )]
    pub(crate) admin_listen: SocketAddr,

    /// Address of /metrics alone, such as `[::]`, for scrapers on the edge that do not reach
    /// --admin-listen. Off by default.
    #[arg(
        long,
        env = "CULVERT_METRICS_LISTEN",
        value_name = "IP[:PORT]",
        value_parser = metrics_listen
    )]
    pub(crate) metrics_listen: Option<SocketAddr>,

    /// Bytes that one stream may have under way, 256KiB to 16MiB: the throughput of a stream times
    /// the round trip. A stalled reader may hold a quarter more in memory.
    #[arg(
        long,
        env = "CULVERT_STREAM_WINDOW",
        value_name = "SIZE",
        default_value = "4MiB",
        value_parser = parse_size,
    )]
    pub(crate) stream_window: u32,

    /// Bytes that may wait in memory for backends that take nothing, all together; as many may wait
    /// to be sent. Over it a connection is reset: of the proxy or backend whose connections hold
    /// most, the one that has waited longest.
    #[arg(
        long,
        env = "CULVERT_BUFFER_BUDGET",
        value_name = "SIZE",
        default_value = "128MiB",
        value_parser = parse_size,
    )]
    pub(crate) buffer_budget: u32,

    /// How long a tunnel may be silent before the proxy asks whether this agent is there, 5s to 5m.
    /// Either end is considered dead 12 s later. Where bytes flow nothing is asked. Longer saves
    /// traffic on a metered link, if the devices in between keep silent connections for as long:
    /// load balancers often end them after 60s. Shorter notices a dead link sooner.
    #[arg(
        long,
        env = "CULVERT_KEEPALIVE",
        value_name = "DURATION",
        default_value = "25s",
        value_parser = parse_duration,
    )]
    pub(crate) keepalive: Duration,

    /// Use MPTCP for tunnels, if the proxy has it too: they survive a change of this machine's
    /// address. Something must tell the kernel about the addresses: NetworkManager does it, or
    /// `ip mptcp endpoint add ADDRESS dev NAME subflow`.
    #[arg(long, env = "CULVERT_MPTCP")]
    pub(crate) mptcp: bool,

    #[command(flatten)]
    pub(crate) tunnel_tcp: TunnelTcpArgs,

    /// How long streams may go on after SIGTERM.
    #[arg(
        long,
        env = "CULVERT_GRACE",
        value_name = "DURATION",
        default_value = "30s",
        value_parser = parse_duration,
    )]
    pub(crate) grace: Duration,

    /// Folder with what the proxies of a Kubernetes cluster publish: the mounted ConfigMap
    /// culvert-agent. The agent then enrols by itself, with the token of its pod, in place of a
    /// join.
    #[arg(
        long,
        env = "CULVERT_CLUSTER_CONFIG",
        value_name = "DIR",
        requires = "service_account_token",
        conflicts_with_all = ["cert", "key", "ca"],
    )]
    pub(crate) cluster_config: Option<PathBuf>,

    /// File of the pod's projected service-account token with audience culvert, to go with
    /// --cluster-config; read again for each enrolment.
    #[arg(
        long,
        env = "CULVERT_SERVICE_ACCOUNT_TOKEN",
        value_name = "FILE",
        requires = "cluster_config"
    )]
    pub(crate) service_account_token: Option<PathBuf>,

    /// A ready certificate (PEM, chain included) in place of a join; read again when it changes,
    /// never renewed.
    #[arg(long, env = "CULVERT_CERT", value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,

    /// The key of --cert (PEM).
    #[arg(long, env = "CULVERT_KEY", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// The authorities of the proxies' certificates (PEM), to go with --cert.
    #[arg(long, env = "CULVERT_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// The name in the proxies' certificates, whatever host is dialled. Default: the one of the
    /// join, or culvert-proxy.
    #[arg(long, env = "CULVERT_SERVER_NAME", value_name = "NAME")]
    pub(crate) server_name: Option<String>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Runs the agent, as the program does without a subcommand. The flags of the agent follow it.
    Run,
    /// Exchanges a token from `culvert token create` for this node's certificate, stores it
    /// and exits.
    Join(JoinArgs),
    /// Changes what the running agent logs, until the next change or restart.
    Log(LogCommand),
}

/// `--metrics-listen`: port 7428, unless it names another.
fn metrics_listen(text: &str) -> Result<SocketAddr, AddrParseError> {
    listen_address(text, 7_428)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
