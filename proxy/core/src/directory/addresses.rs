//! The addresses that lead to a node, and the reasons why others do not. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use culvert_api::{NodeName, Routing};
use ipnet::IpNet;

use super::cluster_nodes::{ClusterNodes, ClusterOwn};
use super::destination::And;
use super::node::{NodeSpec, never_a_nodes};

/// The state of an address that edge nodes have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressState {
    /// One node has it, and no other.
    Routed(NodeName),
    /// Several nodes have it. Connections to it are refused.
    Shared(Vec<NodeName>),
    /// An edge node had it before a cloud node claimed it, or its owner is not known yet.
    /// Connections to it are refused.
    Contested {
        /// The edge nodes that have it.
        owners: Vec<NodeName>,
        /// The other owner, in words.
        by: Protection,
    },
    /// The cloud uses it too, or can use it. It is never steered.
    Protected {
        /// The nodes that have it.
        owners: Vec<NodeName>,
        /// The other owner, in words.
        by: Protection,
    },
}

impl AddressState {
    /// What a redirector does with it.
    pub(super) fn routing(&self) -> Routing {
        match self {
            Self::Routed(_) => Routing::Routed,
            Self::Shared(_) | Self::Contested { .. } => Routing::Shared,
            Self::Protected { .. } => Routing::Protected,
        }
    }

    /// The nodes that have it.
    pub(super) fn owners(&self) -> &[NodeName] {
        match self {
            Self::Routed(owner) => std::slice::from_ref(owner),
            Self::Shared(owners)
            | Self::Contested { owners, .. }
            | Self::Protected { owners, .. } => owners,
        }
    }

    /// The reason why the address does not route, with all its owners; empty if it routes.
    pub(crate) fn reason(&self, address: IpAddr) -> String {
        match self {
            Self::Routed(_) => String::new(),
            Self::Shared(owners) => {
                format!("{address} belongs to {}: use their names", And(owners))
            }
            Self::Contested { owners, by } => {
                format!(
                    "{address} of {} {}: use the node's name",
                    And(owners),
                    by.contesting()
                )
            }
            Self::Protected { owners, by } => {
                format!("{address} of {} {by}: use the node's name", And(owners))
            }
        }
    }
}

/// The reason why an address does not route to its edge node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// An interface of the proxy's host has it.
    ProxyHost,
    /// The operator protects the range.
    Range(IpNet),
    /// A cloud node has it.
    CloudNode(NodeName),
    /// Every host uses this kind of address for itself.
    Everyones(&'static str),
    /// VIPs come from this range.
    VipRange(IpNet),
    /// Clients of the cluster's API dial it.
    ApiServer,
    /// It is in a range of the cluster's Services.
    ServiceRange(IpNet),
    /// It is in a range of the cluster's pods.
    PodRange(IpNet),
    /// It is in the range of this node's pods, by its Node.
    NodesPods(IpNet, NodeName),
    /// It is in a range of `--direct`, which CONNECT dials from the proxy itself.
    Direct(IpNet),
    /// It is outside of `--edge-range`.
    OutsideEdgeRange,
    /// The API server was not yet asked for the cluster's own ranges.
    NotAsked,
    /// The cluster's own ranges are unknown. These flags set them.
    Unknown {
        /// The reason in words.
        flags: &'static str,
    },
}

