//! What a Kubernetes cluster says of its nodes, as plain data, and its last state on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use culvert_api::ports::NODE_PORTS;
use culvert_api::{NodeName, Zone};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::addresses::Claims;

use super::node::{InvalidNode, MAX_PORTS, NodeSpec};
use super::view::LeftOut;
use super::vips::{Most, VipError, VipRanges, Vips};
use crate::clock::UnixTime;
use crate::directory::NodeUid;
use crate::state::{StateDir, StateError, StateFile};

const KEPT: StateFile = StateFile {
    name: "cluster-state.json",
    what: "the last state of the cluster until its API server answers",
};
/// As 0.1 wrote it: without what the cluster uses itself, and with ports that a kubelet may have
/// chosen.
const BEFORE: StateFile = StateFile {
    name: "cluster.json",
    ..KEPT
};

/// Ports that are steered on all edge nodes of the cluster, besides each node's kubelet port and
/// own further ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterPorts {
    /// Dialled at the node's address.
    pub(crate) ports: BTreeSet<u16>,
    /// Dialled at the node's 127.0.0.1.
    pub(crate) localhost_ports: BTreeSet<u16>,
}

impl Default for ClusterPorts {
    /// Those that everybody wants.
    fn default() -> Self {
        Self {
            ports: NODE_PORTS.into(),
            localhost_ports: BTreeSet::new(),
        }
    }
}

impl ClusterPorts {
    fn checked(self) -> Result<Self, InvalidNode> {
        let given = self.ports.union(&self.localhost_ports).count();
        if given > MAX_PORTS {
            return Err(InvalidNode::TooMany {
                given,
                what: "ports",
                most: MAX_PORTS,
            });
        }
        if self.ports.contains(&0) || self.localhost_ports.contains(&0) {
            return Err(InvalidNode::Port);
        }
        Ok(self)
    }
}

/// A node that is reached through its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EdgeNode {
    /// The preferred one first.
    pub(crate) addresses: Vec<IpAddr>,
    /// Its own ports that are steered, besides the cluster's.
    pub(crate) ports: BTreeSet<u16>,
    /// `<node>.<zone>` is the node, besides `--dns-zone`.
    pub(crate) zone: Option<Zone>,
    /// Another one each time that a Node of this name is made.
    #[serde(default)]
    pub(crate) uid: Option<NodeUid>,
}

/// A node that clients reach by themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloudNode {
    /// The preferred one first.
    pub(crate) addresses: Vec<IpAddr>,
    /// Further ones of whatever type, which nobody is sent to.
    #[serde(default)]
    pub(crate) others: BTreeSet<IpAddr>,
}

impl CloudNode {
    /// All of its addresses.
    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().chain(&self.others).copied()
    }
}

/// What the cluster uses itself, as no kubelet says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterOwn {
    /// Where clients reach the API server.
    pub(crate) api_servers: BTreeSet<IpAddr>,
    /// Ranges of Services; none: they are not known.
    pub(crate) service_ranges: BTreeSet<IpNet>,
    /// Ranges of pods; none: they are not known.
    pub(crate) pod_ranges: BTreeSet<IpNet>,
}

impl ClusterOwn {
    /// With what these say too.
    pub(super) fn with(mut self, other: &Self) -> Self {
        self.api_servers.extend(&other.api_servers);
        self.service_ranges.extend(&other.service_ranges);
        self.pod_ranges.extend(&other.pod_ranges);
        self
    }

    /// What was known stays as long as nothing else is said: a ConfigMap that was deleted makes no
    /// address anybody's.
    fn or(self, before: &Self) -> Self {
        Self {
            api_servers: kept_if_none(self.api_servers, &before.api_servers),
            service_ranges: kept_if_none(self.service_ranges, &before.service_ranges),
            pod_ranges: kept_if_none(self.pod_ranges, &before.pod_ranges),
        }
    }
}

fn kept_if_none<T: Clone + Ord>(now: BTreeSet<T>, before: &BTreeSet<T>) -> BTreeSet<T> {
    if now.is_empty() { before.clone() } else { now }
}

