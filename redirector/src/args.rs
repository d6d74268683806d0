//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use culvert_api::installed::{HookScope, Mechanism};
use culvert_api::ports::INTERCEPT_PORTS;
use culvert_daemon::{AdminArgs, DaemonDefaults, LogArgs, LogCommand, Logs};
use ipnet::IpNet;

/// DNS' own port.
pub(crate) const DNS_PORT: u16 = 53;

/// Steers connections addressed to edge nodes into the proxy on this host: eBPF connect hooks,
/// nftables, DNS.
#[derive(Debug, Parser)]
#[command(name = "culvert-redirector", version = culvert_daemon::BUILD)]
pub(crate) struct Args {
    /// What to do instead of running the daemon.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) shared: SharedArgs,

    /// Unix socket on which the proxy of this host serves its directory.
    #[arg(
        long,
        env = "CULVERT_DIRECTORY_SOCKET",
        default_value = "/run/culvert/directory.sock",
        value_name = "PATH"
    )]
    pub(crate) directory_socket: PathBuf,
    /// Root-only Unix socket on which a proxy that ends leaves the sockets of its clients, for the
    /// next proxy on this host. For 30 s clients wait instead of being refused.
    #[arg(
        long,
        env = "CULVERT_HANDOVER_SOCKET",
        default_value = "/run/culvert/redirector/handover.sock",
        value_name = "PATH"
    )]
    pub(crate) handover_socket: PathBuf,
    /// Directory of the cgroup whose processes are steered. Default: the real cgroup2 root, that is
    /// every process.
    #[arg(long, env = "CULVERT_CGROUP", value_name = "DIR")]
    pub(crate) cgroup: Option<PathBuf>,
    /// What steers connections: connect hooks, nftables, both, or nothing (DNS only).
    #[arg(long, env = "CULVERT_MECHANISM", value_enum, default_value_t = Mechanism::Both)]
    pub(crate) mechanism: Mechanism,
    /// Whose connections the hooks steer: those of the host's network namespace, with pods and
    /// containers left to nftables; or those of all processes, for data planes that carry pods'
    /// packets past nftables. Default: host; all with `--mechanism ebpf` and before Linux 5.14.
    #[arg(long, env = "CULVERT_HOOKS", value_enum)]
    pub(crate) hooks: Option<HookScope>,
    /// Attach hooks at the root cgroup beside a Cilium that has none like them: its versions
    /// without the fix of its issue 43877 then do not start.
    #[arg(long, env = "CULVERT_BESIDE_CILIUM")]
    pub(crate) beside_cilium: bool,
    /// Be ready although nothing steers pods' connections: without hooks that see pods, on a host
    /// whose pods' packets bypass nftables (Cilium without kube-proxy, Calico's eBPF data plane,
    /// OVN-Kubernetes).
    #[arg(long, env = "CULVERT_ACCEPT_UNSEEN_PODS")]
    pub(crate) accept_unseen_pods: bool,
    /// This host's address that connections are steered to unless they can go to a loopback address,
    /// at most one of each family. Default:
    /// the one that the host uses towards its default route.
    #[arg(
        long,
        env = "CULVERT_NODE_IP",
        value_delimiter = ',',
        value_name = "IP"
    )]
    pub(crate) node_ip: Vec<IpAddr>,
    /// Port on which the proxy takes steered connections; repeat for each. nftables steers to the
    /// highest, connect hooks to all others; a single one is shared, and then some hooked
    /// connections may be reset while both are used.
    #[arg(
        long,
        env = "CULVERT_INTERCEPT_PORTS",
        value_delimiter = ',',
        default_values_t = INTERCEPT_PORTS,
        value_name = "PORT"
    )]
    pub(crate) intercept_port: Vec<u16>,
    /// Socket mark (`SO_MARK`) that exempts a connection from being steered; 0 exempts none.
    #[arg(long, env = "CULVERT_MARK", default_value = "0x1000", value_parser = parse_mark)]
    pub(crate) mark: u32,
    /// Range of other sources that are steered, as this host and its pods are, and may reach the
    /// intercept ports; repeat for each.
    #[arg(
        long,
        env = "CULVERT_GUARD_ALLOW",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub(crate) guard_allow: Vec<IpNet>,
    /// Range of this host's pods; repeat for each. What else comes in is not steered. Default: pods
    /// are behind veth, netkit and Open vSwitch ports and bridges of them, unless these have the
    /// default route or a network card is a port of the bridge.
    #[arg(
        long,
        env = "CULVERT_POD_RANGE",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub(crate) pod_range: Vec<IpNet>,
    /// Address on which DNS is answered, or `none` for no DNS; repeat for each. Default: port 53 of
    /// each node IP.
    #[arg(
        long,
        env = "CULVERT_DNS_LISTEN",
        value_delimiter = ',',
        value_name = "IP:PORT|none"
    )]
    pub(crate) dns_listen: Vec<DnsListen>,
    /// Range of clients that DNS answers, beside this host itself; repeat for each. Default: private
    /// and link-local ranges.
    #[arg(
        long,
        env = "CULVERT_DNS_CLIENT",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub(crate) dns_client: Vec<IpNet>,
    /// Server that is asked for the names that are not ours, as `IP` or `IP:PORT`; repeat for each,
    /// the first is asked first. Not one that asks this one. Default: such names are refused.
    #[arg(
        long,
        env = "CULVERT_FORWARD",
        value_delimiter = ',',
        value_parser = parse_server,
        value_name = "IP[:PORT]",
    )]
    pub(crate) forward: Vec<SocketAddr>,
    /// Remove everything from the kernel at the end, as `uninstall` does, if the DaemonSet of
    /// redirectors has been deleted by then. The proxy of this host, which follows the cluster, says
    /// so.
    #[arg(long, env = "CULVERT_UNINSTALL_WITH_DAEMON_SET")]
    pub(crate) uninstall_with_daemon_set: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArgs<RedirectorDefaults>,
    #[command(flatten)]
    pub(crate) log: LogArgs<RedirectorDefaults>,
}

