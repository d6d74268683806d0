//! The checked configuration.

mod dns;
mod node_ips;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use culvert_api::{InvalidZone, Zone};
use culvert_daemon::AdminListen;
use culvert_redirector_common::MAX_INTERCEPT_PORTS;
use ipnet::IpNet;

use crate::args::{Args, SharedArgs};
use culvert_api::installed::{HookScope, Mechanism};
pub(crate) use dns::DnsConfig;
use dns::dns;
pub(crate) use node_ips::{NodeIps, addresses_of_this_host};

/// The daemon's configuration, checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) directory_socket: PathBuf,
    pub(crate) handover_socket: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) bpffs: PathBuf,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) mechanism: Mechanism,
    pub(crate) hook_scope: HookScope,
    pub(crate) beside_cilium: bool,
    pub(crate) accept_unseen_pods: bool,
    pub(crate) intercept: Intercept,
    /// Whether the node's addresses were found, not given by a flag: then another one may be added
    /// later.
    pub(crate) found_node: bool,
    pub(crate) guard_allow: Vec<IpNet>,
    /// Where edge addresses are steered although this host has a network there.
    pub(crate) steered_networks: Vec<IpNet>,
    pub(crate) pod_ranges: Vec<IpNet>,
    /// The zone of the nodes' names.
    pub(crate) zone: Zone,
    pub(crate) dns: Option<DnsConfig>,
    /// Whether everything is removed at the end once the cluster has deleted the redirectors.
    pub(crate) uninstall_with_daemon_set: bool,
    pub(crate) admin: AdminListen,
}

/// What the daemon and the commands share.
#[derive(Clone, Debug)]
pub(crate) struct SharedConfig {
    pub(crate) bpffs: PathBuf,
    pub(crate) state_dir: PathBuf,
    /// The zone of the nodes' names.
    pub(crate) zone: Zone,
    /// Where edge addresses are steered although this host has a network there.
    pub(crate) steered_networks: Vec<IpNet>,
}

impl TryFrom<&SharedArgs> for SharedConfig {
    type Error = InvalidZone;

    fn try_from(args: &SharedArgs) -> Result<Self, InvalidZone> {
        Ok(Self {
            bpffs: args.bpffs.clone(),
            state_dir: args.state_dir.clone(),
            zone: args.dns_zone.parse()?,
            steered_networks: args.steer_own_network.clone(),
        })
    }
}

/// The addresses and ports that connections are steered to, and the mark that exempts a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intercept {
    pub(crate) node: NodeIps,
    /// 1 to [`MAX_INTERCEPT_PORTS`] different ports, in order.
    pub(crate) ports: Vec<u16>,
    /// Zero: no socket is exempt.
    pub(crate) mark: u32,
}

/// eBPF-steered and DNATed connections must use different intercept ports. On one port, two clients
/// with the same source port collide in conntrack, which rewrites one source port; the tuple lookup
/// then misses, or returns the other connection's destination.
impl Intercept {
    /// The ports that connect hooks steer to: all except the last.
    pub(crate) fn hook_ports(&self) -> &[u16] {
        match self.ports.split_last() {
            Some((_, others)) if !others.is_empty() => others,
            _ => &self.ports,
        }
    }

    /// The port that nftables steers to: the last. One is enough, since conntrack resolves
    /// collisions of source ports.
    pub(crate) fn packet_port(&self) -> u16 {
        self.ports.last().copied().unwrap_or_default()
    }
}

/// Flags that contradict each other or this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error(
        "--node-ip: {first} and {second} are of one family; give at most one IPv4 and one IPv6 \
         address"
    )]
    TwoOfAFamily { first: IpAddr, second: IpAddr },
    #[error("--node-ip: {0} is not an address of this host")]
    NotOurs(IpAddr),
    #[error(
        "this host has no default route, or only one that refuses packets, so its address cannot \
         be found; give it by --node-ip"
    )]
    NoNodeIp,
    #[error(
        "--forward: {0} is where this program itself answers DNS; give a server that knows other \
         names"
    )]
    ForwardToItself(SocketAddr),
    #[error(
        "--intercept-port: give 1 to {MAX_INTERCEPT_PORTS} different ports, none of them 0; these \
         are {0:?}"
    )]
    Ports(Vec<u16>),
    #[error("--dns-listen: `none` stands alone")]
    NoneAndMore,
    #[error("--hooks host leaves pods to nftables: give it with --mechanism both")]
    HostHooksAlone,
    #[error("--dns-zone")]
    Zone(#[from] InvalidZone),
}

