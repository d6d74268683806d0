//! A cluster as the only source.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use culvert_api::NodeName;

use super::{Refreshed, Sources};
use crate::directory::DirectoryError;
use crate::directory::allocation::{Allocation, Proposal};
use crate::directory::cluster_nodes::{ClusterNodes, ClusterOwn, ClusterPorts};
use crate::directory::cluster_state::{ClusterSource, LastState};
use crate::directory::node::NodeSpec;
use crate::directory::uid::NodeUid;
use crate::directory::view::{Source, View, ViewInput};
use crate::directory::vips::{VipRanges, Vips, foreign};

impl Sources {
    pub(super) fn cluster_view(&self, cluster: &ClusterSource) -> View {
        let nobodys = Vips::default();
        let last = cluster.last();
        let (clouds, left_out) = last.map(LastState::in_use).unwrap_or_default();
        View::new(&ViewInput {
            nodes: &cluster.specs(),
            source: &|_| Source::Cluster,
            protected: &self.protected,
            vips: last.map_or(&nobodys, |last| &last.allocation.vips),
            ranges: last.map_or(self.stored.ranges, |last| last.allocation.ranges),
            zone: &self.zone,
            localhost_ports: cluster.ports().localhost_ports.clone(),
            clouds: Arc::new(clouds),
            left_out,
        })
    }

    /// The last state of the cluster.
    pub(in crate::directory) fn last(&self) -> Option<&LastState> {
        self.cluster.as_ref()?.last()
    }

    /// The UIDs of the cluster's edge nodes.
    pub(in crate::directory) fn uids(&self) -> BTreeMap<NodeName, NodeUid> {
        let mut uids = BTreeMap::new();
        if let Some(last) = self.last() {
            for (name, edge) in &last.nodes.edges {
                if let Some(uid) = &edge.uid {
                    uids.insert(name.clone(), uid.clone());
                }
            }
        }
        uids
    }

    pub(in crate::directory) fn proposal(&self) -> Proposal {
        let (vip4, vip6) = self.wanted;
        let last = match self.last() {
            Some(last) => last.allocation.clone(),
            None => Allocation {
                ranges: self.stored.ranges,
                vips: Vips::default(),
            },
        };
        let ranges = VipRanges {
            vip4,
            vip6: vip6.unwrap_or(last.ranges.vip6),
        };
        let vips = if last.ranges == ranges {
            last.vips
        } else {
            last.vips.moved(&ranges).0
        };
        Proposal {
            vip4,
            vip6,
            last: Allocation { ranges, vips },
        }
    }

    pub(in crate::directory) fn set_cluster(
        &mut self,
        nodes: ClusterNodes,
        allocation: Allocation,
    ) -> Result<(), DirectoryError> {
        let known = self
            .last()
            .is_some_and(|last| last.allocation.ranges == allocation.ranges);
        if !known {
            let foreign = foreign(&self.protected.ranges, &self.protected.host);
            VipRanges::checked(allocation.ranges.vip4, allocation.ranges.vip6, &foreign)?;
        }
        let Some(cluster) = &mut self.cluster else {
            return Ok(());
        };
        let Some(protected) = &self.protected.cluster else {
            return Ok(());
        };
        let claims = cluster.set(nodes, allocation, &protected.claims)?;
        self.protect(Some(claims));
        Ok(())
    }

    /// Sets the cluster's own addresses and ranges, by the API server.
    pub(in crate::directory) fn set_own(
        &mut self,
        own: ClusterOwn,
    ) -> Result<Refreshed, DirectoryError> {
        let Some(cluster) = &mut self.cluster else {
            return Ok(Refreshed::Unchanged);
        };
        let before = cluster.own().cloned();
        cluster.set_own(own)?;
        if before.as_ref() == cluster.own() {
            return Ok(Refreshed::Unchanged);
        }
        self.protect(None);
        Ok(Refreshed::Changed)
    }

    /// Sets the addresses at which this proxy reaches the API server.
    pub(in crate::directory) fn set_api_servers(
        &mut self,
        addresses: BTreeSet<IpAddr>,
    ) -> Refreshed {
        if self.given.api_servers == addresses {
            return Refreshed::Unchanged;
        }
        self.given.api_servers = addresses;
        self.protect(None);
        Refreshed::Changed
    }

    pub(in crate::directory) fn set_ports(
        &mut self,
        ports: ClusterPorts,
    ) -> Result<(), DirectoryError> {
        match &mut self.cluster {
            Some(cluster) => cluster.set_ports(ports),
            None => Ok(()),
        }
    }

    pub(in crate::directory) fn confirm_cluster(&mut self) -> Result<(), DirectoryError> {
        match &mut self.cluster {
            Some(cluster) => Ok(cluster.confirm()?),
            None => Ok(()),
        }
    }

    /// Only the cluster adds nodes. A token can be made for any of them.
    pub(super) fn accept(&self, node: &NodeName, given: &NodeSpec) -> Result<(), DirectoryError> {
        if !self.has_edge(node) {
            return Err(DirectoryError::NotInCluster { node: node.clone() });
        }
        if !given.addresses.is_empty() || !given.ports.is_empty() {
            return Err(DirectoryError::DescribedInCluster { node: node.clone() });
        }
        Ok(())
    }

    pub(super) fn has_edge(&self, node: &NodeName) -> bool {
        self.last()
            .is_some_and(|last| last.nodes.edges.contains_key(node))
    }
}