/// The redirector's defaults of the flags that other daemons have too.
#[derive(Clone, Debug)]
pub(crate) struct RedirectorDefaults;

impl DaemonDefaults for RedirectorDefaults {
    const ADMIN_LISTEN: &'static str = "127.0.0.1:7419";
    const METRICS_PORT: u16 = 7418;
    const ADMIN_SOCKET: &'static str = "/run/culvert/redirector/admin.sock";
    const LOG: &'static str = "info,hickory_server=warn";
}

impl Args {
    /// Begins to log, without hickory's line for every question: metrics count them.
    pub(crate) fn init_logs(&self) -> anyhow::Result<Logs> {
        let filters = format!("hickory_server=warn,{}", self.log.log);
        Logs::init(&filters, self.log.log_format)
    }
}

/// Where things are; the subcommands need these too.
#[derive(Debug, clap::Args)]
pub(crate) struct SharedArgs {
    /// Directory in which the last directory of nodes is kept.
    #[arg(
        long,
        global = true,
        env = "CULVERT_STATE_DIR",
        default_value = "/var/lib/culvert/redirector",
        value_name = "DIR"
    )]
    pub(crate) state_dir: PathBuf,
    /// Mount point of the BPF file system; everything is pinned in `culvert/v1` below it.
    #[arg(
        long,
        global = true,
        env = "CULVERT_BPFFS",
        default_value = "/sys/fs/bpf",
        value_name = "DIR"
    )]
    pub(crate) bpffs: PathBuf,
    /// DNS zone of the node names: `edge-1` is also `edge-1.edge.internal`.
    #[arg(
        long,
        global = true,
        env = "CULVERT_DNS_ZONE",
        default_value = "edge.internal",
        value_name = "ZONE"
    )]
    pub(crate) dns_zone: String,
    /// Range of edge addresses that are steered although a network of this host has them too; repeat
    /// for each. Clients then reach the edge nodes, and not what this network has there.
    #[arg(
        long,
        global = true,
        env = "CULVERT_STEER_OWN_NETWORK",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub(crate) steer_own_network: Vec<IpNet>,
}

/// All but `run` and `log` work without the daemon, straight from the kernel.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the daemon, as the program does without a subcommand. The flags of the daemon follow it.
    Run,
    /// Shows hooks, maps, counters, the nftables table and the routes as the kernel has them.
    Status,
    /// Says what the kernel would do with a connection, and why.
    Explain {
        /// An address or a node's name, with or without a port: `IP`, `IP:PORT`, `NAME`,
        /// `NAME:PORT`.
        #[arg(value_name = "DESTINATION")]
        destination: String,
    },
    /// Removes hooks, pins, the nftables table and the routes. Connections are no longer steered.
    /// Connections that hooks have steered go on; the kernel ends those that nftables has steered,
    /// unless another table translates addresses too.
    Uninstall {
        /// Afterwards stay until a signal, as a pod of a DaemonSet has to.
        #[arg(long)]
        stay: bool,
    },
    /// Changes what the running redirector logs, until the next change or restart.
    Log(LogCommand),
}

/// A value of `--dns-listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DnsListen {
    /// No DNS.
    None,
    /// An address.
    At(SocketAddr),
}

impl std::str::FromStr for DnsListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        text.parse().map(Self::At).map_err(|_unhelpful| {
            format!("{text:?} is neither `none` nor an address such as 10.0.0.1:53")
        })
    }
}

fn parse_server(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, DNS_PORT));
    }
    text.parse()
        .map_err(|_unhelpful| format!("{text:?} is not a server: write 10.0.0.2 or 10.0.0.2:53"))
}

fn parse_mark(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_unhelpful| format!("{text:?} is not a mark: write a number such as 0x2000"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, ValueEnum};

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_mechanism_is_named_as_the_flag_has_it() {
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::from_str(mechanism.label(), false), Ok(mechanism));
        }
    }

    #[test]
    fn a_mark_is_written_in_hexadecimal_or_decimal() {
        assert_eq!(parse_mark("0x2000"), Ok(0x2000));
        assert_eq!(parse_mark("8192"), Ok(0x2000));
        assert!(parse_mark("2k").unwrap_err().contains("0x2000"));
    }
}