impl Config {
    /// The folder of the socket by which the proxy serves its directory. Whose it is, runs the
    /// proxy.
    pub(crate) fn sockets_folder(&self) -> &Path {
        match self.directory_socket.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }

    /// Checks the flags. `usual_scope` is that of hooks beside nftables on this kernel.
    pub(crate) fn new(args: Args, usual_scope: HookScope) -> Result<Self, ConfigError> {
        let hook_scope = match (args.hooks, args.mechanism) {
            (Some(HookScope::Host), Mechanism::Ebpf) => return Err(ConfigError::HostHooksAlone),
            (Some(scope), _) => scope,
            // Nothing else would steer pods.
            (None, Mechanism::Ebpf) => HookScope::All,
            (None, _) => usual_scope,
        };
        let node = NodeIps::find(&args.node_ip)?;
        let zone: Zone = args.shared.dns_zone.parse()?;
        Ok(Self {
            directory_socket: args.directory_socket,
            handover_socket: args.handover_socket,
            state_dir: args.shared.state_dir,
            bpffs: args.shared.bpffs,
            cgroup: args.cgroup,
            mechanism: args.mechanism,
            hook_scope,
            beside_cilium: args.beside_cilium,
            accept_unseen_pods: args.accept_unseen_pods,
            zone: zone.clone(),
            dns: dns(&args.dns_listen, zone, args.dns_client, node, args.forward)?,
            found_node: args.node_ip.is_empty(),
            intercept: Intercept {
                node,
                ports: ports(args.intercept_port)?,
                mark: args.mark,
            },
            guard_allow: args.guard_allow,
            steered_networks: args.shared.steer_own_network,
            uninstall_with_daemon_set: args.uninstall_with_daemon_set,
            admin: AdminListen {
                program: "culvert-redirector",
                address: args.admin.admin_listen,
                metrics: args.admin.metrics_listen,
                socket: args.log.admin_socket,
            },
            pod_ranges: args.pod_range,
        })
    }
}

fn ports(given: Vec<u16>) -> Result<Vec<u16>, ConfigError> {
    let mut unique = given.clone();
    unique.sort_unstable();
    unique.dedup();
    let fine = !given.contains(&0)
        && unique.len() == given.len()
        && (1..=MAX_INTERCEPT_PORTS).contains(&given.len());
    if fine {
        Ok(unique)
    } else {
        Err(ConfigError::Ports(given))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    pub(super) fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        let common = ["culvert-redirector", "--node-ip", "127.0.0.1"];
        Config::new(
            Args::try_parse_from(common.iter().chain(flags)).unwrap(),
            HookScope::Host,
        )
    }

    #[test]
    fn hooks_of_the_host_alone_leave_pods_to_somebody() {
        assert!(matches!(
            config(&["--hooks", "host", "--mechanism", "ebpf"]),
            Err(ConfigError::HostHooksAlone)
        ));
        let scope = |flags: &[&str]| config(flags).unwrap().hook_scope;
        assert_eq!(scope(&[]), HookScope::Host);
        assert_eq!(scope(&["--hooks", "all"]), HookScope::All);
        assert_eq!(scope(&["--mechanism", "ebpf"]), HookScope::All);
    }

    #[test]
    fn hooks_and_nftables_share_a_port_only_if_there_is_one() {
        let shares = |ports: &str| {
            let intercept = config(&["--intercept-port", ports]).unwrap().intercept;
            (intercept.hook_ports().to_vec(), intercept.packet_port())
        };
        assert_eq!(shares("7410,7411,7412"), (vec![7410, 7411], 7412));
        assert_eq!(shares("7410"), (vec![7410], 7410));
    }

    #[test]
    fn intercept_ports_are_few_different_and_not_zero() {
        assert_eq!(
            config(&["--intercept-port", "9,8"])
                .unwrap()
                .intercept
                .ports,
            [8, 9]
        );
        for bad in ["0", "8,8", "1,2,3,4,5,6,7,8,9"] {
            assert!(
                matches!(
                    config(&["--intercept-port", bad]),
                    Err(ConfigError::Ports(_))
                ),
                "{bad}"
            );
        }
    }
}
