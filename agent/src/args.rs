//! The command line, and the environment variables that stand in for it. [`crate::config`] checks
//! what it means.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use culvert_api::{AllowedRange, HostPort};
use culvert_daemon::{
    AdminArgs, BufferArgs, DaemonDefaults, LogArgs, LogCommand, TunnelDefaults, TunnelTcpArgs,
    parse_duration,
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

    #[command(flatten)]
    pub(crate) log: LogArgs<AgentDefaults>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// The agent's defaults of the flags that other daemons have too.
#[derive(Clone, Debug)]
pub(crate) struct AgentDefaults;

impl DaemonDefaults for AgentDefaults {
    const ADMIN_LISTEN: &'static str = "127.0.0.1:7429";
    const METRICS_PORT: u16 = 7428;
    const ADMIN_SOCKET: &'static str = "/run/culvert/agent/admin.sock";
    const LOG: &'static str = "info";
}

impl TunnelDefaults for AgentDefaults {
    const BUFFER_BUDGET: &'static str = "128MiB";
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

    #[command(flatten)]
    pub(crate) admin: AdminArgs<AgentDefaults>,
    #[command(flatten)]
    pub(crate) buffers: BufferArgs<AgentDefaults>,

    /// How long a tunnel may be silent before the proxy asks whether this agent is there, 5s to 5m.
    /// Either end is considered dead 12 s later. Where bytes flow nothing is asked. Longer saves
    /// traffic on a metered link, if the devices in between keep silent connections for as long:
    /// load balancers often end them after 60s. Shorter notices a dead link sooner, and
    /// keeps a tunnel through a NAT that forgets early.
    #[arg(
        long,
        env = "CULVERT_KEEPALIVE",
        value_name = "DURATION",
        default_value = "45s",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
