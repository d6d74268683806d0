//! The command line, and the environment variables that stand in for it.

mod listen;
mod trust;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use culvert_api::HostPort;
use culvert_api::ports::PEER_PORT;
use culvert_daemon::{
    BufferArgs, DaemonDefaults, LogArgs, LogCommand, TunnelDefaults, parse_duration,
};
use culvert_proxy_clients::forward::args::ForwardArgs;
use culvert_proxy_clients::names::args::NameArgs;
use culvert_proxy_cluster::KubernetesArgs;
use culvert_proxy_commands::check::CheckCommand;
use culvert_proxy_commands::control_stdio::{ControlStdioCommand, Sockets};
use culvert_proxy_core::advertise::PeerAdvertise;
use culvert_proxy_operators::spans::SpanArgs;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub(crate) use listen::{ListenArgs, any_address};
pub(crate) use trust::TrustArgs;

/// Takes tunnels from agents on edge nodes, and connects cloud clients through them. Runs without
/// any configuration: it makes its own certificate authority, and `culvert token create` adds
/// nodes.
#[derive(Parser, Debug)]
#[command(name = "culvert-proxy", version = culvert_daemon::BUILD, next_line_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Root-only socket on which the running proxy answers `culvert`.
    #[arg(
        long,
        env = "CULVERT_CONTROL_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/control.sock",
        global = true
    )]
    pub(crate) control_socket: PathBuf,

    #[command(flatten)]
    pub(crate) log: LogArgs<ProxyDefaults>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// The proxy's defaults of the flags that other daemons have too.
#[derive(Clone, Debug)]
pub(crate) struct ProxyDefaults;

impl DaemonDefaults for ProxyDefaults {
    const ADMIN_LISTEN: &'static str = "127.0.0.1:7409";
    const METRICS_PORT: u16 = 7408;
    const ADMIN_SOCKET: &'static str = "/run/culvert/proxy/admin.sock";
    /// Without what the Kubernetes client repeats of errors.
    const LOG: &'static str = "info,kube_client=off";
}

impl TunnelDefaults for ProxyDefaults {
    const BUFFER_BUDGET: &'static str = "512MiB";
}

impl Args {
    /// Where the running proxy has its sockets.
    pub(crate) fn sockets(&self) -> Sockets {
        Sockets {
            control: self.control_socket.clone(),
            admin: self.log.admin_socket.clone(),
            connect: self.run.listen.connect_socket.clone(),
        }
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Runs the proxy, as the program does without a subcommand. The flags of the proxy follow it.
    Run,
    /// Checks this host, for `culvert check`, and prints what it finds as JSON.
    #[command(hide = true)]
    CheckHost(Box<CheckCommand>),
    /// Connects standard input and output with a socket of this host: `culvert` runs it by ssh or in a
    /// pod.
    ControlStdio(ControlStdioCommand),
    /// Changes what the running proxy logs, until the next change or restart.
    Log(LogCommand),
}

/// What the running proxy needs.
#[derive(clap::Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    #[command(flatten)]
    pub(crate) names: NameArgs,
    #[command(flatten)]
    pub(crate) forwards: ForwardArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,
    #[command(flatten)]
    pub(crate) peers: PeerArgs,
    #[command(flatten)]
    pub(crate) spans: SpanArgs,

    /// Directory with the certificate authority, tokens, nodes and VIPs; made if missing, readable
    /// by its owner only.
    #[arg(
        long,
        env = "CULVERT_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/culvert/proxy"
    )]
    pub(crate) state_dir: PathBuf,

    /// Where the redirector pins its maps.
    #[arg(
        long,
        env = "CULVERT_BPFFS",
        value_name = "DIR",
        default_value = "/sys/fs/bpf"
    )]
    pub(crate) bpffs: PathBuf,

    #[command(flatten)]
    pub(crate) buffers: BufferArgs<ProxyDefaults>,

    /// How long connections may go on after SIGTERM. New ones are accepted meanwhile; the proxy
    /// ends when none is left.
    #[arg(
        long,
        env = "CULVERT_GRACE",
        value_name = "DURATION",
        default_value = "30s",
        value_parser = parse_duration,
    )]
    pub(crate) grace: Duration,
}

/// How proxies reach each other.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Peers")]
pub(crate) struct PeerArgs {
    /// The peer port of another proxy of the same authority, so that this proxy reaches the nodes
    /// whose tunnels end there; repeat it for more. A name may stand for several proxies, this one
    /// included. In a cluster proxies find each other by themselves.
    #[arg(
        long,
        env = "CULVERT_PEER",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    pub(crate) peer: Vec<HostPort>,

    /// The peer port of the proxy that has the nodes, the VIPs and the tokens (without Kubernetes):
    /// this proxy takes them from there, and passes on what its operators change. It is a --peer
    /// too.
    #[arg(
        long,
        env = "CULVERT_FOLLOW",
        value_name = "HOST:PORT",
        conflicts_with_all = ["directory_file", "vip4_range", "vip6_range"],
    )]
    pub(crate) follow: Option<HostPort>,

    /// Where other proxies connect. Used with --peer or --follow, and in a cluster.
    #[arg(
        long,
        env = "CULVERT_PEER_LISTEN",
        value_name = "IP:PORT",
        default_value_t = any_address(PEER_PORT)
    )]
    pub(crate) peer_listen: SocketAddr,

    /// How the other proxies of the cluster reach this one: a DNS name or address, and a port
    /// unless it is that of --peer-listen. Default: this host's own address; in the manifests, the
    /// node's.
    #[arg(long, env = "CULVERT_PEER_ADVERTISE", value_name = "HOST[:PORT]")]
    pub(crate) peer_advertise: Option<PeerAdvertise>,
}

/// Which nodes there are and how they are addressed.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Directory")]
pub(crate) struct DirectoryArgs {
    /// File with nodes (TOML), besides those made by `token create`; read again when it changes.
    #[arg(long = "directory", env = "CULVERT_DIRECTORY", value_name = "FILE")]
    pub(crate) directory_file: Option<PathBuf>,

    /// Addresses that the cloud uses itself; a node that has one is reached by name only. Repeat it
    /// for more. This host's own addresses are always protected.
    #[arg(
        long,
        env = "CULVERT_PROTECT",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub(crate) protect: Vec<IpNet>,

    /// Where edge nodes' addresses are: an address outside of these ranges is never steered, even if
    /// a node claims it; its node is reached by name. Repeat it for more. Default: all addresses
    /// but those of the cloud itself. Give it in a cluster, where a node's own kubelet says which
    /// addresses it has.
    #[arg(
        long,
        env = "CULVERT_EDGE_RANGE",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub(crate) edge_range: Vec<IpNet>,

    /// Range of the nodes' IPv4 VIPs; nothing else may use it.
    #[arg(
        long,
        env = "CULVERT_VIP4_RANGE",
        value_name = "CIDR",
        default_value = "198.18.0.0/15"
    )]
    pub(crate) vip4_range: Ipv4Net,

    /// Range of the nodes' IPv6 VIPs. Default: a random /64 of unique local addresses, made once
    /// and kept.
    #[arg(long, env = "CULVERT_VIP6_RANGE", value_name = "CIDR")]
    pub(crate) vip6_range: Option<Ipv6Net>,

    /// Zone of the nodes' names: `<node>.<zone>` is the node.
    #[arg(
        long,
        env = "CULVERT_DNS_ZONE",
        value_name = "ZONE",
        default_value = "edge.internal"
    )]
    pub(crate) dns_zone: String,
}
