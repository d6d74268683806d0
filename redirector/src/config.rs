//! The checked configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;

use culvert_api::{InvalidZone, Zone};
use culvert_daemon::AdminListen;
use culvert_redirector_common::MAX_INTERCEPT_PORTS;
use ipnet::IpNet;
use nix::ifaddrs::getifaddrs;

use crate::args::{Args, DNS_PORT, DnsListen, HookScope, Mechanism};

/// Who may ask: clients on this host, in its pods and in private networks, not the internet.
const DNS_CLIENTS: [&str; 8] = [
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
];
/// Addresses by which default routes are found, without a packet. Those for documentation first; a
/// host that keeps off what nobody may have (bogons) routes the second ones.
const BEHIND_DEFAULT_ROUTES: [&str; 4] = [
    "192.0.2.1:9",
    "1.1.1.1:9",
    "[2001:db8::1]:9",
    "[2606:4700::1111]:9",
];
/// This host's IPv6 addresses, one a line: the address, the interface's number, the length of the
/// prefix, the scope, flags, a name.
const IF_INET6: &str = "/proc/net/if_inet6";
/// `IFA_F_TEMPORARY`, `IFA_F_DADFAILED`, `IFA_F_DEPRECATED` and `IFA_F_TENTATIVE` of
/// linux/if_addr.h: not for long, or not yet.
const PASSING: u32 = 0x01 | 0x08 | 0x20 | 0x40;
/// `IFA_F_TEMPORARY`.
const TEMPORARY: u32 = 0x01;

/// What the daemon runs with.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) directory_socket: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) bpffs: PathBuf,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) mechanism: Mechanism,
    pub(crate) hook_scope: HookScope,
    pub(crate) beside_cilium: bool,
    pub(crate) accept_unseen_pods: bool,
    pub(crate) intercept: Intercept,
    /// Whether the node's addresses were found, not given: another may come.
    pub(crate) found_node: bool,
    pub(crate) guard_allow: Vec<IpNet>,
    pub(crate) pod_ranges: Vec<IpNet>,
    pub(crate) dns: Option<DnsConfig>,
    pub(crate) admin: AdminListen,
}

/// Where connections are steered to, and which are exempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intercept {
    pub(crate) node: NodeIps,
    /// One to [`MAX_INTERCEPT_PORTS`], each once, in order.
    pub(crate) ports: Vec<u16>,
    /// Zero: no socket is exempt.
    pub(crate) mark: u32,
}

/// A hooked connection and a translated one must not meet on a port: from one source port they
/// would be the same to conntrack, which then gives one of them another source port. By that a
/// hooked one's destination is not found, or found for the other.
impl Intercept {
    /// Where connect hooks steer to: all ports but the last.
    pub(crate) fn hook_ports(&self) -> &[u16] {
        match self.ports.split_last() {
            Some((_, others)) if !others.is_empty() => others,
            _ => &self.ports,
        }
    }

    /// Where nftables steers to: the last port, which conntrack makes do for any number of clients.
    pub(crate) fn packet_port(&self) -> u16 {
        self.ports.last().copied().unwrap_or_default()
    }
}

/// This host's intercept addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeIps {
    pub(crate) v4: Option<Ipv4Addr>,
    pub(crate) v6: Option<Ipv6Addr>,
}

/// The DNS server's share.
#[derive(Clone, Debug)]
pub(crate) struct DnsConfig {
    /// None: port 53 of the node's addresses.
    pub(crate) listen: Option<Vec<SocketAddr>>,
    pub(crate) zone: Zone,
    pub(crate) clients: Vec<IpNet>,
    /// Servers for the names that are not ours.
    pub(crate) forward: Vec<SocketAddr>,
}

impl DnsConfig {
    /// Where it is answered on a node with these addresses.
    pub(crate) fn addresses(&self, node: NodeIps) -> Vec<SocketAddr> {
        let of_node = || node.all().map(|ip| SocketAddr::new(ip, DNS_PORT)).collect();
        self.listen.clone().unwrap_or_else(of_node)
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

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        if args.hooks == HookScope::Host && args.mechanism == Mechanism::Ebpf {
            return Err(ConfigError::HostHooksAlone);
        }
        let node = NodeIps::find(&args.node_ip)?;
        let zone: Zone = args.places.dns_zone.parse()?;
        Ok(Self {
            directory_socket: args.directory_socket,
            state_dir: args.places.state_dir,
            bpffs: args.places.bpffs,
            cgroup: args.cgroup,
            mechanism: args.mechanism,
            hook_scope: args.hooks,
            beside_cilium: args.beside_cilium,
            accept_unseen_pods: args.accept_unseen_pods,
            dns: dns(&args.dns_listen, zone, args.dns_client, node, args.forward)?,
            found_node: args.node_ip.is_empty(),
            intercept: Intercept {
                node,
                ports: ports(args.intercept_port)?,
                mark: args.mark,
            },
            guard_allow: args.guard_allow,
            admin: AdminListen {
                program: "culvert-redirector",
                address: args.admin_listen,
                metrics: args.metrics_listen,
                socket: args.admin_socket,
            },
            pod_ranges: args.pod_range,
        })
    }
}

