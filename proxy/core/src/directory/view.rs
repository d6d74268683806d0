//! The directory as readers see it: computed from all nodes at once, with the answers to lookups.
//! Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use culvert_api::{
    NodeKind, NodeName, NodeNames, NotNamed, Routing, Zone, dial_instead, node_named,
};
use serde::Serialize;

use super::Presence;
use super::addresses::{AddressState, Protected, address_states};
use super::behind::{self, behind_states};
use super::cluster_nodes::{CloudNode, LeftOut};
use super::destination::{Destination, NodeCount, ResolveError, Target};
use super::node::NodeSpec;
use super::vips::{VipRanges, Vips};

/// The source of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `culvert token create`.
    TokenCreate,
    /// The file given with `--directory`.
    File,
    /// The Kubernetes cluster.
    Cluster,
    /// The proxy that this one follows.
    Primary,
}

/// One of a node's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddressView {
    /// The address.
    pub ip: IpAddr,
    /// What happens to connections to it.
    pub routing: Routing,
    /// The reason why it does not route; empty if it does.
    pub reason: String,
}

/// One of the destinations behind a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BehindView {
    /// The destination behind the node.
    pub destination: SocketAddr,
    /// What happens to connections to it.
    pub routing: Routing,
    /// The reason why it does not route; empty if it does.
    pub reason: String,
}

/// A node with all its properties in the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// Its name.
    pub name: NodeName,
    /// Its edge addresses.
    pub addresses: Vec<AddressView>,
    /// Its VIP of IPv4.
    pub vip4: Ipv4Addr,
    /// Its VIP of IPv6.
    pub vip6: Ipv6Addr,
    /// Its steered ports.
    pub ports: Vec<u16>,
    /// Whether an agent of the node has a tunnel to a proxy.
    pub online: bool,
    /// Who made it.
    pub source: Source,
    /// A further zone: `<node>.<zone>` is the node too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<Zone>,
    /// The destinations behind it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<BehindView>,
}

/// The number of nodes, by whether they have a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    pub online: usize,
    pub offline: usize,
}

impl Census {
    /// All of them.
    pub fn total(self) -> usize {
        self.online + self.offline
    }
}

/// The differences between two views.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Nodes that are new or changed, each completely.
    pub(crate) changed: Vec<NodeView>,
    /// Nodes that were deleted.
    pub(crate) removed: Vec<NodeName>,
    /// All cloud nodes, if any of them is new, changed or deleted.
    pub(crate) clouds: Option<Clouds>,
}

/// The cluster's cloud nodes by name. Clones share them.
pub type Clouds = Arc<BTreeMap<NodeName, CloudNode>>;

/// All nodes, with their names, addresses and VIPs.
#[derive(Clone, Debug)]
pub(crate) struct View {
    ranges: VipRanges,
    zone: Zone,
    nodes: BTreeMap<NodeName, NodeView>,
    addresses: BTreeMap<IpAddr, AddressState>,
    behind: BTreeMap<SocketAddr, AddressState>,
    vips: HashMap<IpAddr, NodeName>,
    /// Dialled at the node's 127.0.0.1.
    localhost_ports: BTreeSet<u16>,
    clouds: Clouds,
    left_out: BTreeSet<LeftOut>,
}

/// The inputs of a view.
pub(crate) struct ViewInput<'a> {
    pub(crate) nodes: &'a BTreeMap<NodeName, NodeSpec>,
    pub(crate) source: &'a dyn Fn(&NodeName) -> Source,
    pub(crate) protected: &'a Protected,
    pub(crate) vips: &'a Vips,
    pub(crate) ranges: VipRanges,
    pub(crate) zone: &'a Zone,
    pub(crate) localhost_ports: BTreeSet<u16>,
    pub(crate) clouds: Clouds,
    pub(crate) left_out: BTreeSet<LeftOut>,
}

impl View {
    /// All nodes are offline at first. Nodes without a VIP are left out; the caller allocates VIPs
    /// first.
    pub(crate) fn new(given: &ViewInput<'_>) -> Self {
        let addresses = address_states(given.nodes, given.protected);
        let behind = behind_states(given.nodes, given.protected);
        let mut nodes = BTreeMap::new();
        let mut vips = HashMap::new();
        for (name, spec) in given.nodes {
            let Some(vip) = given.vips.of(name, &given.ranges) else {
                continue;
            };
            vips.insert(IpAddr::V4(vip.v4), name.clone());
            vips.insert(IpAddr::V6(vip.v6), name.clone());
            let view = NodeView {
                name: name.clone(),
                addresses: spec
                    .addresses
                    .iter()
                    .map(|ip| address_view(*ip, &addresses[ip]))
                    .collect(),
                vip4: vip.v4,
                vip6: vip.v6,
                ports: spec.ports.clone(),
                online: false,
                source: (given.source)(name),
                zone: spec.zone.clone(),
                behind: spec
                    .behind
                    .iter()
                    .map(|destination| behind_view(*destination, &behind[destination]))
                    .collect(),
            };
            nodes.insert(name.clone(), view);
        }
        Self {
            ranges: given.ranges,
            zone: given.zone.clone(),
            nodes,
            addresses,
            behind,
            vips,
            localhost_ports: given.localhost_ports.clone(),
            clouds: given.clouds.clone(),
            left_out: given.left_out.clone(),
        }
    }

