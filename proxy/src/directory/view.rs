//! The directory as everybody else sees it: computed whole from the nodes, and the answers it gives. Pure.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use culvert_tunnel::NodeName;
use serde::Serialize;

use super::addresses::{AddressState, Protected, address_states};
use super::destination::{Destination, NodeCount, ResolveError, Target};
use super::node::NodeSpec;
use super::vips::{VipRanges, Vips};

/// The DNS zone that node names may be followed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zone(String);

/// A text that is no zone.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no DNS zone: write one such as edge.internal")]
pub(crate) struct InvalidZone(String);

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Zone {
    type Err = InvalidZone;

    /// A DNS name, such as `edge.internal`; upper case and a trailing dot are dropped.
    fn from_str(text: &str) -> Result<Self, InvalidZone> {
        let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        match NodeName::from_str(&lower) {
            Ok(_) => Ok(Self(lower)),
            Err(_) => Err(InvalidZone(text.to_owned())),
        }
    }
}

/// Who says that a node exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    /// `culvert-proxy token create`.
    TokenCreate,
    /// The file given with `--directory`.
    File,
}

/// What becomes of connections to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Routing {
    /// They go to the node.
    Routed,
    /// Refused: other nodes have the address too.
    Shared,
    /// Never steered: the cloud uses the address itself.
    Protected,
}

/// One of a node's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AddressView {
    pub(crate) ip: IpAddr,
    pub(crate) routing: Routing,
    /// Why it does not route; empty if it does.
    pub(crate) reason: String,
}

/// A node with all that the directory knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeView {
    pub(crate) name: NodeName,
    pub(crate) addresses: Vec<AddressView>,
    pub(crate) vip4: Ipv4Addr,
    pub(crate) vip6: Ipv6Addr,
    pub(crate) ports: Vec<u16>,
    /// Whether an agent of the node has a tunnel to a proxy.
    pub(crate) online: bool,
    pub(crate) source: Source,
}

/// How many nodes there are, by whether they have a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) online: usize,
    pub(crate) offline: usize,
}

impl Census {
    /// All of them.
    pub(crate) fn total(self) -> usize {
        self.online + self.offline
    }
}

/// What differs between two views.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Nodes that are new or changed, each whole.
    pub(crate) changed: Vec<NodeView>,
    /// Nodes that are gone.
    pub(crate) removed: Vec<NodeName>,
}

/// All nodes, and what leads to them.
#[derive(Clone, Debug)]
pub(crate) struct View {
    ranges: VipRanges,
    zone: Zone,
    nodes: BTreeMap<NodeName, NodeView>,
    addresses: BTreeMap<IpAddr, AddressState>,
    vips: HashMap<IpAddr, NodeName>,
}

/// What a view is computed from.
pub(crate) struct Given<'a> {
    pub(crate) nodes: &'a BTreeMap<NodeName, NodeSpec>,
    pub(crate) declared: &'a BTreeMap<NodeName, NodeSpec>,
    pub(crate) protected: &'a Protected,
    pub(crate) vips: &'a Vips,
    pub(crate) ranges: VipRanges,
    pub(crate) zone: &'a Zone,
}

impl View {
    /// All nodes are offline at first. Those without a VIP are left out: the caller allocates before.
    pub(crate) fn new(given: &Given<'_>) -> Self {
        let addresses = address_states(given.nodes, given.protected);
        let mut nodes = BTreeMap::new();
        let mut vips = HashMap::new();
        for (name, spec) in given.nodes {
            let Some(vip) = given.vips.of(name, &given.ranges) else { continue };
            vips.insert(IpAddr::V4(vip.v4), name.clone());
            vips.insert(IpAddr::V6(vip.v6), name.clone());
            let view = NodeView {
                name: name.clone(),
                addresses: spec.addresses.iter().map(|ip| address_view(*ip, &addresses[ip])).collect(),
                vip4: vip.v4,
                vip6: vip.v6,
                ports: spec.ports.clone(),
                online: false,
                source: if given.declared.contains_key(name) { Source::File } else { Source::TokenCreate },
            };
            nodes.insert(name.clone(), view);
        }
        Self { ranges: given.ranges, zone: given.zone.clone(), nodes, addresses, vips }
    }

    pub(crate) fn ranges(&self) -> VipRanges {
        self.ranges
    }

