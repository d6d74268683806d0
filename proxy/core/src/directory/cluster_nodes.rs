//! The nodes of a Kubernetes cluster, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use culvert_api::ports::NODE_PORTS;
use culvert_api::{NodeName, Zone};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::node::{InvalidNode, MAX_PORTS};
use super::uid::NodeUid;

/// The ports that are steered on all edge nodes of the cluster, in addition to each node's kubelet
/// port and further ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterPorts {
    /// Ports that are dialled at the node's address.
    pub ports: BTreeSet<u16>,
    /// Ports that are dialled at the node's 127.0.0.1.
    pub localhost_ports: BTreeSet<u16>,
}

impl Default for ClusterPorts {
    /// The default ports.
    fn default() -> Self {
        Self {
            ports: NODE_PORTS.into(),
            localhost_ports: BTreeSet::new(),
        }
    }
}

impl ClusterPorts {
    pub(super) fn checked(self) -> Result<Self, InvalidNode> {
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
pub struct EdgeNode {
    /// The preferred one first.
    pub addresses: Vec<IpAddr>,
    /// Its own ports that are steered, in addition to the cluster's.
    pub ports: BTreeSet<u16>,
    /// A further zone: `<node>.<zone>` is the node too.
    pub zone: Option<Zone>,
    /// The UID of the Node.
    #[serde(default)]
    pub uid: Option<NodeUid>,
    /// Destinations in its network that its agent reaches.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub behind: BTreeSet<SocketAddr>,
}

/// A node that clients reach without a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudNode {
    /// The preferred one first.
    pub addresses: Vec<IpAddr>,
    /// Further addresses of other types. No client is sent to them.
    #[serde(default)]
    pub others: BTreeSet<IpAddr>,
}

impl CloudNode {
    /// All of its addresses.
    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().chain(&self.others).copied()
    }
}

/// The cluster's own addresses and ranges, from sources that no kubelet can write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterOwn {
    /// The addresses of the API server.
    pub api_servers: BTreeSet<IpAddr>,
    /// Ranges of Services; empty: unknown.
    pub service_ranges: BTreeSet<IpNet>,
    /// Ranges of pods; empty: unknown.
    pub pod_ranges: BTreeSet<IpNet>,
}

impl ClusterOwn {
    /// Both together.
    pub(super) fn with(mut self, other: &Self) -> Self {
        self.api_servers.extend(&other.api_servers);
        self.service_ranges.extend(&other.service_ranges);
        self.pod_ranges.extend(&other.pod_ranges);
        self
    }

    /// Keeps known values until there are new ones. If a ConfigMap is deleted, its ranges stay
    /// protected.
    pub(super) fn or(self, before: &Self) -> Self {
        Self {
            api_servers: present_or_before(self.api_servers, &before.api_servers),
            service_ranges: present_or_before(self.service_ranges, &before.service_ranges),
            pod_ranges: present_or_before(self.pod_ranges, &before.pod_ranges),
        }
    }
}

fn present_or_before<T: Clone + Ord>(now: BTreeSet<T>, before: &BTreeSet<T>) -> BTreeSet<T> {
    if now.is_empty() { before.clone() } else { now }
}

/// All nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterNodes {
    /// Edge nodes by name.
    pub edges: BTreeMap<NodeName, EdgeNode>,
    /// Cloud nodes by name.
    pub clouds: BTreeMap<NodeName, CloudNode>,
    /// Ranges of nodes' pods, with a node that has each.
    #[serde(default)]
    pub pod_ranges: BTreeMap<IpNet, NodeName>,
}

impl ClusterNodes {
    /// The addresses of all edge nodes, and of what is behind them.
    pub(super) fn edge_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.edges.values().flat_map(|edge| {
            let behind = edge.behind.iter().map(SocketAddr::ip);
            edge.addresses.iter().copied().chain(behind)
        })
    }
}

/// A part of a Node that is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftOut {
    /// The node.
    pub node: NodeName,
    /// The part, the reason, and the fix.
    pub reason: String,
}
