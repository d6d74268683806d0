//! Changes of the directory by a Kubernetes cluster: its Nodes, its ports, and whether its API
//! server answers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use culvert_api::NodeName;

use super::Directory;
use super::allocation::{Allocation, Proposal};
use super::cluster_nodes::{ClusterNodes, ClusterOwn, ClusterPorts};
use super::error::DirectoryError;
use super::freshness::Freshness;
use super::sources::Refreshed;
use crate::clock::UnixTime;
use crate::state::StateError;

/// Writes the cluster's state to the directory. It is in force when a call returns, and on disk
/// too, unless the disk refuses it: then it is written later, by [`Editor::maintain`]. Clones share
/// it.
///
/// [`Editor::maintain`]: super::Editor::maintain
#[derive(Clone, Debug)]
pub struct ClusterWriter(Directory);

impl ClusterWriter {
    pub(crate) fn new(directory: Directory) -> Self {
        Self(directory)
    }

    /// The reader's handle.
    pub fn directory(&self) -> &Directory {
        &self.0
    }

    /// Sets the ports that are steered on all edge nodes of the cluster.
    pub fn set_ports(&self, ports: ClusterPorts) -> Result<(), DirectoryError> {
        let mut sources = self.0.sources();
        sources.set_ports(ports)?;
        self.0.publish(&sources);
        Ok(())
    }

    /// Applies the cluster's nodes and VIPs. Returns the nodes that were deleted.
    pub fn set_cluster(
        &self,
        nodes: ClusterNodes,
        allocation: Allocation,
    ) -> Result<Vec<NodeName>, DirectoryError> {
        let mut sources = self.0.sources();
        sources.set_cluster(nodes, allocation)?;
        Ok(self.0.publish(&sources))
    }

    /// Sets the cluster's own addresses and ranges, by the API server.
    pub fn set_own(&self, own: ClusterOwn) -> Result<(), DirectoryError> {
        let mut sources = self.0.sources();
        if sources.set_own(own)? == Refreshed::Changed {
            self.0.publish(&sources);
        }
        Ok(())
    }

    /// Sets the addresses at which this proxy reaches the API server.
    pub fn set_api_servers(&self, addresses: BTreeSet<IpAddr>) {
        let mut sources = self.0.sources();
        if sources.set_api_servers(addresses) == Refreshed::Changed {
            self.0.publish(&sources);
        }
    }

    /// This proxy's contribution to the agreement on VIPs.
    pub fn proposal(&self) -> Proposal {
        self.0.sources().proposal()
    }

    /// The API server confirms the cluster's state. Returns the previous freshness.
    pub fn set_live(&self) -> Option<Freshness> {
        self.0.published_mut().freshness.replace(Freshness::Live)
    }

    /// The API server no longer confirms the cluster's state. Returns the previous freshness.
    pub fn set_stale(&self, cause: String) -> Option<Freshness> {
        let mut published = self.0.published_mut();
        let since = match &published.freshness {
            Some(Freshness::Stale { since, .. }) => *since,
            Some(Freshness::Live) | None => Some(UnixTime::now()),
        };
        published
            .freshness
            .replace(Freshness::Stale { since, cause })
    }

    /// Writes the time of the last confirmation, if the API server still confirms the state.
    pub fn confirm(&self) -> Result<(), DirectoryError> {
        match self.0.freshness() {
            Some(Freshness::Live) => match self.0.sources().confirm_cluster() {
                // The proxy that takes this one's place confirms it.
                Err(DirectoryError::State(StateError::Frozen { .. })) => Ok(()),
                confirmed => confirmed,
            },
            Some(Freshness::Stale { .. }) | None => Ok(()),
        }
    }
}
