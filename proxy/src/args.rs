//! The command line, and the environment variables that stand in for it.

use std::net::{AddrParseError, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use culvert_api::HostPort;
use culvert_api::ports::{AGENT_PORT, INTERCEPT_PORTS, PEER_PORT};
use culvert_daemon::{
    LogCommand, LogFormat, SegmentArgs, listen_address, parse_duration, parse_size,
};
use culvert_proxy_clients::forward::args::ForwardArgs;
use culvert_proxy_clients::names::args::NameArgs;
use culvert_proxy_cluster::KubernetesArgs;
use culvert_proxy_commands::check::CheckCommand;
use culvert_proxy_commands::control_stdio::{ControlStdioCommand, Sockets};
use culvert_proxy_core::advertise::PeerAdvertise;
use culvert_proxy_operators::spans::SpanArgs;
use culvert_proxy_streams::sockets::strangers::DEFAULT_HANDSHAKES;
use culvert_tunnel::Congestion;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

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

    /// Unix socket, mode 0600, of the running proxy's pages and of the `log` command.
    #[arg(
        long,
        env = "CULVERT_ADMIN_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/proxy/admin.sock",
        global = true
    )]
    pub(crate) admin_socket: PathBuf,

    /// What to log: a level such as `info`, or filters such as `info,culvert_proxy=debug`. By
    /// default without what the Kubernetes client repeats of errors.
    #[arg(
        long,
        env = "CULVERT_LOG",
        default_value = "info,kube_client=off",
        global = true
    )]
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

impl Args {
    /// Where the running proxy has its sockets.
    pub(crate) fn sockets(&self) -> Sockets {
        Sockets {
            control: self.control_socket.clone(),
            admin: self.admin_socket.clone(),
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

    /// Bytes that may wait in memory for clients that take nothing, all together; as many may wait
    /// to be sent. Over it a connection is reset: of the client or node whose connections hold
    /// most, the one that has waited longest.
    #[arg(
        long,
        env = "CULVERT_BUFFER_BUDGET",
        value_name = "SIZE",
        default_value = "512MiB",
        value_parser = parse_size,
    )]
    pub(crate) buffer_budget: u32,

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

/// Every address of this host, of both families.
pub(crate) fn listen(port: u16) -> SocketAddr {
    (Ipv6Addr::UNSPECIFIED, port).into()
}

/// Where the proxy listens.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Listeners")]
pub(crate) struct ListenArgs {
    /// Where agents connect.
    #[arg(
        long,
        env = "CULVERT_AGENT_LISTEN",
        value_name = "IP:PORT",
        default_value_t = listen(AGENT_PORT)
    )]
    pub(crate) agent_listen: SocketAddr,

    /// Accept MPTCP from agents that have `--mptcp`: their tunnels survive a change of the edge's
    /// address. Others use TCP.
    #[arg(long, env = "CULVERT_MPTCP")]
    pub(crate) mptcp: bool,

    /// TCP congestion control of tunnels: `auto`, `system` or a name. `auto` is bbr where the round
    /// trip is 10 ms or more and the kernel has bbr, and the system's elsewhere. Bbr keeps its speed
    /// on a link that loses packets and after a pause, and may leave others on the link less.
    #[arg(
        long,
        env = "CULVERT_TUNNEL_CONGESTION",
        value_name = "NAME",
        default_value = "auto"
    )]
    pub(crate) tunnel_congestion: Congestion,

    #[command(flatten)]
    pub(crate) segments: SegmentArgs,

    /// Addresses of balancers that begin each connection to the agent port with a PROXY protocol
    /// header, version 2: logs and limits take the client's address from it. Their connections are
    /// refused without a header, and nobody else's has one. Whoever is in these ranges may claim
    /// any address. Repeat it for more.
    #[arg(
        long,
        env = "CULVERT_PROXY_PROTOCOL",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub(crate) proxy_protocol: Vec<IpNet>,

    /// TLS handshakes that may go on at once at the agent port, and as many at --connect-listen.
    /// Sixteen times as many connections may wait before theirs, twice as many enrol. Further ones
    /// are sent away and come again.
    #[arg(
        long,
        env = "CULVERT_MAX_HANDSHAKES",
        value_name = "N",
        default_value_t = DEFAULT_HANDSHAKES,
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    pub(crate) max_handshakes: u16,

    /// Where the kernel steers clients' connections; repeat it for more. Connect hooks need all
    /// addresses: they lead to 127.64.0.0/10 and to the node's own.
    #[arg(
        long,
        env = "CULVERT_INTERCEPT_LISTEN",
        value_name = "IP:PORT",
        value_delimiter = ',',
        default_values_t = INTERCEPT_PORTS.map(listen)
    )]
    pub(crate) intercept_listen: Vec<SocketAddr>,

    /// Unix socket for HTTP CONNECT, mode 0660.
    #[arg(
        long,
        env = "CULVERT_CONNECT_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/connect.sock"
    )]
    pub(crate) connect_socket: PathBuf,

    /// Where clients with a certificate connect for HTTP CONNECT, such as [::]:7402. Off by
    /// default.
    #[arg(
        long,
        env = "CULVERT_CONNECT_LISTEN",
        value_name = "IP:PORT",
        requires = "connect_client_ca"
    )]
    pub(crate) connect_listen: Option<SocketAddr>,

    /// The authorities of --connect-listen's clients (PEM); read again when it changes, for new
    /// connections. It must not have the agents': an edge node is no such client.
    #[arg(
        long,
        env = "CULVERT_CONNECT_CLIENT_CA",
        value_name = "FILE",
        requires = "connect_listen"
    )]
    pub(crate) connect_client_ca: Option<PathBuf>,

    /// Lets the clients of --connect-listen also reach what needs no tunnel: a cluster's cloud
    /// nodes, any port, and the ranges of --direct. By default they reach edge nodes only; clients
    /// of --connect-socket reach all of it.
    #[arg(
        long,
        env = "CULVERT_CONNECT_LISTEN_DIRECT",
        requires = "connect_listen"
    )]
    pub(crate) connect_listen_direct: bool,

    /// What HTTP CONNECT may reach without a tunnel, dialled from the proxy itself, besides the
    /// cloud nodes of a Kubernetes cluster: service and pod addresses, for kube-apiserver's egress
    /// selector. Repeat it for more.
    #[arg(
        long,
        env = "CULVERT_DIRECT",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub(crate) direct: Vec<IpNet>,

    /// Unix socket on which the redirector learns the directory.
    #[arg(
        long,
        env = "CULVERT_DIRECTORY_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/directory.sock"
    )]
    pub(crate) directory_socket: PathBuf,

    /// Where the redirector keeps the sockets of clients between two proxies: its
    /// --handover-socket.
    #[arg(
        long,
        env = "CULVERT_REDIRECTOR_HANDOVER_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/redirector/handover.sock"
    )]
    pub(crate) redirector_handover_socket: PathBuf,

    /// Address of /livez, /readyz, /metrics and /debug.
    #[arg(
        long,
        env = "CULVERT_ADMIN_LISTEN",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:7409"
    )]
    pub(crate) admin_listen: SocketAddr,

    /// Address of /metrics alone, such as `[::]`, for scrapers that do not reach
    /// --admin-listen. Off by default.
    #[arg(
        long,
        env = "CULVERT_METRICS_LISTEN",
        value_name = "IP[:PORT]",
        value_parser = metrics_listen
    )]
    pub(crate) metrics_listen: Option<SocketAddr>,
}

