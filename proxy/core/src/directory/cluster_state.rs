//! The last state of a Kubernetes cluster, on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use culvert_api::NodeName;
use serde::{Deserialize, Serialize};

use super::addresses::Claims;
use super::allocation::Allocation;
use super::cluster_nodes::{CloudNode, ClusterNodes, ClusterOwn, ClusterPorts, LeftOut};
use super::error::DirectoryError;
use super::node::NodeSpec;
use crate::clock::UnixTime;
use crate::state::{StateDir, StateError, StateFile};

const FILE: StateFile = StateFile {
    name: "cluster-state.json",
    what: "the last state of the cluster until its API server answers",
};
/// The format of version 0.1: without the cluster's own ranges, and with ports that kubelets could
/// choose.
const FILE_OF_0_1: StateFile = StateFile {
    name: "cluster.json",
    ..FILE
};

/// The state of a cluster that was last applied.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LastState {
    pub(super) as_of: UnixTime,
    pub(super) allocation: Allocation,
    pub(super) nodes: ClusterNodes,
    /// Addresses that edge nodes had before a Node claimed them.
    #[serde(default)]
    pub(super) contested: BTreeSet<IpAddr>,
}

impl LastState {
    /// The cloud nodes with their valid addresses, and the parts of all nodes that are left out. No
    /// Node delays the others.
    pub(super) fn in_use(&self) -> (BTreeMap<NodeName, CloudNode>, BTreeSet<LeftOut>) {
        let ranges = &self.allocation.ranges;
        let mut clouds = self.nodes.clouds.clone();
        let mut left_out = BTreeSet::new();
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
        for name in self.nodes.edges.keys() {
            if self.allocation.vips.of(name, ranges).is_some() {
                continue;
            }
            let reason = format!(
                "the edge node {name} has no VIP: there are too many nodes, or their names are too \
                 long"
            );
            left_out.insert(LeftOut {
                node: name.clone(),
                reason,
            });
        }
        (clouds, left_out)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    kept: Option<LastState>,
    ports: ClusterPorts,
    /// `None`: the API server was never asked for it.
    #[serde(default)]
    own: Option<ClusterOwn>,
}

impl OnDisk {
    /// Ports and zones that a kubelet could have written are dropped.
    fn distrusted(mut self) -> Self {
        if let Some(kept) = &mut self.kept {
            for edge in kept.nodes.edges.values_mut() {
                edge.ports.clear();
                edge.zone = None;
            }
        }
        self
    }
}

/// The cluster as the only source of nodes.
#[derive(Debug)]
pub(super) struct ClusterSource {
    state: StateDir,
    stored: OnDisk,
    /// Whether what is stored could not be written, as on a full disk.
    is_unwritten: bool,
}

impl ClusterSource {
    /// Reads the last state. Invalid content is an error.
    pub(super) fn open(state: &StateDir) -> Result<Self, StateError> {
        let stored = match state.read(FILE)? {
            Some(stored) => stored,
            None => match state.read::<OnDisk>(FILE_OF_0_1)? {
                Some(stored) => stored.distrusted(),
                None => OnDisk::default(),
            },
        };
        if let Some(kept) = &stored.kept
            && let Some(problem) = kept.allocation.problem()
        {
            return Err(state.invalid(FILE, problem));
        }
        Ok(Self {
            state: state.clone(),
            stored,
            is_unwritten: false,
        })
    }

    pub(super) fn last(&self) -> Option<&LastState> {
        self.stored.kept.as_ref()
    }

    pub(super) fn ports(&self) -> &ClusterPorts {
        &self.stored.ports
    }

    pub(super) fn set_ports(&mut self, ports: ClusterPorts) -> Result<(), DirectoryError> {
        let ports = ports.checked()?;
        if self.stored.ports == ports {
            return Ok(());
        }
        Ok(self.commit(OnDisk {
            ports,
            ..self.stored.clone()
        })?)
    }

    /// The cluster's own addresses and ranges, by the last answer of its API server; `None`: it was
    /// never asked.
    pub(super) fn own(&self) -> Option<&ClusterOwn> {
        self.stored.own.as_ref()
    }

    /// Sets the cluster's own addresses and ranges, by the API server.
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

    /// Applies the nodes. `old_claims` are the claims of the previous nodes. Returns the new
    /// claims.
    pub(super) fn set(
        &mut self,
        nodes: ClusterNodes,
        allocation: Allocation,
        old_claims: &Claims,
    ) -> Result<Claims, StateError> {
        let claims = Claims::new(&nodes);
        let before = self.last().map(|last| (last, old_claims));
        let contested = contested(&nodes, &claims, before);
        let kept = LastState {
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

    /// Writes the time at which the state was last confirmed.
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
        let mut specs = BTreeMap::new();
        let Some(kept) = &self.stored.kept else {
            return specs;
        };
        let ports = &self.stored.ports;
        let common: BTreeSet<u16> = ports.ports.union(&ports.localhost_ports).copied().collect();
        for (name, node) in &kept.nodes.edges {
            let spec = NodeSpec {
                addresses: node.addresses.clone(),
                ports: common.union(&node.ports).copied().collect(),
                zone: node.zone.clone(),
                behind: node.behind.iter().copied().collect(),
            };
            specs.insert(name.clone(), spec);
        }
        specs
    }

    /// Uses and writes it. The cluster has all of it, so it is used also if it cannot be written: a
    /// removed Node is gone, and a new one is reached. An error only while another proxy takes this
    /// one's place.
    fn commit(&mut self, stored: OnDisk) -> Result<(), StateError> {
        let written = self.state.write(FILE, &stored);
        if let Err(frozen @ StateError::Frozen { .. }) = written {
            return Err(frozen);
        }
        self.stored = stored;
        self.is_unwritten = written.is_err();
        Ok(())
    }

    /// Writes what could not be written before.
    pub(super) fn write_again(&mut self) -> Result<(), StateError> {
        if self.is_unwritten {
            self.state.write(FILE, &self.stored)?;
            self.is_unwritten = false;
        }
        Ok(())
    }
}

/// Edge nodes' addresses that the cloud also has by `claims`, if an edge node had them `before`, by
/// the claims of that time. They stay contested until one of the two owners gives them up.
fn contested(
    nodes: &ClusterNodes,
    claims: &Claims,
    before: Option<(&LastState, &Claims)>,
) -> BTreeSet<IpAddr> {
    let Some((last, old_claims)) = before else {
        return BTreeSet::new();
    };
    let had: BTreeSet<IpAddr> = last.nodes.edge_addresses().collect();
    let mut contested = BTreeSet::new();
    for address in nodes.edge_addresses() {
        if claims.by(address).is_none() {
            continue;
        }
        let was_an_edges = had.contains(&address) && old_claims.by(address).is_none();
        if was_an_edges || last.contested.contains(&address) {
            contested.insert(address);
        }
    }
    contested
}

#[cfg(test)]
mod tests;