    pub(crate) fn ranges(&self) -> VipRanges {
        self.ranges
    }

    pub(crate) fn clouds(&self) -> &Clouds {
        &self.clouds
    }

    pub(crate) fn left_out(&self) -> &BTreeSet<LeftOut> {
        &self.left_out
    }

    pub(crate) fn zone(&self) -> &Zone {
        &self.zone
    }

    pub(crate) fn census(&self) -> Census {
        let online = self.nodes.values().filter(|node| node.online).count();
        Census {
            online,
            offline: self.nodes.len() - online,
        }
    }

    /// The number of addresses that do not route and of parts of Nodes that are left out, by
    /// reason.
    pub(crate) fn refusals(&self) -> [(&'static str, usize); 3] {
        [
            ("shared", self.count_with(Routing::Shared)),
            ("protected", self.count_with(Routing::Protected)),
            ("left_out", self.left_out.len()),
        ]
    }

    fn count_with(&self, routing: Routing) -> usize {
        let states = self.addresses.values().chain(self.behind.values());
        states.filter(|state| state.routing() == routing).count()
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<&NodeView> {
        self.nodes.get(name)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.values()
    }

    /// Sets whether the node has a tunnel. Returns the changed node, if it has changed.
    pub(crate) fn set_presence(&mut self, name: &NodeName, presence: Presence) -> Option<NodeView> {
        let node = self.nodes.get_mut(name)?;
        let online = presence == Presence::Online;
        if node.online == online {
            return None;
        }
        node.online = online;
        Some(node.clone())
    }

    /// The node that a destination leads to.
    pub(crate) fn resolve(&self, destination: &Destination) -> Result<Target, ResolveError> {
        let mut target = match destination {
            Destination::Address(dialled) => match self.by_behind(*dialled) {
                Some(resolved) => return resolved,
                None => self.by_address(*dialled),
            },
            Destination::Name(name, port) => self.by_name(name, *port),
            Destination::Node(node, port) => self.by_node(node, *port),
        }?;
        if self.localhost_ports.contains(&target.port) {
            target.address = None;
            target.instead.clear();
        }
        Ok(target)
    }

    /// The cloud node that a destination leads to, and the address to dial. Addresses that are
    /// refused as an edge node's are never returned.
    pub(crate) fn cloud(&self, destination: &Destination) -> Option<(NodeName, SocketAddr)> {
        match destination {
            Destination::Address(dialled) => {
                let address = dialled.ip().to_canonical();
                for (name, node) in self.clouds.iter() {
                    if node.addresses.contains(&address) && self.is_clouds(address) {
                        return Some((name.clone(), SocketAddr::new(address, dialled.port())));
                    }
                }
                None
            }
            Destination::Name(text, port) => {
                let node = node_named(text, self).ok()?;
                self.address_of_cloud(node, *port)
            }
            Destination::Node(node, port) => self.address_of_cloud(node.clone(), *port),
        }
    }

    /// Whether an address of a cloud node is no edge node's too.
    fn is_clouds(&self, address: IpAddr) -> bool {
        match self.addresses.get(&address) {
            Some(state) => matches!(state, AddressState::Protected { .. }),
            None => true,
        }
    }

    fn address_of_cloud(&self, node: NodeName, port: u16) -> Option<(NodeName, SocketAddr)> {
        let mut addresses = self.clouds.get(&node)?.addresses.iter();
        let address = *addresses.find(|address| self.is_clouds(**address))?;
        Some((node, SocketAddr::new(address, port)))
    }

    /// The target of a destination behind a node. A VIP leads to its own node only.
    fn by_behind(&self, dialled: SocketAddr) -> Option<Result<Target, ResolveError>> {
        let destination = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
        if self.ranges.contains(destination.ip()) {
            return None;
        }
        let state = self.behind.get(&destination)?;
        Some(match state {
            AddressState::Routed(node) => Ok(Target {
                node: node.clone(),
                address: Some(destination.ip()),
                instead: Vec::new(),
                port: destination.port(),
            }),
            AddressState::Shared(_)
            | AddressState::Contested { .. }
            | AddressState::Protected { .. } => Err(ResolveError::Behind {
                owners: state.owners().to_vec(),
                reason: behind::reason(destination, state),
                routing: state.routing(),
            }),
        })
    }

    fn by_address(&self, dialled: SocketAddr) -> Result<Target, ResolveError> {
        let address = dialled.ip().to_canonical();
        let port = dialled.port();
        if self.ranges.contains(address) {
            let Some(node) = self.vips.get(&address) else {
                return Err(ResolveError::UnassignedVip { address });
            };
            return Ok(self.any_address(node, Some(address), port));
        }
        match self.addresses.get(&address) {
            Some(AddressState::Routed(node)) => Ok(Target {
                node: node.clone(),
                address: Some(address),
                instead: Vec::new(),
                port,
            }),
            Some(AddressState::Shared(owners)) => Err(ResolveError::Shared {
                address,
                owners: owners.clone(),
            }),
            Some(AddressState::Protected { owners, by }) => Err(ResolveError::Protected {
                address,
                owners: owners.clone(),
                protection: by.to_string(),
            }),
            Some(AddressState::Contested { owners, by }) => Err(ResolveError::Contested {
                address,
                owners: owners.clone(),
                protection: by.contesting(),
            }),
            None => Err(ResolveError::UnknownAddress {
                address,
                nodes: NodeCount(self.nodes.len()),
            }),
        }
    }

    fn by_name(&self, text: &str, port: u16) -> Result<Target, ResolveError> {
        match node_named(text, self) {
            Ok(node) => self.by_node(&node, port),
            Err(NotNamed::Unknown) => Err(self.unknown_name(text)),
            Err(NotNamed::Means(node, meaning)) => Err(ResolveError::OtherMeaning {
                name: text.to_owned(),
                advice: dial_instead(&node, self),
                node,
                meaning,
            }),
        }
    }

    /// The node with this name, or else the one that clients mean by it: operators may write a zone.
    fn by_node(&self, node: &NodeName, port: u16) -> Result<Target, ResolveError> {
        if self.nodes.contains_key(node) {
            return Ok(self.any_address(node, None, port));
        }
        match node_named(node.as_str(), self) {
            Ok(named) if self.nodes.contains_key(&named) => {
                Ok(self.any_address(&named, None, port))
            }
            _ => Err(self.unknown_name(node.as_str())),
        }
    }

    /// A VIP or a name is the node, whichever family it was dialled in.
    fn any_address(&self, node: &NodeName, dialled: Option<IpAddr>, port: u16) -> Target {
        let address = self.preferred(node, dialled);
        Target {
            instead: self.instead_of(node, address),
            node: node.clone(),
            address,
            port,
        }
    }

    /// The node's first address of the other family, then its loopback. Without an address the
    /// agent uses the loopback by itself.
    fn instead_of(&self, node: &NodeName, preferred: Option<IpAddr>) -> Vec<IpAddr> {
        let Some(preferred) = preferred else {
            return Vec::new();
        };
        let addresses = self.nodes.get(node).map(|node| node.addresses.as_slice());
        let mut addresses = addresses.unwrap_or_default().iter();
        let other = addresses.find(|view| view.ip.is_ipv4() != preferred.is_ipv4());
        let mut instead: Vec<IpAddr> = other.map(|view| view.ip).into_iter().collect();
        instead.extend([
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ]);
        instead
    }

    fn unknown_name(&self, text: &str) -> ResolveError {
        ResolveError::UnknownName {
            name: text.to_owned(),
            nodes: NodeCount(self.nodes.len()),
        }
    }

    /// The node's first address of the dialled family, or else its first address.
    fn preferred(&self, node: &NodeName, dialled: Option<IpAddr>) -> Option<IpAddr> {
        let addresses = &self.nodes.get(node)?.addresses;
        if let Some(dialled) = dialled {
            for view in addresses {
                if view.ip.is_ipv4() == dialled.is_ipv4() {
                    return Some(view.ip);
                }
            }
        }
        addresses.first().map(|view| view.ip)
    }

    /// The differences from an older view.
    pub(crate) fn since(&self, older: &Self) -> Difference {
        let mut difference = Difference::default();
        for (name, node) in &self.nodes {
            if older.nodes.get(name) != Some(node) {
                difference.changed.push(node.clone());
            }
        }
        for name in older.nodes.keys() {
            if !self.nodes.contains_key(name) {
                difference.removed.push(name.clone());
            }
        }
        if self.clouds != older.clouds {
            difference.clouds = Some(self.clouds.clone());
        }
        difference
    }
}

impl NodeNames for View {
    fn zone(&self) -> &Zone {
        &self.zone
    }

    fn kind(&self, name: &NodeName) -> Option<NodeKind<'_>> {
        if let Some(node) = self.nodes.get(name) {
            return Some(NodeKind::Edge(node.zone.as_ref()));
        }
        self.clouds.contains_key(name).then_some(NodeKind::Cloud)
    }

    fn is_own_zone(&self, zone: &str) -> bool {
        let mut own = self.nodes.values().flat_map(|node| &node.zone);
        own.any(|own| own.as_str() == zone)
    }
}

fn address_view(ip: IpAddr, state: &AddressState) -> AddressView {
    AddressView {
        ip,
        routing: state.routing(),
        reason: state.reason(ip),
    }
}

fn behind_view(destination: SocketAddr, state: &AddressState) -> BehindView {
    BehindView {
        destination,
        routing: state.routing(),
        reason: behind::reason(destination, state),
    }
}

#[cfg(test)]
mod tests;
