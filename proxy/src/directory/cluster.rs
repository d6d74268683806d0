//! What a Kubernetes cluster says of its nodes, as plain data, and its last state on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use culvert_tunnel::NodeName;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::node::{DEFAULT_PORTS, InvalidNode, MAX_PORTS, NodeSpec};
use super::view::Zone;
use super::vips::{VipError, VipRanges, Vips};
use crate::clock::UnixTime;
use crate::identity::NodeUid;
use crate::state::{StateDir, StateError, StateFile};

const KEPT: StateFile =
    StateFile { name: "cluster.json", what: "the last state of the cluster until its API server answers" };

/// Ports that are steered on all edge nodes of the cluster, besides each node's kubelet port and own further ones.
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
        Self { ports: DEFAULT_PORTS.into(), localhost_ports: BTreeSet::new() }
    }
}

impl ClusterPorts {
    fn checked(self) -> Result<Self, InvalidNode> {
        let given = self.ports.union(&self.localhost_ports).count();
        if given > MAX_PORTS {
            return Err(InvalidNode::TooMany { given, what: "ports", most: MAX_PORTS });
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
}

/// All nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterNodes {
    /// By name.
    pub(crate) edges: BTreeMap<NodeName, EdgeNode>,
    /// By name.
    pub(crate) clouds: BTreeMap<NodeName, CloudNode>,
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
    /// The allocation when exactly `edges` exist: from the one that the cluster keeps, or from this proxy's last where it keeps none.
    pub(crate) fn agreed<'a>(
        &self,
        kept: Option<Allocation>,
        edges: impl Iterator<Item = &'a NodeName>,
        now: UnixTime,
    ) -> Result<Allocation, VipError> {
        let Allocation { ranges, vips } = match kept {
            Some(kept) => self.fits(&kept.ranges).map(|()| kept)?,
            None => self.last.clone(),
        };
        Ok(Allocation { ranges, vips: vips.reconciled(edges, &ranges, now)? })
    }

    fn fits(&self, kept: &VipRanges) -> Result<(), VipError> {
        let disagreed = |kept: ipnet::IpNet, own: ipnet::IpNet, flag| Err(VipError::Disagreed { kept, own, flag });
        match self.vip6 {
            _ if self.vip4 != kept.vip4 => disagreed(kept.vip4.into(), self.vip4.into(), "--vip4-range"),
            Some(own) if own != kept.vip6 => disagreed(kept.vip6.into(), own.into(), "--vip6-range"),
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
            Self::Stale { since: None, cause } => Some(format!("no node of the cluster is known yet: {cause}")),
            Self::Stale { since: Some(since), cause } => {
                let age = UnixTime::now().since(*since).as_secs();
                Some(format!("the API server last confirmed these nodes {age} s ago, at {since}: {cause}"))
            }
        }
    }

