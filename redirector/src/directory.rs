//! The redirector's copy of the proxy's directory.

mod connect;
mod daemon_set;
mod reconnect;
mod saved;
mod update;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use culvert_api::{NodeKind, NodeName, NodeNames, Routing, Zone};
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

pub(crate) use daemon_set::{DaemonSetStatus, DaemonSetWatch};
pub(crate) use saved::SavedDirectory;
pub(crate) use watch::{Feed, Watch};

/// The nodes by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// The proxy's count of changes.
    pub(crate) revision: u64,
    pub(crate) ranges: Ranges,
    pub(crate) nodes: BTreeMap<NodeName, Node>,
    /// Cloud nodes, which clients reach without a tunnel, with their own addresses.
    #[serde(default)]
    pub(crate) clouds: BTreeMap<NodeName, Vec<IpAddr>>,
}

/// The ranges that VIPs are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ranges {
    pub(crate) vip4: Option<Ipv4Net>,
    pub(crate) vip6: Option<Ipv6Net>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) addresses: Vec<Address>,
    pub(crate) vip4: Option<Ipv4Addr>,
    pub(crate) vip6: Option<Ipv6Addr>,
    /// Ports that are steered on the node's addresses.
    pub(crate) ports: BTreeSet<u16>,
    pub(crate) online: bool,
    /// A second zone in which the node's name is answered; absolute, in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<Zone>,
    /// Destinations in the node's network that its agent reaches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) behind: Vec<Behind>,
}

/// One of the destinations behind a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Behind {
    pub(crate) destination: SocketAddr,
    pub(crate) routing: Routing,
    /// Why it is not routed, for people to read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
}

/// One of a node's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    pub(crate) routing: Routing,
    /// Why it is not routed, for people to read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
}

/// The names of a directory's nodes, in the zone of `--dns-zone`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names<'a> {
    pub(crate) directory: &'a Directory,
    pub(crate) zone: &'a Zone,
}

impl NodeNames for Names<'_> {
    fn zone(&self) -> &Zone {
        self.zone
    }

    fn kind(&self, name: &NodeName) -> Option<NodeKind<'_>> {
        if let Some(node) = self.directory.nodes.get(name) {
            return Some(NodeKind::Edge(node.zone.as_ref()));
        }
        if self.directory.clouds.contains_key(name) {
            return Some(NodeKind::Cloud);
        }
        None
    }

    fn is_own_zone(&self, zone: &str) -> bool {
        let mut own = self.directory.nodes.values().flat_map(|node| &node.zone);
        own.any(|own| own.as_str() == zone)
    }
}

impl Directory {
    /// Whether both are equal except for which nodes are online, which does not outlive the proxy.
    pub(crate) fn steers_like(&self, other: &Self) -> bool {
        if self.ranges != other.ranges
            || self.clouds != other.clouds
            || self.nodes.len() != other.nodes.len()
        {
            return false;
        }
        self.nodes
            .iter()
            .zip(&other.nodes)
            .all(|(ours, theirs)| ours.0 == theirs.0 && offline(ours.1) == offline(theirs.1))
    }

    /// The nodes of each address and VIP.
    pub(crate) fn owners(&self) -> BTreeMap<IpAddr, Vec<&NodeName>> {
        let mut owners = BTreeMap::<_, Vec<_>>::new();
        for (name, node) in &self.nodes {
            let vips = node
                .vip4
                .map(IpAddr::V4)
                .into_iter()
                .chain(node.vip6.map(IpAddr::V6));
            let addresses = node.addresses.iter().map(|address| address.ip);
            vips.chain(addresses)
                .for_each(|ip| owners.entry(ip).or_default().push(name));
        }
        owners
    }

    /// The node that has this VIP.
    pub(crate) fn node_of_vip(&self, vip: IpAddr) -> Option<&NodeName> {
        for (name, node) in &self.nodes {
            let has_vip = match vip {
                IpAddr::V4(v4) => node.vip4 == Some(v4),
                IpAddr::V6(v6) => node.vip6 == Some(v6),
            };
            if has_vip {
                return Some(name);
            }
        }
        None
    }

    /// What nodes have behind them at this address.
    pub(crate) fn behind(&self, ip: IpAddr) -> Vec<(&NodeName, &Behind)> {
        let mut found = Vec::new();
        for (name, node) in &self.nodes {
            for behind in &node.behind {
                if behind.destination.ip() == ip {
                    found.push((name, behind));
                }
            }
        }
        found
    }

    /// The nodes that have this address.
    pub(crate) fn nodes_of_address(&self, ip: IpAddr) -> Vec<(&NodeName, &Node, &Address)> {
        let mut found = Vec::new();
        for (name, node) in &self.nodes {
            for address in &node.addresses {
                if address.ip == ip {
                    found.push((name, node, address));
                }
            }
        }
        found
    }
}

/// The node as it is without a tunnel.
fn offline(node: &Node) -> Node {
    Node {
        online: false,
        ..node.clone()
    }
}

impl Ranges {
    /// Whether the address is a VIP, whether or not a node has it.
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(v4) => self.vip4.is_some_and(|range| range.contains(&v4)),
            IpAddr::V6(v6) => self.vip6.is_some_and(|range| range.contains(&v6)),
        }
    }
}

#[cfg(any(test, fuzzing))]
#[allow(
    clippy::unwrap_used,
    reason = "clippy knows only the tests as a place for it"
)]
pub(crate) mod examples {
    //! A small directory for the tests of other modules, and for fuzzing.

    use super::*;

    /// edge-1 alone at 10.0.3.7, edge-2 and edge-3 both at 192.168.1.10, edge-3 offline, edge-4
    /// with a protected address.
    pub(crate) fn directory() -> Directory {
        let range4: Ipv4Net = "198.18.0.0/15".parse().unwrap();
        let range6: Ipv6Net = "fd12:3456:789a:bcde::/64".parse().unwrap();
        Directory {
            revision: 7,
            ranges: Ranges {
                vip4: Some(range4),
                vip6: Some(range6),
            },
            nodes: BTreeMap::from([
                (
                    "edge-1".parse().unwrap(),
                    node(
                        1,
                        &[("10.0.3.7", Routing::Routed), ("fd00::7", Routing::Routed)],
                        true,
                    ),
                ),
                (
                    "edge-2".parse().unwrap(),
                    node(2, &[("192.168.1.10", Routing::Shared)], true),
                ),
                (
                    "edge-3".parse().unwrap(),
                    node(3, &[("192.168.1.10", Routing::Shared)], false),
                ),
                (
                    "edge-4".parse().unwrap(),
                    node(4, &[("10.0.0.1", Routing::Protected)], true),
                ),
            ]),
            clouds: BTreeMap::from([(
                "master-1".parse().unwrap(),
                vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            )]),
        }
    }

    fn node(number: u8, addresses: &[(&str, Routing)], online: bool) -> Node {
        Node {
            addresses: addresses
                .iter()
                .map(|(ip, routing)| Address {
                    ip: ip.parse().unwrap(),
                    routing: *routing,
                    reason: String::new(),
                })
                .collect(),
            vip4: Some(Ipv4Addr::new(198, 18, 0, number)),
            vip6: Some(format!("fd12:3456:789a:bcde::{number}").parse().unwrap()),
            ports: BTreeSet::from([9100, 10250]),
            online,
            zone: (number == 1).then(|| "plant.example".parse().unwrap()),
            behind: Vec::new(),
        }
    }
}