impl NodeIps {
    /// The given addresses, or those that the host uses towards its default routes.
    fn find(given: &[IpAddr]) -> Result<Self, ConfigError> {
        let mut found = Self::default();
        for ip in given {
            let before = match ip {
                IpAddr::V4(v4) => found.v4.replace(*v4).map(IpAddr::V4),
                IpAddr::V6(v6) => found.v6.replace(*v6).map(IpAddr::V6),
            };
            if let Some(first) = before {
                return Err(ConfigError::TwoOfAFamily { first, second: *ip });
            }
        }
        found.check()?;
        if given.is_empty() {
            found = Self::by_routing();
        }
        if found == Self::default() {
            Err(ConfigError::NoNodeIp)
        } else {
            Ok(found)
        }
    }

    /// The source addresses towards default routes. Nothing is sent.
    pub(crate) fn by_routing() -> Self {
        let mut found = Self::default();
        for towards in BEHIND_DEFAULT_ROUTES {
            match source(towards) {
                Some(IpAddr::V4(v4)) => _ = found.v4.get_or_insert(v4),
                Some(IpAddr::V6(v6)) => found.v6 = found.v6.or_else(|| lasting(v6)),
                None => {}
            }
        }
        found
    }

    /// These, and of the families that are missing those of `others`.
    pub(crate) fn or(self, others: Self) -> Self {
        Self {
            v4: self.v4.or(others.v4),
            v6: self.v6.or(others.v6),
        }
    }

    /// Whether the host has them, still: what is steered to an address that it has lost leaves it.
    pub(crate) fn check(self) -> Result<(), ConfigError> {
        // Not by binding them: `ip_nonlocal_bind` lets a program bind any.
        let own: Vec<IpAddr> = addresses_of_this_host();
        self.all()
            .find(|ip| !own.contains(ip))
            .map_or(Ok(()), |ip| Err(ConfigError::NotOurs(ip)))
    }

    pub(crate) fn all(self) -> impl Iterator<Item = IpAddr> {
        self.v4
            .map(IpAddr::V4)
            .into_iter()
            .chain(self.v6.map(IpAddr::V6))
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

/// None if the kernel does not say: then nothing is known to be this host's.
fn addresses_of_this_host() -> Vec<IpAddr> {
    let addresses = getifaddrs()
        .into_iter()
        .flatten()
        .filter_map(|interface| interface.address);
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    addresses.filter_map(ip).collect()
}

fn source(towards: &str) -> Option<IpAddr> {
    let towards: SocketAddr = towards.parse().ok()?;
    let any: IpAddr = if towards.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(towards).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// The address itself, or in place of a temporary one (RFC 8981) a lasting one of the same network.
fn lasting(chosen: Ipv6Addr) -> Option<Ipv6Addr> {
    lasting_in(
        &std::fs::read_to_string(IF_INET6).unwrap_or_default(),
        chosen,
    )
}

fn lasting_in(if_inet6: &str, chosen: Ipv6Addr) -> Option<Ipv6Addr> {
    let addresses: Vec<_> = if_inet6.lines().filter_map(Ipv6Line::parse).collect();
    let Some(own) = addresses.iter().find(|address| address.ip == chosen) else {
        return Some(chosen);
    };
    if own.flags & TEMPORARY == 0 {
        return Some(chosen);
    }
    let alike =
        |other: &&Ipv6Line| other.interface == own.interface && other.network() == own.network();
    addresses
        .iter()
        .filter(alike)
        .find(|other| other.flags & PASSING == 0)
        .map(|other| other.ip)
}

/// A line of [`IF_INET6`].
struct Ipv6Line<'a> {
    ip: Ipv6Addr,
    interface: &'a str,
    length: u8,
    flags: u32,
}

impl<'a> Ipv6Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let [ip, interface, length, _scope, flags, ..] =
            *line.split_whitespace().collect::<Vec<_>>()
        else {
            return None;
        };
        let ip = u128::from_str_radix(ip, 16).ok()?.into();
        let length = u8::from_str_radix(length, 16).ok()?;
        Some(Self {
            ip,
            interface,
            length,
            flags: u32::from_str_radix(flags, 16).ok()?,
        })
    }

    fn network(&self) -> Option<IpNet> {
        IpNet::new(self.ip.into(), self.length)
            .ok()
            .map(|net| net.trunc())
    }
}

