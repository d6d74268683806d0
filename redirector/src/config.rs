//! The checked configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;

use culvert_redirector_common::MAX_INTERCEPT_PORTS;
use ipnet::IpNet;

use crate::args::{Args, DnsListen, Mechanism};
use crate::dns::{InvalidZone, Zone};

/// DNS' own port.
const DNS_PORT: u16 = 53;
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

/// What the daemon runs with.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) directory_socket: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) bpffs: PathBuf,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) mechanism: Mechanism,
    pub(crate) intercept: Intercept,
    pub(crate) guard_allow: Vec<IpNet>,
    pub(crate) pod_ranges: Vec<IpNet>,
    pub(crate) dns: Option<DnsConfig>,
    pub(crate) admin_listen: SocketAddr,
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

/// A hooked connection and a translated one must not meet on a port: from one source port they would be the same to conntrack,
/// which then gives one of them another source port. By that a hooked one's destination is not found, or found for the other.
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
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) zone: Zone,
    pub(crate) clients: Vec<IpNet>,
}

/// Flags that contradict each other or this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("--node-ip: {first} and {second} are of one family; give at most one IPv4 and one IPv6 address")]
    TwoOfAFamily { first: IpAddr, second: IpAddr },
    #[error("--node-ip: {0} is not an address of this host")]
    NotOurs(IpAddr),
    #[error("this host has no default route, so its address cannot be found; give it by --node-ip")]
    NoNodeIp,
    #[error("--intercept-port: give 1 to {MAX_INTERCEPT_PORTS} different ports, none of them 0; these are {0:?}")]
    Ports(Vec<u16>),
    #[error("--dns-listen: `none` stands alone")]
    NoneAndMore,
    #[error("--dns-zone")]
    Zone(#[from] InvalidZone),
}

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        let node = NodeIps::find(&args.node_ip)?;
        let zone: Zone = args.places.dns_zone.parse()?;
        Ok(Self {
            directory_socket: args.directory_socket,
            state_dir: args.places.state_dir,
            bpffs: args.places.bpffs,
            cgroup: args.cgroup,
            mechanism: args.mechanism,
            dns: dns(&args.dns_listen, node, zone, args.dns_client)?,
            intercept: Intercept { node, ports: ports(args.intercept_port)?, mark: args.mark },
            guard_allow: args.guard_allow,
            pod_ranges: args.pod_range,
            admin_listen: args.admin_listen,
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
        if found == Self::default() { Err(ConfigError::NoNodeIp) } else { Ok(found) }
    }

    /// The source addresses towards addresses kept for documentation: those of the default routes. Nothing is sent.
    fn by_routing() -> Self {
        let source = |bind: &str, towards: &str| {
            let socket = UdpSocket::bind(bind).ok()?;
            socket.connect(towards).ok()?;
            socket.local_addr().ok().map(|address| address.ip())
        };
        let v4 = source("0.0.0.0:0", "192.0.2.1:9");
        let v6 = source("[::]:0", "[2001:db8::1]:9");
        Self {
            v4: v4.and_then(|ip| if let IpAddr::V4(v4) = ip { Some(v4) } else { None }),
            v6: v6.and_then(|ip| if let IpAddr::V6(v6) = ip { Some(v6) } else { None }),
        }
    }

    /// Whether the host has them, still: what is steered to an address that it has lost leaves it.
    pub(crate) fn check(self) -> Result<(), ConfigError> {
        // Only an address of the host itself can be bound; the unspecified one is none.
        let foreign = |ip: &IpAddr| ip.is_unspecified() || TcpListener::bind((*ip, 0)).is_err();
        self.all().find(foreign).map_or(Ok(()), |ip| Err(ConfigError::NotOurs(ip)))
    }

    pub(crate) fn all(self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

fn ports(given: Vec<u16>) -> Result<Vec<u16>, ConfigError> {
    let mut unique = given.clone();
    unique.sort_unstable();
    unique.dedup();
    let fine = !given.contains(&0) && unique.len() == given.len() && (1..=MAX_INTERCEPT_PORTS).contains(&given.len());
    if fine { Ok(unique) } else { Err(ConfigError::Ports(given)) }
}

fn dns(listen: &[DnsListen], node: NodeIps, zone: Zone, clients: Vec<IpNet>) -> Result<Option<DnsConfig>, ConfigError> {
    let listen: Vec<SocketAddr> = match listen {
        [] => node.all().map(|ip| SocketAddr::new(ip, DNS_PORT)).collect(),
        [DnsListen::None] => return Ok(None),
        several => several
            .iter()
            .map(|listen| match listen {
                DnsListen::At(address) => Ok(*address),
                DnsListen::None => Err(ConfigError::NoneAndMore),
            })
            .collect::<Result<_, _>>()?,
    };
    let clients =
        if clients.is_empty() { DNS_CLIENTS.iter().filter_map(|cidr| cidr.parse().ok()).collect() } else { clients };
    Ok(Some(DnsConfig { listen, zone, clients }))
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
        assert_eq!(config(&[]).unwrap().dns.unwrap().listen, ["127.0.0.1:53".parse().unwrap()]);
        assert!(config(&["--dns-listen", "none"]).unwrap().dns.is_none());
        assert!(matches!(config(&["--dns-listen", "none,127.0.0.1:5"]), Err(ConfigError::NoneAndMore)));
    }

    #[test]
    fn every_default_client_range_is_one() {
        assert_eq!(config(&[]).unwrap().dns.unwrap().clients.len(), DNS_CLIENTS.len());
    }

    #[test]
    fn one_node_ip_a_family_and_only_our_own() {
        assert!(matches!(config(&["--node-ip", "127.0.0.2"]), Err(ConfigError::TwoOfAFamily { .. })));
        for foreign in ["192.0.2.77", "0.0.0.0", "::"] {
            let foreign = Args::try_parse_from(["culvert-redirector", "--node-ip", foreign]).unwrap();
            assert!(matches!(Config::try_from(foreign), Err(ConfigError::NotOurs(_))));
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
        assert_eq!(config(&["--intercept-port", "9,8"]).unwrap().intercept.ports, [8, 9]);
        for bad in ["0", "8,8", "1,2,3,4,5,6,7,8,9"] {
            assert!(matches!(config(&["--intercept-port", bad]), Err(ConfigError::Ports(_))), "{bad}");
        }
    }
}
