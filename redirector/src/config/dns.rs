//! The DNS server's configuration.

use std::net::SocketAddr;

use culvert_api::Zone;
use ipnet::IpNet;

use super::node_ips::addresses_of_this_host;
use super::{ConfigError, NodeIps};
use crate::args::{DNS_PORT, DnsListen};

/// Default of `--dns-client`: clients in this host's pods and in private networks, not the internet.
const DNS_CLIENTS: [&str; 6] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
    "fe80::/10",
];
/// The DNS server's configuration.
#[derive(Clone, Debug)]
pub(crate) struct DnsConfig {
    /// `None`: port 53 of the node's addresses.
    pub(crate) listen: Option<Vec<SocketAddr>>,
    pub(crate) zone: Zone,
    pub(crate) clients: Vec<IpNet>,
    /// Servers that other names are forwarded to.
    pub(crate) forward: Vec<SocketAddr>,
}

impl DnsConfig {
    /// The addresses that DNS is answered on, on a node with these addresses.
    pub(crate) fn addresses(&self, node: NodeIps) -> Vec<SocketAddr> {
        match &self.listen {
            Some(listen) => listen.clone(),
            None => node.all().map(|ip| SocketAddr::new(ip, DNS_PORT)).collect(),
        }
    }

    /// The server of `forward` that is this program itself, if any.
    fn forwards_to_itself(&self, node: NodeIps) -> Option<SocketAddr> {
        let own = addresses_of_this_host();
        let addresses = self.addresses(node);
        for server in &self.forward {
            for listen in &addresses {
                let everywhere = listen.ip().is_unspecified()
                    && (own.contains(&server.ip()) || server.ip().is_loopback());
                if server.port() == listen.port() && (server.ip() == listen.ip() || everywhere) {
                    return Some(*server);
                }
            }
        }
        None
    }
}

/// The DNS server's configuration; `None` with `--dns-listen none`.
pub(super) fn dns(
    listen: &[DnsListen],
    zone: Zone,
    clients: Vec<IpNet>,
    node: NodeIps,
    forward: Vec<SocketAddr>,
) -> Result<Option<DnsConfig>, ConfigError> {
    let listen = match listen {
        [] => None,
        [DnsListen::None] => return Ok(None),
        several => Some(addresses(several)?),
    };
    let config = DnsConfig {
        listen,
        zone,
        clients: if clients.is_empty() {
            default_clients()
        } else {
            clients
        },
        forward,
    };
    match config.forwards_to_itself(node) {
        Some(own) => Err(ConfigError::ForwardToItself(own)),
        None => Ok(Some(config)),
    }
}

fn addresses(listen: &[DnsListen]) -> Result<Vec<SocketAddr>, ConfigError> {
    let mut addresses = Vec::new();
    for listen in listen {
        match listen {
            DnsListen::At(address) => addresses.push(*address),
            DnsListen::None => return Err(ConfigError::NoneAndMore),
        }
    }
    Ok(addresses)
}

fn default_clients() -> Vec<IpNet> {
    DNS_CLIENTS
        .iter()
        .filter_map(|cidr| cidr.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

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
    fn every_default_client_range_is_one() {
        assert_eq!(
            config(&[]).unwrap().dns.unwrap().clients.len(),
            DNS_CLIENTS.len()
        );
    }
}