    pub(crate) fn zone(&self) -> &Zone {
        &self.zone
    }

    pub(crate) fn census(&self) -> Census {
        let online = self.nodes.values().filter(|node| node.online).count();
        Census { online, offline: self.nodes.len() - online }
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<&NodeView> {
        self.nodes.get(name)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.values()
    }

    /// Says whether the node has a tunnel; the node as it is now if that is news.
    pub(crate) fn set_online(&mut self, name: &NodeName, online: bool) -> Option<NodeView> {
        let node = self.nodes.get_mut(name).filter(|node| node.online != online)?;
        node.online = online;
        Some(node.clone())
    }

    /// The node that a destination leads to.
    pub(crate) fn resolve(&self, destination: &Destination) -> Result<Target, ResolveError> {
        match destination {
            Destination::Address(dialled) => self.by_address(*dialled),
            Destination::Name(name, port) => self.by_name(name, *port),
        }
    }

    fn by_address(&self, dialled: SocketAddr) -> Result<Target, ResolveError> {
        let (address, port) = (dialled.ip().to_canonical(), dialled.port());
        if self.ranges.contains(address) {
            let Some(node) = self.vips.get(&address) else {
                return Err(ResolveError::UnassignedVip { address });
            };
            return Ok(Target { node: node.clone(), address: self.preferred(node, Some(address)), port });
        }
        match self.addresses.get(&address) {
            Some(AddressState::Routed(node)) => Ok(Target { node: node.clone(), address: Some(address), port }),
            Some(AddressState::Shared(owners)) => Err(ResolveError::Shared { address, owners: owners.clone() }),
            Some(AddressState::Protected { owners, by }) => {
                Err(ResolveError::Protected { address, owners: owners.clone(), protection: by.to_string() })
            }
            None => Err(ResolveError::UnknownAddress { address, nodes: NodeCount(self.nodes.len()) }),
        }
    }

    fn by_name(&self, text: &str, port: u16) -> Result<Target, ResolveError> {
        let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let in_zone = lower.strip_suffix(&self.zone.0).and_then(|rest| rest.strip_suffix('.'));
        let known = |name: &str| NodeName::from_str(name).ok().filter(|name| self.nodes.contains_key(name));
        let Some(node) = known(&lower).or_else(|| in_zone.and_then(known)) else {
            return Err(ResolveError::UnknownName { name: text.to_owned(), nodes: NodeCount(self.nodes.len()) });
        };
        Ok(Target { address: self.preferred(&node, None), node, port })
    }

    /// The node's first address of the family that was dialled, else its first.
    fn preferred(&self, node: &NodeName, dialled: Option<IpAddr>) -> Option<IpAddr> {
        let addresses = &self.nodes.get(node)?.addresses;
        let same_family = |view: &&AddressView| dialled.is_some_and(|dialled| dialled.is_ipv4() == view.ip.is_ipv4());
        addresses.iter().find(same_family).or_else(|| addresses.first()).map(|view| view.ip)
    }

    /// What has changed since an older view.
    pub(crate) fn since(&self, older: &Self) -> Difference {
        let changed = self.nodes.iter().filter(|(name, node)| older.nodes.get(*name) != Some(*node));
        let removed = older.nodes.keys().filter(|name| !self.nodes.contains_key(*name));
        Difference { changed: changed.map(|(_, node)| node.clone()).collect(), removed: removed.cloned().collect() }
    }
}

fn address_view(ip: IpAddr, state: &AddressState) -> AddressView {
    let routing = match state {
        AddressState::Routed(_) => Routing::Routed,
        AddressState::Shared(_) => Routing::Shared,
        AddressState::Protected { .. } => Routing::Protected,
    };
    AddressView { ip, routing, reason: state.reason(ip) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::clock::UnixTime;

    fn view(nodes: &[(&str, &[&str])]) -> View {
        let node = |(name, addresses): &(&str, &[&str])| {
            let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
            (name.parse().unwrap(), NodeSpec { addresses, ports: vec![9100] })
        };
        let nodes: BTreeMap<NodeName, NodeSpec> = nodes.iter().map(node).collect();
        let protect = "10.96.0.0/12".parse().unwrap();
        let ranges = VipRanges::checked("198.18.0.0/15".parse().unwrap(), "fd00:1::/64".parse().unwrap(), &[]).unwrap();
        let vips = Vips::default().reconciled(nodes.keys(), &ranges, UnixTime::now()).unwrap();
        View::new(&Given {
            nodes: &nodes,
            declared: &BTreeMap::new(),
            protected: &Protected { ranges: vec![protect], host: BTreeSet::new() },
            vips: &vips,
            ranges,
            zone: &"Edge.Internal.".parse().unwrap(),
        })
    }

    fn target(view: &View, destination: &str) -> (String, Option<String>, u16) {
        let target = view.resolve(&destination.parse().unwrap()).unwrap();
        (target.node.to_string(), target.address.map(|address| address.to_string()), target.port)
    }

    fn refusal(view: &View, destination: &str) -> String {
        view.resolve(&destination.parse().unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn an_address_leads_to_its_one_node_however_it_is_written() {
        let view = view(&[("edge-1", &["10.0.3.7", "2001:db8::7"])]);
        for dialled in ["10.0.3.7", "[::ffff:10.0.3.7]"] {
            assert_eq!(target(&view, &format!("{dialled}:80")), ("edge-1".into(), Some("10.0.3.7".into()), 80));
        }
        assert_eq!(target(&view, "[2001:db8::7]:80").1.unwrap(), "2001:db8::7");
    }

    #[test]
    fn a_vip_leads_to_its_node_on_any_port_and_keeps_the_family() {
        let view = view(&[("edge-1", &["10.0.3.7", "2001:db8::7"]), ("edge-2", &["10.0.3.8"]), ("edge-3", &[])]);
        assert_eq!(target(&view, "198.18.0.1:4711"), ("edge-1".into(), Some("10.0.3.7".into()), 4711));
        assert_eq!(target(&view, "[fd00:1::1]:1").1.unwrap(), "2001:db8::7");
        assert_eq!(target(&view, "[fd00:1::2]:1").1.unwrap(), "10.0.3.8");
        assert_eq!(target(&view, "198.18.0.3:1").1, None);
        assert!(refusal(&view, "198.18.0.4:1").contains("in the VIP range but no node has it"));
    }

    #[test]
    fn names_are_bare_or_in_the_zone_in_any_case_with_or_without_the_dot() {
        let view = view(&[("edge-1", &["10.0.3.7"]), ("press.hall-2", &[])]);
        for name in ["edge-1", "EDGE-1.", "edge-1.edge.internal", "Edge-1.Edge.Internal."] {
            assert_eq!(target(&view, &format!("{name}:9100")).0, "edge-1", "{name}");
        }
        assert_eq!(target(&view, "press.hall-2.edge.internal:1").0, "press.hall-2");
        for name in ["edge-2", "edge-1.example", "edge-1..", "edge.internal", "edge-1edge.internal", "edge_1"] {
            assert!(refusal(&view, &format!("{name}:1")).contains("the directory has 2 nodes"), "{name}");
        }
    }

    #[test]
    fn shared_and_protected_addresses_are_refused_and_their_names_work() {
        let view = view(&[("edge-2", &["192.168.1.10"]), ("edge-3", &["192.168.1.10"]), ("edge-4", &["10.96.0.1"])]);
        assert_eq!(refusal(&view, "192.168.1.10:80"), "192.168.1.10 belongs to edge-2 and edge-3: use their names");
        assert!(refusal(&view, "10.96.0.1:443").contains("protected range 10.96.0.0/12"));
        assert_eq!(target(&view, "edge-3:80"), ("edge-3".into(), Some("192.168.1.10".into()), 80));
        assert!(refusal(&view, "10.1.1.1:80").contains("no edge node has the address 10.1.1.1"));
    }

    #[test]
    fn a_second_owner_changes_both_nodes() {
        let before = view(&[("edge-2", &["192.168.1.10"]), ("edge-1", &["10.0.3.7"])]);
        let after = view(&[("edge-2", &["192.168.1.10"]), ("edge-3", &["192.168.1.10"]), ("edge-1", &["10.0.3.7"])]);
        let names =
            |difference: &Difference| difference.changed.iter().map(|node| node.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&after.since(&before)), ["edge-2", "edge-3"]);
        let back = before.since(&after);
        assert_eq!((names(&back), back.removed.len()), (vec!["edge-2".to_owned()], 1));
        assert_eq!(after.since(&after), Difference::default());
    }
}