/// Who agents and proxy are to each other.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Trust")]
pub(crate) struct TrustArgs {
    /// How agents reach this proxy, for join commands: a DNS name or address and a port; repeat it
    /// for more. Default: this host's own address and the port of --agent-listen.
    #[arg(
        long,
        env = "CULVERT_ADVERTISE",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    pub(crate) advertise: Vec<HostPort>,

    /// The name in the proxy's certificate, which agents verify whatever host they dial.
    #[arg(
        long,
        env = "CULVERT_SERVER_NAME",
        value_name = "NAME",
        default_value = culvert_api::PROXY_SERVER_NAME,
    )]
    pub(crate) server_name: String,

    /// Your own certificate authority (PEM) in place of the one that the proxy makes.
    #[arg(
        long,
        env = "CULVERT_CA_CERT",
        value_name = "FILE",
        requires = "ca_key",
        conflicts_with = "tls_cert"
    )]
    pub(crate) ca_cert: Option<PathBuf>,

    /// The key of --ca-cert (PEM).
    #[arg(
        long,
        env = "CULVERT_CA_KEY",
        value_name = "FILE",
        requires = "ca_cert"
    )]
    pub(crate) ca_key: Option<PathBuf>,

    /// A ready certificate for this proxy (PEM, chain included): no authority is kept here, and
    /// agents bring ready ones too.
    #[arg(
        long,
        env = "CULVERT_TLS_CERT",
        value_name = "FILE",
        requires_all = ["tls_key", "agent_ca"],
    )]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of --tls-cert (PEM).
    #[arg(
        long,
        env = "CULVERT_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(crate) tls_key: Option<PathBuf>,

    /// The authorities of the agents' certificates (PEM), to go with --tls-cert.
    #[arg(
        long,
        env = "CULVERT_AGENT_CA",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(crate) agent_ca: Option<PathBuf>,

    /// How long an agent's certificate lasts; agents renew it after half to two thirds of that.
    /// Default: 30d, and 24h in a Kubernetes cluster.
    #[arg(
        long,
        env = "CULVERT_CERTIFICATE_LIFETIME",
        value_name = "DURATION",
        value_parser = parse_duration,
    )]
    pub(crate) certificate_lifetime: Option<Duration>,

    /// How long a token may be used, unless `token create` says otherwise.
    #[arg(
        long,
        env = "CULVERT_TOKEN_LIFETIME",
        value_name = "DURATION",
        default_value = "24h",
        value_parser = parse_duration,
    )]
    pub(crate) token_lifetime: Duration,
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
        default_value_t = listen(PEER_PORT)
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

    /// Where edge nodes' addresses are: outside of these ranges none is steered, whoever names it;
    /// its node is reached by name. Repeat it for more. Default: anywhere but where the cloud
    /// itself is. In a cluster, where a node's own kubelet says which addresses it has, give it.
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

/// `--metrics-listen`: port 7408, unless it names another.
fn metrics_listen(text: &str) -> Result<SocketAddr, AddrParseError> {
    listen_address(text, 7_408)
}