/// All nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterNodes {
    /// By name.
    pub(crate) edges: BTreeMap<NodeName, EdgeNode>,
    /// By name.
    pub(crate) clouds: BTreeMap<NodeName, CloudNode>,
    /// Ranges of nodes' pods, and a node that has each.
    #[serde(default)]
    pub(crate) pod_ranges: BTreeMap<IpNet, NodeName>,
}

impl ClusterNodes {
    /// Addresses of edge nodes that by `claims`, those of these nodes, are the cloud's too, and
    /// that an edge node had before: by `before` with its claims. They stay contested until one of
    /// both sides gives them up.
    fn contested(&self, claims: &Claims, before: Option<(&Kept, &Claims)>) -> BTreeSet<IpAddr> {
        let Some((kept, old_claims)) = before else {
            return BTreeSet::new();
        };
        let had: BTreeSet<IpAddr> = kept.nodes.edge_addresses().collect();
        let was_edges =
            |address: &IpAddr| had.contains(address) && old_claims.by(*address).is_none();
        let contested = self
            .edge_addresses()
            .filter(|address| claims.by(*address).is_some());
        contested
            .filter(|address| kept.contested.contains(address) || was_edges(address))
            .collect()
    }

    fn edge_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.edges
            .values()
            .flat_map(|edge| edge.addresses.iter().copied())
    }
}

/// The VIPs as all proxies of the cluster agree on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allocation {
    /// Where they come from.
    pub(crate) ranges: VipRanges,
    /// Who has which.
    pub(crate) vips: Vips,
}

impl Allocation {
    /// What makes no sense in it.
    pub(crate) fn problem(&self) -> Option<String> {
        self.vips.problem(&self.ranges)
    }
}

/// What this proxy brings to the agreement.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(super) vip4: Ipv4Net,
    pub(super) vip6: Option<Ipv6Net>,
    pub(super) last: Allocation,
}

