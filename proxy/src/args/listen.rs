//! The flags of listeners.

use std::net::{AddrParseError, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use culvert_api::ports::{AGENT_PORT, INTERCEPT_PORTS, VIEW_PORT};
use culvert_daemon::{TunnelTcpArgs, listen_address};
use culvert_proxy_streams::sockets::strangers::DEFAULT_HANDSHAKES;
use ipnet::IpNet;

/// Where the proxy listens.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Listeners")]
pub(crate) struct ListenArgs {
    /// Where agents connect.
    #[arg(
        long,
        env = "CULVERT_AGENT_LISTEN",
        value_name = "IP:PORT",
        default_value_t = any_address(AGENT_PORT)
    )]
    pub(crate) agent_listen: SocketAddr,

    /// Accept MPTCP from agents that have `--mptcp`: their tunnels survive a change of the edge's
    /// address. Others use TCP.
    #[arg(long, env = "CULVERT_MPTCP")]
    pub(crate) mptcp: bool,

    #[command(flatten)]
    pub(crate) tunnel_tcp: TunnelTcpArgs,

    /// Addresses of balancers that begin each connection to the agent port with a PROXY protocol
    /// header, version 2: logs and limits take the client's address from it. Their connections are
    /// refused without a header, and connections of other hosts must have none. A host in these
    /// ranges may claim any address. Repeat it for more.
    #[arg(
        long,
        env = "CULVERT_PROXY_PROTOCOL",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub(crate) proxy_protocol: Vec<IpNet>,

    /// TLS handshakes at the same time at the agent port, and as many at --connect-listen. Sixteen
    /// times as many connections may wait before theirs, twice as many enrol. Further ones are
    /// refused and try again.
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
        default_values_t = INTERCEPT_PORTS.map(any_address)
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

    /// Address of /livez, /readyz, /metrics, /dashboard and /debug.
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

    /// Where `culvert` reads, by HTTPS and with a bearer token, what it otherwise asks for by exec in
    /// this pod: the API server says whose the token is, and RBAC whether he may `get`
    /// `proxies.culvert.dev`. Nothing can be changed there. Only in a cluster. Off by default.
    #[arg(
        long,
        env = "CULVERT_VIEW_LISTEN",
        value_name = "IP[:PORT]",
        value_parser = view_listen
    )]
    pub(crate) view_listen: Option<SocketAddr>,

    /// Where the redirector of this host has its pages, for --view-listen.
    #[arg(
        long,
        env = "CULVERT_REDIRECTOR_ADMIN_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/redirector/admin.sock"
    )]
    pub(crate) redirector_admin_socket: PathBuf,
}

/// Every address of this host, of both families.
pub(crate) fn any_address(port: u16) -> SocketAddr {
    (Ipv6Addr::UNSPECIFIED, port).into()
}

/// `--view-listen`: port 7407, unless it names another.
fn view_listen(text: &str) -> Result<SocketAddr, AddrParseError> {
    listen_address(text, VIEW_PORT)
}

/// `--metrics-listen`: port 7408, unless it names another.
fn metrics_listen(text: &str) -> Result<SocketAddr, AddrParseError> {
    listen_address(text, 7_408)
}