impl Protection {
    /// The reason in words, for an address that the edge node had first.
    pub(crate) fn contesting(&self) -> String {
        let claimed = matches!(self, Self::CloudNode(_) | Self::NodesPods(..));
        if claimed {
            format!("{self}, which claims it since")
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for Protection {
    /// The text after `ADDRESS of NODE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProxyHost => f.write_str("is also an address of this proxy's host"),
            Self::Range(range) => write!(f, "is also in the protected range {range}"),
            Self::CloudNode(node) => write!(f, "is also the address of the cloud node {node}"),
            Self::Everyones(what) => write!(f, "is also {what}"),
            Self::VipRange(range) => write!(f, "is also in the VIP range {range}"),
            Self::ApiServer => f.write_str("is also an address of the API server"),
            Self::ServiceRange(range) => {
                write!(f, "is also in the cluster's Service range {range}")
            }
            Self::PodRange(range) => write!(f, "is also in the cluster's pod range {range}"),
            Self::NodesPods(range, node) => {
                write!(f, "is also in the pod range {range} of the node {node}")
            }
            Self::Direct(range) => write!(f, "is also in the range {range} of --direct"),
            Self::OutsideEdgeRange => {
                f.write_str("is outside every --edge-range (widen it if the node is right)")
            }
            Self::NotAsked => {
                f.write_str("is refused until the API server has said what the cluster uses itself")
            }
            Self::Unknown { flags } => {
                write!(
                    f,
                    "is not steered while the ranges of Services and pods are unknown (give \
                     --edge-range, or {flags})"
                )
            }
        }
    }
}

/// Addresses that never route, for any node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Protected {
    /// `--protect`.
    pub(crate) ranges: Vec<IpNet>,
    /// Addresses of the interfaces of the proxy's host.
    pub(crate) host: BTreeSet<IpAddr>,
    /// `--edge-range`: only addresses in these ranges route; none: no restriction.
    pub(crate) edge_ranges: Vec<IpNet>,
    /// The VIP ranges.
    pub(crate) vips: Vec<IpNet>,
    /// The cluster's own addresses and ranges, if there is a cluster.
    pub(crate) cluster: Option<ClusterProtected>,
}

/// A cluster's own addresses and ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterProtected {
    /// Whether `known` includes the ranges of the API server.
    pub(crate) asked: OwnRanges,
    /// The cluster's own ranges, from the flags, the environment and the API server.
    pub(crate) own: ClusterOwn,
    /// `--direct`.
    pub(crate) direct: Vec<IpNet>,
    /// What Nodes claim.
    pub(crate) claims: Claims,
    /// Addresses that edge nodes had before a Node claimed them.
    pub(crate) contested: BTreeSet<IpAddr>,
}

/// Whether the API server has ever reported the cluster's own ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OwnRanges {
    #[default]
    Unknown,
    Known,
}

/// The claims of Nodes. Kubelets write a part of them, so they take nothing from an edge node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    clouds: BTreeMap<IpAddr, NodeName>,
    pods: BTreeMap<IpNet, NodeName>,
    /// The families and prefix lengths of `pods`. There are few, so a lookup in thousands of ranges
    /// is fast.
    lengths: BTreeSet<(Family, u8)>,
    /// A cloud node among them has a range of pods.
    clouds_have_pods: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
}

fn family(address: IpAddr) -> Family {
    if address.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    }
}

impl Claims {
    /// The claims of these nodes.
    pub(crate) fn new(nodes: &ClusterNodes) -> Self {
        let mut clouds = BTreeMap::new();
        for (name, node) in &nodes.clouds {
            for ip in node.all() {
                clouds.insert(ip, name.clone());
            }
        }
        let lengths = nodes
            .pod_ranges
            .keys()
            .map(|range| (family(range.addr()), range.prefix_len()));
        Self {
            clouds,
            pods: nodes.pod_ranges.clone(),
            lengths: lengths.collect(),
            clouds_have_pods: nodes
                .pod_ranges
                .values()
                .any(|node| nodes.clouds.contains_key(node)),
        }
    }

    /// The owner of an address by these claims.
    pub(crate) fn by(&self, address: IpAddr) -> Option<Protection> {
        if let Some(node) = self.clouds.get(&address) {
            return Some(Protection::CloudNode(node.clone()));
        }
        for (of, length) in &self.lengths {
            if *of != family(address) {
                continue;
            }
            let Ok(range) = IpNet::new(address, *length) else {
                continue;
            };
            if let Some((range, node)) = self.pods.get_key_value(&range.trunc()) {
                return Some(Protection::NodesPods(*range, node.clone()));
            }
        }
        None
    }
}

/// Whether an address can route.
enum Verdict {
    May,
    Contested(Protection),
    Never(Protection),
}

impl Protected {
    /// The state of an address, or of a destination at it, that these nodes have.
    pub(super) fn state(&self, address: IpAddr, mut owners: Vec<NodeName>) -> AddressState {
        match (self.verdict(address), owners.len()) {
            (Verdict::Never(by), _) => AddressState::Protected { owners, by },
            (Verdict::Contested(by), _) => AddressState::Contested { owners, by },
            (Verdict::May, 1) => AddressState::Routed(owners.remove(0)),
            (Verdict::May, _) => AddressState::Shared(owners),
        }
    }