    /// How long ago the API server confirmed the state; infinite if it never did.
    pub(crate) fn age_seconds(&self) -> f64 {
        match self {
            Self::Live => 0.0,
            Self::Stale { since: Some(since), .. } => UnixTime::now().since(*since).as_secs_f64(),
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
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    kept: Option<Kept>,
    ports: ClusterPorts,
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
        let stored: OnDisk = state.read(KEPT)?.unwrap_or_default();
        match stored.kept.as_ref().and_then(|kept| kept.allocation.problem()) {
            Some(problem) => Err(state.invalid(KEPT, problem)),
            None => Ok(Self { state: state.clone(), stored }),
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
        Ok(self.commit(OnDisk { ports, ..self.stored.clone() })?)
    }

    pub(super) fn set(&mut self, nodes: ClusterNodes, allocation: Allocation) -> Result<(), StateError> {
        let kept = Kept { as_of: UnixTime::now(), allocation, nodes };
        self.commit(OnDisk { kept: Some(kept), ports: self.stored.ports.clone() })
    }

    /// Writes down that the state is still true.
    pub(super) fn confirm(&mut self) -> Result<(), StateError> {
        let mut stored = self.stored.clone();
        let Some(kept) = &mut stored.kept else { return Ok(()) };
        kept.as_of = UnixTime::now();
        self.commit(stored)
    }

    /// The edge nodes with all ports that are steered.
    pub(super) fn specs(&self) -> BTreeMap<NodeName, NodeSpec> {
        let common = self.stored.ports.ports.union(&self.stored.ports.localhost_ports);
        let common: BTreeSet<u16> = common.copied().collect();
        let spec = |node: &EdgeNode| NodeSpec {
            addresses: node.addresses.clone(),
            ports: common.union(&node.ports).copied().collect(),
            zone: node.zone.clone(),
        };
        let edges = self.stored.kept.iter().flat_map(|kept| &kept.nodes.edges);
        edges.map(|(name, node)| (name.clone(), spec(node))).collect()
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

    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);

    fn names(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn ranges(vip4: &str, vip6: &str) -> VipRanges {
        VipRanges::checked(vip4.parse().unwrap(), vip6.parse().unwrap(), &[]).unwrap()
    }

    fn proposal(vip4: &str, vip6: Option<&str>) -> Proposal {
        let last = Allocation { ranges: ranges(vip4, vip6.unwrap_or("fd00:1::/64")), vips: Vips::default() };
        Proposal { vip4: vip4.parse().unwrap(), vip6: vip6.map(|text| text.parse().unwrap()), last }
    }

    fn vip4(allocation: &Allocation, node: &str) -> String {
        allocation.vips.of(&node.parse().unwrap(), &allocation.ranges).unwrap().v4.to_string()
    }

    #[test]
    fn what_the_cluster_keeps_wins_over_what_a_proxy_remembers() {
        let (ours, theirs) = (proposal("198.18.0.0/15", None), proposal("198.18.0.0/15", Some("fd00:2::/64")));
        let kept = theirs.agreed(None, names(&["b"]).iter(), NOW).unwrap();
        let agreed = ours.agreed(Some(kept.clone()), names(&["a", "b"]).iter(), NOW).unwrap();
        assert_eq!((vip4(&agreed, "a"), vip4(&agreed, "b")), ("198.18.0.2".into(), "198.18.0.1".into()));
        assert_eq!(agreed.ranges, kept.ranges);
    }

    #[test]
    fn a_cluster_that_lost_its_vips_gets_back_those_that_a_proxy_remembers() {
        let mut proposal = proposal("198.18.0.0/15", None);
        proposal.last = proposal.agreed(None, names(&["b"]).iter(), NOW).unwrap();
        let agreed = proposal.agreed(None, names(&["a", "b"]).iter(), NOW).unwrap();
        assert_eq!((vip4(&agreed, "a"), vip4(&agreed, "b")), ("198.18.0.2".into(), "198.18.0.1".into()));
    }

    #[test]
    fn a_proxy_with_other_ranges_than_the_clusters_refuses_and_says_what_to_give() {
        let kept = proposal("198.18.0.0/15", Some("fd00:2::/64")).agreed(None, names(&["b"]).iter(), NOW).unwrap();
        let refusal =
            |own: Proposal| own.agreed(Some(kept.clone()), names(&["b"]).iter(), NOW).unwrap_err().to_string();
        assert!(refusal(proposal("10.9.0.0/16", None)).contains("give --vip4-range 198.18.0.0/15"));
        assert!(refusal(proposal("198.18.0.0/15", Some("fd00:3::/64"))).contains("give --vip6-range fd00:2::/64"));
    }

    #[test]
    fn ports_of_the_cluster_and_of_the_node_are_steered_together() {
        let folder = tempfile::tempdir().unwrap();
        let mut source = ClusterSource::open(&StateDir::open(folder.path()).unwrap()).unwrap();
        let edge = EdgeNode { ports: [10250, 8080].into(), ..EdgeNode::default() };
        let nodes = ClusterNodes { edges: [("a".parse().unwrap(), edge)].into(), clouds: BTreeMap::new() };
        let allocation = proposal("198.18.0.0/15", None).agreed(None, nodes.edges.keys(), NOW).unwrap();
        source.set(nodes, allocation).unwrap();
        source.set_ports(ClusterPorts { ports: [10250].into(), localhost_ports: [10266].into() }).unwrap();
        assert_eq!(source.specs()[&"a".parse::<NodeName>().unwrap()].ports, [8080, 10250, 10266]);
        let many = ClusterPorts { ports: (1..=65).collect(), localhost_ports: BTreeSet::new() };
        assert!(source.set_ports(many).unwrap_err().to_string().contains("65 ports, at most 64"));
    }
}
