//! The directory as readers see it: computed from all nodes at once, with the answers to lookups.
//! Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use culvert_api::{NodeName, Routing, Zone};
use serde::Serialize;

use super::addresses::{AddressState, Protected, address_states};
use super::behind::{self, behind_states};
use super::cluster_nodes::{CloudNode, LeftOut};
use super::destination::{Destination, NodeCount, ResolveError, Target};
use super::node::NodeSpec;
use super::vips::{VipRanges, Vips};

/// The source of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    /// `culvert-proxy token create`.
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
pub(crate) struct AddressView {
    pub(crate) ip: IpAddr,
    pub(crate) routing: Routing,
    /// The reason why it does not route; empty if it does.
    pub(crate) reason: String,
}

/// One of the destinations behind a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BehindView {
    pub(crate) destination: SocketAddr,
    pub(crate) routing: Routing,
    /// The reason why it does not route; empty if it does.
    pub(crate) reason: String,
}

/// A node with all its properties in the directory.
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
    /// A further zone: `<node>.<zone>` is the node too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<Zone>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) behind: Vec<BehindView>,
}

/// The number of nodes, by whether they have a tunnel.
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
pub(crate) type Clouds = Arc<BTreeMap<NodeName, CloudNode>>;

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
    pub(crate) fn refused(&self) -> [(&'static str, usize); 3] {
        let count = |routing| {
            let states = self.addresses.values().chain(self.behind.values());
            states.filter(|state| state.routing() == routing).count()
        };
        [
            ("shared", count(Routing::Shared)),
            ("protected", count(Routing::Protected)),
            ("left_out", self.left_out.len()),
        ]
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<&NodeView> {
        self.nodes.get(name)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.values()
    }

    /// Sets whether the node has a tunnel. Returns the changed node, if it has changed.
    pub(crate) fn set_online(&mut self, name: &NodeName, online: bool) -> Option<NodeView> {
        let node = self
            .nodes
            .get_mut(name)
            .filter(|node| node.online != online)?;
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
        }?;
        if self.localhost_ports.contains(&target.port) {
            target.address = None;
        }
        Ok(target)
    }

    /// The cloud node that a destination leads to, and the address to dial. Addresses that are
    /// refused as an edge node's are never returned.
    pub(crate) fn cloud(&self, destination: &Destination) -> Option<(NodeName, SocketAddr)> {
        let is_clouds = |address: &IpAddr| {
            self.addresses
                .get(address)
                .is_none_or(|state| matches!(state, AddressState::Protected { .. }))
        };
        match destination {
            Destination::Address(dialled) => {
                let address = dialled.ip().to_canonical();
                let (node, _) = self
                    .clouds
                    .iter()
                    .find(|(_, node)| node.addresses.contains(&address))?;
                is_clouds(&address)
                    .then(|| (node.clone(), SocketAddr::new(address, dialled.port())))
            }
            Destination::Name(text, port) => {
                let any_zone = |zone: &str| {
                    zone == self.zone.as_str()
                        || self
                            .nodes
                            .values()
                            .any(|node| node.zone.as_ref().is_some_and(|own| own.as_str() == zone))
                };
                // The redirectors' DNS does the same: a name with dots and without the zone belongs
                // to another domain.
                let is_zone = |name: &NodeName, zone: Option<&str>| match zone {
                    Some(zone) => any_zone(zone),
                    None => !name.as_str().contains('.'),
                };
                let is_named = |name: &NodeName, zone: Option<&str>| {
                    self.clouds.contains_key(name) && is_zone(name, zone)
                };
                let node = named(text, is_named)?;
                let address = *self
                    .clouds
                    .get(&node)?
                    .addresses
                    .iter()
                    .find(|address| is_clouds(address))?;
                Some((node, SocketAddr::new(address, *port)))
            }
        }
    }

    /// Of a destination behind a node. A VIP leads to its own node only.
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
        let (address, port) = (dialled.ip().to_canonical(), dialled.port());
        if self.ranges.contains(address) {
            let Some(node) = self.vips.get(&address) else {
                return Err(ResolveError::UnassignedVip { address });
            };
            return Ok(Target {
                node: node.clone(),
                address: self.preferred(node, Some(address)),
                port,
            });
        }
        match self.addresses.get(&address) {
            Some(AddressState::Routed(node)) => Ok(Target {
                node: node.clone(),
                address: Some(address),
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
        let is_named = |name: &NodeName, zone: Option<&str>| {
            let own = |node: &NodeView| {
                node.zone
                    .as_ref()
                    .is_some_and(|own| zone == Some(own.as_str()))
            };
            self.nodes
                .get(name)
                .is_some_and(|node| zone.is_none_or(|zone| zone == self.zone.as_str()) || own(node))
        };
        let Some(node) = named(text, is_named) else {
            return Err(ResolveError::UnknownName {
                name: text.to_owned(),
                nodes: NodeCount(self.nodes.len()),
            });
        };
        Ok(Target {
            address: self.preferred(&node, None),
            node,
            port,
        })
    }

    /// The node's first address of the dialled family, or else its first address.
    fn preferred(&self, node: &NodeName, dialled: Option<IpAddr>) -> Option<IpAddr> {
        let addresses = &self.nodes.get(node)?.addresses;
        let same_family = |view: &&AddressView| {
            dialled.is_some_and(|dialled| dialled.is_ipv4() == view.ip.is_ipv4())
        };
        addresses
            .iter()
            .find(same_family)
            .or_else(|| addresses.first())
            .map(|view| view.ip)
    }

    /// The differences from an older view.
    pub(crate) fn since(&self, older: &Self) -> Difference {
        let changed = self
            .nodes
            .iter()
            .filter(|(name, node)| older.nodes.get(*name) != Some(*node));
        let removed = older
            .nodes
            .keys()
            .filter(|name| !self.nodes.contains_key(*name));
        Difference {
            changed: changed.map(|(_, node)| node.clone()).collect(),
            removed: removed.cloned().collect(),
            clouds: (self.clouds != older.clouds).then(|| self.clouds.clone()),
        }
    }
}

/// The node that `text` names, alone or followed by a zone, in any case, with or without a final
/// dot.
fn named(text: &str, is_named: impl Fn(&NodeName, Option<&str>) -> bool) -> Option<NodeName> {
    let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let splits = lower
        .match_indices('.')
        .map(|(dot, _)| (&lower[..dot], Some(&lower[dot + 1..])));
    let mut readings = std::iter::once((lower.as_str(), None)).chain(splits);
    readings.find_map(|(node, zone)| node.parse().ok().filter(|node| is_named(node, zone)))
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