fn dns(
    listen: &[DnsListen],
    zone: Zone,
    clients: Vec<IpNet>,
    node: NodeIps,
    forward: Vec<SocketAddr>,
) -> Result<Option<DnsConfig>, ConfigError> {
    let listen = match listen {
        [] => None,
        [DnsListen::None] => return Ok(None),
        several => Some(
            several
                .iter()
                .map(|listen| match listen {
                    DnsListen::At(address) => Ok(*address),
                    DnsListen::None => Err(ConfigError::NoneAndMore),
                })
                .collect::<Result<_, _>>()?,
        ),
    };
    let clients = if clients.is_empty() {
        DNS_CLIENTS
            .iter()
            .filter_map(|cidr| cidr.parse().ok())
            .collect()
    } else {
        clients
    };
    let config = DnsConfig {
        listen,
        zone,
        clients,
        forward,
    };
    let own = addresses_of_this_host();
    let is_ours = |server: &SocketAddr, listen: &SocketAddr| {
        let everywhere = listen.ip().is_unspecified()
            && (own.contains(&server.ip()) || server.ip().is_loopback());
        server.port() == listen.port() && (server.ip() == listen.ip() || everywhere)
    };
    let addresses = config.addresses(node);
    match config
        .forward
        .iter()
        .find(|server| addresses.iter().any(|listen| is_ours(server, listen)))
    {
        Some(own) => Err(ConfigError::ForwardToItself(*own)),
        None => Ok(Some(config)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        let common = ["culvert-redirector", "--node-ip", "127.0.0.1"];
        Config::try_from(Args::try_parse_from(common.iter().chain(flags)).unwrap())
    }

    #[test]
    fn dns_listens_on_the_node_ip_unless_told_otherwise() {
        let found = config(&[]).unwrap();
        assert_eq!(
            found.dns.unwrap().addresses(found.intercept.node),
            ["127.0.0.1:53".parse().unwrap()]
        );
        assert!(config(&["--dns-listen", "none"]).unwrap().dns.is_none());
        assert!(matches!(
            config(&["--dns-listen", "none,127.0.0.1:5"]),
            Err(ConfigError::NoneAndMore)
        ));
    }

    #[test]
    fn hooks_of_the_host_alone_leave_pods_to_somebody() {
        assert!(matches!(
            config(&["--hooks", "host", "--mechanism", "ebpf"]),
            Err(ConfigError::HostHooksAlone)
        ));
        assert_eq!(
            config(&["--hooks", "host"]).unwrap().hook_scope,
            HookScope::Host
        );
    }

    #[test]
    fn names_are_not_forwarded_to_ourselves() {
        let forward = |listen: &str, to: &str| config(&["--dns-listen", listen, "--forward", to]);
        for (listen, to) in [
            ("127.0.0.1:53", "127.0.0.1"),
            ("0.0.0.0:53", "127.0.0.1:53"),
            ("[::]:5", "127.0.0.1:5"),
        ] {
            assert!(
                matches!(forward(listen, to), Err(ConfigError::ForwardToItself(_))),
                "{listen} {to}"
            );
        }
        let servers = forward("127.0.0.1:53", "127.0.0.53,[::1]:54")
            .unwrap()
            .dns
            .unwrap()
            .forward;
        assert_eq!(
            servers,
            [
                "127.0.0.53:53".parse().unwrap(),
                "[::1]:54".parse().unwrap()
            ]
        );
    }

    #[test]
    fn a_temporary_address_gives_way_to_a_lasting_one_of_its_network() {
        let lines = "20010db8000000010000000000000077 02 40 00 01     eth0\n\
                     20010db8000000010000000000000066 02 40 00 20     eth0\n\
                     20010db8000000010000000000000055 02 40 00 80     eth0\n\
                     fe800000000000000000000000000001 02 40 20 80     eth0\n\
                     20010db8000000020000000000000044 03 40 00 01     eth1\n";
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        assert_eq!(
            lasting_in(lines, ip("2001:db8:0:1::77")),
            Some(ip("2001:db8:0:1::55"))
        );
        assert_eq!(
            lasting_in(lines, ip("2001:db8:0:1::55")),
            Some(ip("2001:db8:0:1::55"))
        );
        assert_eq!(
            lasting_in(lines, ip("2001:db8:0:2::44")),
            None,
            "it has no other"
        );
        assert_eq!(lasting_in("", ip("2001:db8::1")), Some(ip("2001:db8::1")));
    }

    #[test]
    fn every_default_client_range_is_one() {
        assert_eq!(
            config(&[]).unwrap().dns.unwrap().clients.len(),
            DNS_CLIENTS.len()
        );
    }

    #[test]
    fn one_node_ip_a_family_and_only_our_own() {
        assert!(matches!(
            config(&["--node-ip", "127.0.0.2"]),
            Err(ConfigError::TwoOfAFamily { .. })
        ));
        for foreign in ["192.0.2.77", "0.0.0.0", "::"] {
            let foreign =
                Args::try_parse_from(["culvert-redirector", "--node-ip", foreign]).unwrap();
            assert!(matches!(
                Config::try_from(foreign),
                Err(ConfigError::NotOurs(_))
            ));
        }
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
