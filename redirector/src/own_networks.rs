//! The networks of this host. An edge address in one of them is not steered: its clients would lose
//! a neighbour of this host that has the same address.

use std::fmt;
use std::net::IpAddr;

use anyhow::{Context, Result};
use culvert_api::{NodeName, Routing};
use culvert_daemon::{InterfaceAddress, interface_addresses};
use ipnet::IpNet;
use nix::net::if_::InterfaceFlags;

use crate::directory::Directory;
use crate::mechanisms::vip_routes::Routes;

/// All networks that interfaces of this host are in or have routes to, and the exceptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnNetworks {
    networks: Vec<OwnNetwork>,
    /// `--steer-own-network`.
    steered: Vec<IpNet>,
}

/// A network that an interface of this host is in, or has a route to without a gateway, as hosts
/// have for pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OwnNetwork {
    net: IpNet,
    interface: String,
}

/// An address that is not steered, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Withheld {
    node: NodeName,
    ip: IpAddr,
    reason: String,
}

impl OwnNetworks {
    /// Reads the present networks. In the ranges `steered`, edge addresses are steered all the
    /// same.
    ///
    /// # Errors
    /// See [`interface_addresses`] and [`Routes::on_link`].
    pub(crate) async fn read(routes: &Routes, steered: &[IpNet]) -> Result<Self> {
        let addresses = interface_addresses().context("read the addresses of this host")?;
        let mut networks = Vec::new();
        for address in addresses {
            networks.extend(OwnNetwork::of(address));
        }
        for (net, interface) in routes.on_link().await? {
            networks.push(OwnNetwork { net, interface });
        }
        networks.sort();
        networks.dedup();
        Ok(Self {
            networks,
            steered: steered.to_vec(),
        })
    }

    /// Why an edge address is not steered.
    fn reason(&self, ip: IpAddr) -> Option<String> {
        if self.steered.iter().any(|range| range.contains(&ip)) {
            return None;
        }
        let own = self.networks.iter().find(|own| own.net.contains(&ip))?;
        Some(own.to_string())
    }

    /// The addresses of nodes, and of what is behind them, that are not steered.
    pub(crate) fn withheld(&self, directory: &Directory) -> Vec<Withheld> {
        let mut withheld = Vec::new();
        for (name, node) in &directory.nodes {
            let own = node.addresses.iter().map(|address| address.ip);
            let behind = node.behind.iter().map(|behind| behind.destination.ip());
            for ip in own.chain(behind) {
                if let Some(reason) = self.reason(ip) {
                    let node = name.clone();
                    withheld.push(Withheld { node, ip, reason });
                }
            }
        }
        withheld
    }

    /// The directory with these addresses as never to be steered.
    pub(crate) fn protect(&self, mut directory: Directory) -> Directory {
        for node in directory.nodes.values_mut() {
            for address in &mut node.addresses {
                if let Some(reason) = self.reason(address.ip) {
                    address.routing = Routing::Protected;
                    address.reason = reason;
                }
            }
            for behind in &mut node.behind {
                if let Some(reason) = self.reason(behind.destination.ip()) {
                    behind.routing = Routing::Protected;
                    behind.reason = reason;
                }
            }
        }
        directory
    }
}

impl OwnNetwork {
    /// The network of an address, if it can have other hosts.
    fn of(address: InterfaceAddress) -> Option<Self> {
        let has_others = address.flags.contains(InterfaceFlags::IFF_UP)
            && !address.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let net = IpNet::new(address.ip, address.prefix).ok()?.trunc();
        let is_single = net.prefix_len() == net.max_prefix_len();
        if !has_others || is_single {
            return None;
        }
        Some(Self {
            net,
            interface: address.interface,
        })
    }
}

impl fmt::Display for OwnNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { net, interface } = self;
        write!(f, "it is in {net}, a network of this host ({interface})")
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, ip, reason } = self;
        write!(f, "{ip} of {node}: {reason}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::examples;
    use crate::plan::{Destination, Freshness, plan};

    fn address(ip: &str, prefix: u8, flags: InterfaceFlags) -> InterfaceAddress {
        InterfaceAddress {
            interface: "br0".into(),
            flags,
            ip: ip.parse().unwrap(),
            prefix,
        }
    }

    fn networks(steered: &[&str]) -> OwnNetworks {
        let up = InterfaceFlags::IFF_UP;
        let addresses = [
            address("10.0.3.1", 24, up),
            address("fd00::7", 128, up),
            address("192.168.1.1", 24, InterfaceFlags::empty()),
            address("192.168.0.1", 16, up | InterfaceFlags::IFF_LOOPBACK),
        ];
        OwnNetworks {
            networks: addresses.into_iter().filter_map(OwnNetwork::of).collect(),
            steered: steered.iter().map(|range| range.parse().unwrap()).collect(),
        }
    }

    /// Whether edge-1's address of each family is steered.
    fn steered(networks: &OwnNetworks) -> [bool; 2] {
        let directory = networks.protect(examples::directory());
        let plan = plan(&directory, Freshness::Live);
        ["10.0.3.7:9100", "[fd00::7]:9100"].map(|address| {
            let destination = Destination::Edge(address.parse().unwrap());
            plan.destinations.contains_key(&destination)
        })
    }

    #[test]
    fn an_address_in_a_network_with_other_hosts_is_not_steered_but_on_the_operators_word() {
        assert_eq!(steered(&networks(&[])), [false, true]);
        assert_eq!(steered(&networks(&["10.0.0.0/16"])), [true, true]);
        assert_eq!(steered(&OwnNetworks::default()), [true, true]);
    }

    #[test]
    fn what_is_withheld_is_named_with_its_network() {
        let withheld = networks(&[]).withheld(&examples::directory());
        let [only] = &withheld[..] else {
            panic!("{withheld:?}")
        };
        let text = only.to_string();
        for part in ["10.0.3.7", "edge-1", "10.0.3.0/24", "br0"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let protected = networks(&[]).protect(examples::directory());
        let of_edge_1 = &protected.nodes[&"edge-1".parse().unwrap()].addresses;
        let routings: Vec<_> = of_edge_1.iter().map(|address| address.routing).collect();
        assert_eq!(routings, [Routing::Protected, Routing::Routed]);
    }
}