    fn verdict(&self, address: IpAddr) -> Verdict {
        // Inside `--edge-range`, no Node can make an address a pod's.
        let in_edge_range = self
            .edge_ranges
            .iter()
            .any(|range| range.contains(&address));
        let mut claim = None;
        let mut contested = false;
        if let Some(cluster) = &self.cluster {
            claim = cluster.claims.by(address);
            contested = cluster.contested.contains(&address);
        }
        if in_edge_range && matches!(claim, Some(Protection::NodesPods(..))) {
            claim = None;
        }
        if let (Some(by), false) = (&claim, contested) {
            return Verdict::Never(by.clone());
        }
        match (self.certainly(address), claim) {
            (Some(by), _) => Verdict::Never(by),
            (None, Some(by)) => Verdict::Contested(by),
            (None, None) => self.unknown(),
        }
    }

    /// The reason by sources that no kubelet can write.
    fn certainly(&self, address: IpAddr) -> Option<Protection> {
        if let Some(what) = never_a_nodes(address) {
            return Some(Protection::Everyones(what));
        }
        if self.host.contains(&address) {
            return Some(Protection::ProxyHost);
        }
        if let Some(range) = range_with(address, &self.vips) {
            return Some(Protection::VipRange(range));
        }
        if let Some(cluster) = &self.cluster
            && let Some(by) = cluster.own.by(address)
        {
            return Some(by);
        }
        if let Some(range) = range_with(address, &self.ranges) {
            return Some(Protection::Range(range));
        }
        if !self.edge_ranges.is_empty() {
            return match range_with(address, &self.edge_ranges) {
                Some(_) => None,
                None => Some(Protection::OutsideEdgeRange),
            };
        }
        let cluster = self.cluster.as_ref()?;
        range_with(address, &cluster.direct).map(Protection::Direct)
    }

    /// If nothing bounds the claims of kubelets, an address that only a kubelet claims does not
    /// route.
    fn unknown(&self) -> Verdict {
        let cluster = match &self.cluster {
            Some(cluster) if self.edge_ranges.is_empty() => cluster,
            _ => return Verdict::May,
        };
        // The claim of an edge node's own kubelet is not enough.
        let no_pods = cluster.own.pod_ranges.is_empty() && !cluster.claims.clouds_have_pods;
        let flags = match (cluster.own.service_ranges.is_empty(), no_pods) {
            (false, false) => return Verdict::May,
            // This lasts only for a moment after a start with the state of a version that did not
            // ask. Until then no address of it is dialled directly.
            _ if cluster.asked == OwnRanges::Unknown => {
                return Verdict::Contested(Protection::NotAsked);
            }
            (true, false) => "--service-range",
            (false, true) => "--pod-range",
            (true, true) => "--service-range and --pod-range",
        };
        Verdict::Never(Protection::Unknown { flags })
    }
}

impl ClusterOwn {
    fn by(&self, address: IpAddr) -> Option<Protection> {
        if self.api_servers.contains(&address) {
            return Some(Protection::ApiServer);
        }
        if let Some(range) = range_with(address, &self.service_ranges) {
            return Some(Protection::ServiceRange(range));
        }
        range_with(address, &self.pod_ranges).map(Protection::PodRange)
    }
}

fn range_with<'a>(address: IpAddr, ranges: impl IntoIterator<Item = &'a IpNet>) -> Option<IpNet> {
    ranges
        .into_iter()
        .copied()
        .find(|range| range.contains(&address))
}

/// The state of every address of a node.
pub(crate) fn address_states(
    nodes: &BTreeMap<NodeName, NodeSpec>,
    protected: &Protected,
) -> BTreeMap<IpAddr, AddressState> {
    let mut owners: BTreeMap<IpAddr, Vec<NodeName>> = BTreeMap::new();
    for (name, spec) in nodes {
        for address in &spec.addresses {
            owners.entry(*address).or_default().push(name.clone());
        }
    }
    owners
        .into_iter()
        .map(|(address, owners)| (address, protected.state(address, owners)))
        .collect()
}

#[cfg(test)]
mod tests;