impl Proposal {
    /// The allocation, within `most`, when exactly `edges` exist: from the one that the cluster
    /// keeps, or from this proxy's last where it keeps none.
    pub(crate) fn agreed<'a>(
        &self,
        kept: Option<Allocation>,
        edges: impl Iterator<Item = &'a NodeName>,
        now: UnixTime,
        most: Most,
    ) -> Result<Allocation, VipError> {
        let Allocation { ranges, vips } = match kept {
            Some(kept) => self.fits(&kept.ranges).map(|()| kept)?,
            None => self.last.clone(),
        };
        Ok(Allocation {
            ranges,
            vips: vips.reconciled_as_fits(edges, &ranges, now, most),
        })
    }

    fn fits(&self, kept: &VipRanges) -> Result<(), VipError> {
        let disagreed = |kept: ipnet::IpNet, own: ipnet::IpNet, flag| {
            Err(VipError::Disagreed { kept, own, flag })
        };
        match self.vip6 {
            _ if self.vip4 != kept.vip4 => {
                disagreed(kept.vip4.into(), self.vip4.into(), "--vip4-range")
            }
            Some(own) if own != kept.vip6 => {
                disagreed(kept.vip6.into(), own.into(), "--vip6-range")
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// How current the directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// As the API server says now.
    Live,
    /// The last state of the cluster, or none yet.
    Stale {
        /// When the API server last confirmed it; `None`: never.
        since: Option<UnixTime>,
        /// Why it does not now.
        cause: String,
    },
}

impl Freshness {
    /// What operators should know of it.
    pub(crate) fn note(&self) -> Option<String> {
        match self {
            Self::Live => None,
            Self::Stale { since: None, cause } => {
                Some(format!("no node of the cluster is known yet: {cause}"))
            }
            Self::Stale {
                since: Some(since),
                cause,
            } => {
                let age = UnixTime::now().since(*since).as_secs();
                Some(format!(
                    "the API server last confirmed these nodes {age} s ago, at {since}: {cause}"
                ))
            }
        }
    }

    /// How long ago the API server confirmed the state; infinite if it never did.
    pub(crate) fn age_seconds(&self) -> f64 {
        match self {
            Self::Live => 0.0,
            Self::Stale {
                since: Some(since), ..
            } => UnixTime::now().since(*since).as_secs_f64(),
            Self::Stale { since: None, .. } => f64::INFINITY,
        }
    }
}

/// A cluster's state as it was last applied.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    pub(super) as_of: UnixTime,
    pub(super) allocation: Allocation,
    pub(super) nodes: ClusterNodes,
    /// Addresses that edge nodes had before a Node claimed them.
    #[serde(default)]
    pub(super) contested: BTreeSet<IpAddr>,
}

impl Kept {
    /// The cloud nodes with the addresses that can be theirs, and what of all nodes is left out: no
    /// Node keeps the others out.
    pub(super) fn in_use(&self) -> (BTreeMap<NodeName, CloudNode>, BTreeSet<LeftOut>) {
        let ranges = &self.allocation.ranges;
        let (mut clouds, mut left_out) = (self.nodes.clouds.clone(), BTreeSet::new());
        for (name, node) in &mut clouds {
            for address in node
                .addresses
                .extract_if(.., |address| ranges.contains(*address))
            {
                let reason = format!(
                    "{address} of the cloud node {name} is in the VIP range, where it reaches \
                     nothing: give the node another address, or the proxies another --vip4-range \
                     or --vip6-range"
                );
                left_out.insert(LeftOut {
                    node: name.clone(),
                    reason,
                });
            }
        }
        let without = self
            .nodes
            .edges
            .keys()
            .filter(|name| self.allocation.vips.of(name, ranges).is_none());
        left_out.extend(without.map(|name| LeftOut {
            node: name.clone(),
            reason: format!(
                "the edge node {name} has no VIP: there are too many nodes, or their \
                names are too long"
            ),
        }));
        (clouds, left_out)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    kept: Option<Kept>,
    ports: ClusterPorts,
    /// `None`: the API server was never asked for it.
    #[serde(default)]
    own: Option<ClusterOwn>,
}

impl OnDisk {
    /// What a kubelet may have said of ports and zones is not believed.
    fn distrusted(mut self) -> Self {
        for edge in self
            .kept
            .iter_mut()
            .flat_map(|kept| kept.nodes.edges.values_mut())
        {
            edge.ports.clear();
            edge.zone = None;
        }
        self
    }
}

/// The cluster as the only source of nodes.
#[derive(Debug)]
pub(super) struct ClusterSource {
    state: StateDir,
    stored: OnDisk,
}

impl ClusterSource {
    /// Reads the last state. What is on disk but makes no sense is an error.
    pub(super) fn open(state: &StateDir) -> Result<Self, StateError> {
        let stored: OnDisk = match state.read(KEPT)? {
            Some(stored) => stored,
            None => state
                .read(BEFORE)?
                .map(OnDisk::distrusted)
                .unwrap_or_default(),
        };
        match stored
            .kept
            .as_ref()
            .and_then(|kept| kept.allocation.problem())
        {
            Some(problem) => Err(state.invalid(KEPT, problem)),
            None => Ok(Self {
                state: state.clone(),
                stored,
            }),
        }
    }

    pub(super) fn kept(&self) -> Option<&Kept> {
        self.stored.kept.as_ref()
    }

    pub(super) fn ports(&self) -> &ClusterPorts {
        &self.stored.ports
    }

    pub(super) fn set_ports(&mut self, ports: ClusterPorts) -> Result<(), super::DirectoryError> {
        let ports = ports.checked()?;
        if self.stored.ports == ports {
            return Ok(());
        }
        Ok(self.commit(OnDisk {
            ports,
            ..self.stored.clone()
        })?)
    }

    /// What the cluster uses itself, as its API server last said; `None`: it was never asked.
    pub(super) fn own(&self) -> Option<&ClusterOwn> {
        self.stored.own.as_ref()
    }

    /// Takes what the API server says that the cluster uses itself.
    pub(super) fn set_own(&mut self, own: ClusterOwn) -> Result<(), StateError> {
        let own = match &self.stored.own {
            Some(before) => own.or(before),
            None => own,
        };
        if self.stored.own.as_ref() == Some(&own) {
            Ok(())
        } else {
            self.commit(OnDisk {
                own: Some(own),
                ..self.stored.clone()
            })
        }
    }

    /// Takes the nodes; `old_claims` are those of the nodes before. Their claims now.
    pub(super) fn set(
        &mut self,
        nodes: ClusterNodes,
        allocation: Allocation,
        old_claims: &Claims,
    ) -> Result<Claims, StateError> {
        let claims = Claims::new(&nodes);
        let contested = nodes.contested(&claims, self.kept().map(|kept| (kept, old_claims)));
        let kept = Kept {
            as_of: UnixTime::now(),
            allocation,
            nodes,
            contested,
        };
        self.commit(OnDisk {
            kept: Some(kept),
            ports: self.stored.ports.clone(),
            own: self.stored.own.clone(),
        })?;
        Ok(claims)
    }

    /// Writes down that the state is still true.
    pub(super) fn confirm(&mut self) -> Result<(), StateError> {
        let mut stored = self.stored.clone();
        let Some(kept) = &mut stored.kept else {
            return Ok(());
        };
        kept.as_of = UnixTime::now();
        self.commit(stored)
    }

    /// The edge nodes with all ports that are steered.
    pub(super) fn specs(&self) -> BTreeMap<NodeName, NodeSpec> {
        let common = self
            .stored
            .ports
            .ports
            .union(&self.stored.ports.localhost_ports);
        let common: BTreeSet<u16> = common.copied().collect();
        let spec = |node: &EdgeNode| NodeSpec {
            addresses: node.addresses.clone(),
            ports: common.union(&node.ports).copied().collect(),
            zone: node.zone.clone(),
        };
        let edges = self.stored.kept.iter().flat_map(|kept| &kept.nodes.edges);
        edges
            .map(|(name, node)| (name.clone(), spec(node)))
            .collect()
    }

    fn commit(&mut self, stored: OnDisk) -> Result<(), StateError> {
        self.state.write(KEPT, &stored)?;
        self.stored = stored;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Most = Most {
        nodes: 100,
        bytes: 10_000,
    };
    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);

    fn names(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn ranges(vip4: &str, vip6: &str) -> VipRanges {
        VipRanges::checked(vip4.parse().unwrap(), vip6.parse().unwrap(), &[]).unwrap()
    }

    fn proposal(vip4: &str, vip6: Option<&str>) -> Proposal {
        let last = Allocation {
            ranges: ranges(vip4, vip6.unwrap_or("fd00:1::/64")),
            vips: Vips::default(),
        };
        Proposal {
            vip4: vip4.parse().unwrap(),
            vip6: vip6.map(|text| text.parse().unwrap()),
            last,
        }
    }

    fn vip4(allocation: &Allocation, node: &str) -> String {
        allocation
            .vips
            .of(&node.parse().unwrap(), &allocation.ranges)
            .unwrap()
            .v4
            .to_string()
    }

    #[test]
    fn what_the_cluster_keeps_wins_over_what_a_proxy_remembers() {
        let (ours, theirs) = (
            proposal("198.18.0.0/15", None),
            proposal("198.18.0.0/15", Some("fd00:2::/64")),
        );
        let kept = theirs
            .agreed(None, names(&["b"]).iter(), NOW, MOST)
            .unwrap();
        let agreed = ours
            .agreed(Some(kept.clone()), names(&["a", "b"]).iter(), NOW, MOST)
            .unwrap();
        assert_eq!(
            (vip4(&agreed, "a"), vip4(&agreed, "b")),
            ("198.18.0.2".into(), "198.18.0.1".into())
        );
        assert_eq!(agreed.ranges, kept.ranges);
    }

    #[test]
    fn a_cluster_that_lost_its_vips_gets_back_those_that_a_proxy_remembers() {
        let mut proposal = proposal("198.18.0.0/15", None);
        proposal.last = proposal
            .agreed(None, names(&["b"]).iter(), NOW, MOST)
            .unwrap();
        let agreed = proposal
            .agreed(None, names(&["a", "b"]).iter(), NOW, MOST)
            .unwrap();
        assert_eq!(
            (vip4(&agreed, "a"), vip4(&agreed, "b")),
            ("198.18.0.2".into(), "198.18.0.1".into())
        );
    }

    #[test]
    fn a_proxy_with_other_ranges_than_the_clusters_refuses_and_says_what_to_give() {
        let kept = proposal("198.18.0.0/15", Some("fd00:2::/64"))
            .agreed(None, names(&["b"]).iter(), NOW, MOST)
            .unwrap();
        let refusal = |own: Proposal| {
            own.agreed(Some(kept.clone()), names(&["b"]).iter(), NOW, MOST)
                .unwrap_err()
                .to_string()
        };
        assert!(refusal(proposal("10.9.0.0/16", None)).contains("give --vip4-range 198.18.0.0/15"));
        assert!(
            refusal(proposal("198.18.0.0/15", Some("fd00:3::/64")))
                .contains("give --vip6-range fd00:2::/64")
        );
    }

    #[test]
    fn ports_of_the_cluster_and_of_the_node_are_steered_together() {
        let folder = tempfile::tempdir().unwrap();
        let mut source = ClusterSource::open(&StateDir::open(folder.path()).unwrap()).unwrap();
        let edge = EdgeNode {
            ports: [10250, 8080].into(),
            ..EdgeNode::default()
        };
        let nodes = ClusterNodes {
            edges: [("a".parse().unwrap(), edge)].into(),
            ..ClusterNodes::default()
        };
        let allocation = proposal("198.18.0.0/15", None)
            .agreed(None, nodes.edges.keys(), NOW, MOST)
            .unwrap();
        source.set(nodes, allocation, &Claims::default()).unwrap();
        source
            .set_ports(ClusterPorts {
                ports: [10250].into(),
                localhost_ports: [10266].into(),
            })
            .unwrap();
        assert_eq!(
            source.specs()[&"a".parse::<NodeName>().unwrap()].ports,
            [8080, 10250, 10266]
        );
        let many = ClusterPorts {
            ports: (1..=65).collect(),
            localhost_ports: BTreeSet::new(),
        };
        assert!(
            source
                .set_ports(many)
                .unwrap_err()
                .to_string()
                .contains("65 ports, at most 64")
        );
    }

    fn nodes(edges: &[(&str, &str)], clouds: &[(&str, &str)], pods: &[&str]) -> ClusterNodes {
        let edge = |(name, address): &(&str, &str)| {
            let edge = EdgeNode {
                addresses: vec![address.parse().unwrap()],
                ..EdgeNode::default()
            };
            (name.parse().unwrap(), edge)
        };
        let cloud = |(name, address): &(&str, &str)| {
            let cloud = CloudNode {
                addresses: vec![address.parse().unwrap()],
                ..CloudNode::default()
            };
            (name.parse().unwrap(), cloud)
        };
        ClusterNodes {
            edges: edges.iter().map(edge).collect(),
            clouds: clouds.iter().map(cloud).collect(),
            pod_ranges: pods
                .iter()
                .map(|range| (range.parse().unwrap(), "worker".parse().unwrap()))
                .collect(),
        }
    }

    #[test]
    fn who_had_an_address_first_is_known_over_restarts_and_until_one_gives_it_up() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let contested = |nodes: ClusterNodes| {
            let mut source = ClusterSource::open(&state).unwrap();
            let claims = source
                .kept()
                .map(|kept| Claims::new(&kept.nodes))
                .unwrap_or_default();
            let allocation = proposal("198.18.0.0/15", None)
                .agreed(None, nodes.edges.keys(), NOW, MOST)
                .unwrap();
            source.set(nodes, allocation, &claims).unwrap();
            let kept = source.kept().unwrap();
            kept.contested
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let edge = [("edge-1", "10.0.3.7")];
        assert_eq!(
            contested(nodes(&edge, &[("worker", "10.0.3.7")], &[])),
            [""; 0],
            "nobody knows who was first"
        );
        assert_eq!(contested(nodes(&edge, &[], &[])), [""; 0]);
        for _ in 0..2 {
            assert_eq!(
                contested(nodes(&edge, &[("edge-7", "10.0.3.7")], &[])),
                ["10.0.3.7"]
            );
        }
        assert_eq!(
            contested(nodes(&edge, &[], &["10.0.3.0/24"])),
            ["10.0.3.7"],
            "by whatever claim"
        );
        assert_eq!(
            contested(nodes(&[], &[("edge-7", "10.0.3.7")], &[])),
            [""; 0]
        );
        assert_eq!(
            contested(nodes(&edge, &[("edge-7", "10.0.3.7")], &[])),
            [""; 0],
            "the cloud's came first"
        );
    }

    #[test]
    fn one_bad_node_is_left_out_and_keeps_nobody_else_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut source = ClusterSource::open(&StateDir::open(folder.path()).unwrap()).unwrap();
        let edges = [
            ("edge-1", "10.0.3.7"),
            ("edge-2", "10.0.3.8"),
            ("edge-3", "10.0.3.9"),
        ];
        let nodes = nodes(
            &edges,
            &[("worker", "198.18.0.9"), ("master", "192.0.2.1")],
            &[],
        );
        let two = Most { nodes: 2, ..MOST };
        let allocation = proposal("198.18.0.0/15", None)
            .agreed(None, nodes.edges.keys(), NOW, two)
            .unwrap();
        source.set(nodes, allocation, &Claims::default()).unwrap();
        let (clouds, left_out) = source.kept().unwrap().in_use();
        assert_eq!(
            clouds
                .values()
                .map(|cloud| cloud.addresses.len())
                .collect::<Vec<_>>(),
            [1, 0]
        );
        let reasons: Vec<String> = left_out
            .into_iter()
            .map(|left| format!("{}: {}", left.node, left.reason))
            .collect();
        assert!(
            reasons[0].starts_with("edge-3: the edge node edge-3 has no VIP"),
            "{reasons:?}"
        );
        assert!(
            reasons[1]
                .starts_with("worker: 198.18.0.9 of the cloud node worker is in the VIP range"),
            "{reasons:?}"
        );
        assert_eq!(reasons.len(), 2);
    }

    #[test]
    fn of_a_state_of_0_1_the_ports_are_not_believed_and_what_the_cluster_uses_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let before = r#"{"version": 1, "state": {"kept": {"as_of": 1700000000,
            "allocation": {"ranges": {"vip4": "198.18.0.0/15", "vip6": "fd00:1::/64"}, "vips": {"held": {"edge-7": 1}, "resting": {}}},
            "nodes": {"edges": {"edge-7": {"addresses": ["10.96.0.1"], "ports": [443], "zone": "plant.example"}},
                "clouds": {"master": {"addresses": ["10.0.0.1"]}}}},
            "ports": {"ports": [10250], "localhost_ports": []}}}"#;
        std::fs::write(state.join("cluster.json"), before).unwrap();
        let source = ClusterSource::open(&state).unwrap();
        assert_eq!(
            source.specs()[&"edge-7".parse::<NodeName>().unwrap()].ports,
            [10250]
        );
        assert_eq!(
            source
                .kept()
                .unwrap()
                .nodes
                .edges
                .values()
                .next()
                .unwrap()
                .zone,
            None
        );
        assert_eq!(source.own(), None);
    }

    #[test]
    fn what_the_cluster_uses_stays_known_when_nobody_says_it_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let mut source = ClusterSource::open(&state).unwrap();
        let ranges = |text: &str| [text.parse().unwrap()].into();
        let own = ClusterOwn {
            service_ranges: ranges("10.96.0.0/12"),
            ..ClusterOwn::default()
        };
        source.set_own(own.clone()).unwrap();
        source
            .set_own(ClusterOwn {
                pod_ranges: ranges("10.244.0.0/16"),
                ..ClusterOwn::default()
            })
            .unwrap();
        let known = ClusterOwn {
            pod_ranges: ranges("10.244.0.0/16"),
            ..own
        };
        assert_eq!(ClusterSource::open(&state).unwrap().own(), Some(&known));
    }
}
