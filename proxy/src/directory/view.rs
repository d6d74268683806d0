//! The directory as everybody else sees it: computed whole from the nodes, and the answers it gives. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use culvert_tunnel::NodeName;
use serde::{Deserialize, Serialize};

use super::addresses::{AddressState, Protected, address_states};
use super::cluster::CloudNode;
use super::destination::{Destination, NodeCount, ResolveError, Target};
use super::node::NodeSpec;
use super::vips::{VipRanges, Vips};

/// The DNS zone that node names may be followed by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

impl TryFrom<String> for Zone {
    type Error = InvalidZone;

    fn try_from(text: String) -> Result<Self, InvalidZone> {
        text.parse()
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.0
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
    /// The Kubernetes cluster.
    Cluster,
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
    /// `<node>.<zone>` is the node, besides `--dns-zone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<Zone>,
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
    /// All cloud nodes, if any of them is new, changed or gone.
    pub(crate) clouds: Option<Clouds>,
}

/// The cluster's cloud nodes by name. Clones share them.
pub(crate) type Clouds = Arc<BTreeMap<NodeName, CloudNode>>;

/// All nodes, and what leads to them.
#[derive(Clone, Debug)]
pub(crate) struct View {
    ranges: VipRanges,
    zone: Zone,
    nodes: BTreeMap<NodeName, NodeView>,
    addresses: BTreeMap<IpAddr, AddressState>,
    vips: HashMap<IpAddr, NodeName>,
    /// Dialled at the node's 127.0.0.1.
    localhost_ports: BTreeSet<u16>,
    clouds: Clouds,
}

/// What a view is computed from.
pub(crate) struct Given<'a> {
    pub(crate) nodes: &'a BTreeMap<NodeName, NodeSpec>,
    pub(crate) source: &'a dyn Fn(&NodeName) -> Source,
    pub(crate) protected: &'a Protected,
    pub(crate) vips: &'a Vips,
    pub(crate) ranges: VipRanges,
    pub(crate) zone: &'a Zone,
    pub(crate) localhost_ports: BTreeSet<u16>,
    pub(crate) clouds: Clouds,
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
                source: (given.source)(name),
                zone: spec.zone.clone(),
            };
            nodes.insert(name.clone(), view);
        }
        let (localhost_ports, clouds) = (given.localhost_ports.clone(), given.clouds.clone());
        Self { ranges: given.ranges, zone: given.zone.clone(), nodes, addresses, vips, localhost_ports, clouds }
    }

    pub(crate) fn ranges(&self) -> VipRanges {
        self.ranges
    }

    pub(crate) fn clouds(&self) -> &Clouds {
        &self.clouds
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
        let mut target = match destination {
            Destination::Address(dialled) => self.by_address(*dialled),
            Destination::Name(name, port) => self.by_name(name, *port),
        }?;
        if self.localhost_ports.contains(&target.port) {
            target.address = None;
        }
        Ok(target)
    }

    /// The cloud node that a destination leads to, and the address to dial.
    pub(crate) fn cloud(&self, destination: &Destination) -> Option<(NodeName, SocketAddr)> {
        match destination {
            Destination::Address(dialled) => {
                let address = dialled.ip().to_canonical();
                let (node, _) = self.clouds.iter().find(|(_, node)| node.addresses.contains(&address))?;
                Some((node.clone(), SocketAddr::new(address, dialled.port())))
            }
            Destination::Name(text, port) => {
                let any_zone = |zone: &str| {
                    zone == self.zone.0
                        || self.nodes.values().any(|node| node.zone.as_ref().is_some_and(|z| z.0 == zone))
                };
                let is_named =
                    |name: &NodeName, zone: Option<&str>| self.clouds.contains_key(name) && zone.is_none_or(any_zone);
                let node = named(text, is_named)?;
                let address = *self.clouds.get(&node)?.addresses.first()?;
                Some((node, SocketAddr::new(address, *port)))
            }
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
        let is_named = |name: &NodeName, zone: Option<&str>| {
            let own = |node: &NodeView| node.zone.as_ref().is_some_and(|own| zone == Some(own.0.as_str()));
            self.nodes.get(name).is_some_and(|node| zone.is_none_or(|zone| zone == self.zone.0) || own(node))
        };
        let Some(node) = named(text, is_named) else {
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
        Difference {
            changed: changed.map(|(_, node)| node.clone()).collect(),
            removed: removed.cloned().collect(),
            clouds: (self.clouds != older.clouds).then(|| self.clouds.clone()),
        }
    }
}

/// The node that `text` names, bare or followed by a zone, in any case and with or without a last dot.
fn named(text: &str, is_named: impl Fn(&NodeName, Option<&str>) -> bool) -> Option<NodeName> {
    let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let splits = lower.match_indices('.').map(|(dot, _)| (&lower[..dot], Some(&lower[dot + 1..])));
    let mut readings = std::iter::once((lower.as_str(), None)).chain(splits);
    readings.find_map(|(node, zone)| node.parse().ok().filter(|node| is_named(node, zone)))
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
    use super::*;
    use crate::clock::UnixTime;

    fn view(nodes: &[(&str, &[&str])]) -> View {
        let node = |(name, addresses): &(&str, &[&str])| {
            let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
            (
                name.parse().unwrap(),
                NodeSpec { addresses, ports: vec![9100], zone: Some("plant.example".parse().unwrap()) },
            )
        };
        let nodes: BTreeMap<NodeName, NodeSpec> = nodes.iter().map(node).collect();
        let protect = "10.96.0.0/12".parse().unwrap();
        let ranges = VipRanges::checked("198.18.0.0/15".parse().unwrap(), "fd00:1::/64".parse().unwrap(), &[]).unwrap();
        let vips = Vips::default().reconciled(nodes.keys(), &ranges, UnixTime::now()).unwrap();
        let cloud = CloudNode { addresses: vec!["10.0.0.1".parse().unwrap()] };
        View::new(&Given {
            nodes: &nodes,
            source: &|_| Source::File,
            protected: &Protected { ranges: vec![protect], ..Protected::default() },
            vips: &vips,
            ranges,
            zone: &"Edge.Internal.".parse().unwrap(),
            localhost_ports: [10266].into(),
            clouds: Arc::new([("master-1".parse().unwrap(), cloud)].into()),
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
    fn a_node_answers_to_its_own_zone_too_and_a_cloud_node_to_all() {
        let view = view(&[("edge-1", &["10.0.3.7"])]);
        assert_eq!(target(&view, "edge-1.plant.example:80").0, "edge-1");
        refusal(&view, "edge-1.other.example:80");
        let cloud = |text: &str| view.cloud(&text.parse().unwrap()).map(|(node, address)| format!("{node} {address}"));
        let found = Some("master-1 10.0.0.1:443".to_owned());
        for text in ["master-1:443", "Master-1.edge.internal.:443", "master-1.plant.example:443", "10.0.0.1:443"] {
            assert_eq!(cloud(text), found, "{text}");
        }
        for text in ["edge-1:443", "master-1.other.example:443", "10.0.3.7:443"] {
            assert_eq!(cloud(text), None, "{text}");
        }
        refusal(&view, "master-1:443");
    }

    #[test]
    fn localhost_ports_are_dialled_at_the_nodes_loopback_whatever_was_dialled() {
        let view = view(&[("edge-1", &["10.0.3.7"])]);
        for dialled in ["10.0.3.7", "198.18.0.1", "edge-1"] {
            assert_eq!(target(&view, &format!("{dialled}:10266")).1, None, "{dialled}");
            assert_eq!(target(&view, &format!("{dialled}:9100")).1, Some("10.0.3.7".into()), "{dialled}");
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
