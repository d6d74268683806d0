//! The sources of nodes: nodes made by `token create`, kept on disk with the VIPs, and the
//! operator's file; or a cluster alone.

mod cluster;
mod operators_file;
mod primary;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use culvert_api::{NodeName, UnknownNode, Zone};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use self::operators_file::DirectoryFile;
pub use self::primary::Facts;
use super::addresses::{Claims, ClusterProtected, OwnRanges, Protected};
use super::cluster_nodes::ClusterOwn;
use super::cluster_state::ClusterSource;
use super::node::NodeSpec;
use super::stored::Stored;
use super::view::{Clouds, Source, View, ViewInput};
use super::{DirectoryConfig, DirectoryError, NodesFrom};
use crate::clock::UnixTime;
use crate::state::{StateDir, StateError};

/// Fewer nodes than the default VIP range has addresses, and than the largest state file has place
/// for.
const MAX_NODES: usize = 100_000;

/// The effect of removing a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Nothing is left.
    Gone,
    /// The node stays, because this file describes it.
    StillInFile(PathBuf),
    /// The node stays, because the cluster has it.
    StillInCluster,
}

/// Whether the view can have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refreshed {
    Unchanged,
    Changed,
}

/// All inputs of the view.
#[derive(Debug)]
pub(super) struct Sources {
    state: StateDir,
    zone: Zone,
    protected: Protected,
    stored: Stored,
    file: Option<DirectoryFile>,
    /// `--vip4-range` and `--vip6-range`.
    wanted: (Ipv4Net, Option<Ipv6Net>),
    /// If set, it is the only source.
    cluster: Option<ClusterSource>,
    /// Whether another proxy is the only source.
    follows: bool,
    /// Whether `stored` could not be written, as on a full disk.
    is_unwritten: bool,
    /// The cluster's own addresses and ranges, by the flags and the environment.
    given: ClusterOwn,
}

impl Sources {
    pub(super) fn open(
        config: &DirectoryConfig,
        host: BTreeSet<IpAddr>,
    ) -> Result<Self, DirectoryError> {
        let follows = config.nodes_from == NodesFrom::Primary;
        let stored = if follows {
            Stored::open_copy(config)?
        } else {
            Stored::open(config, &host)?
        };
        let file = config.file.clone().map(DirectoryFile::new);
        let mut protected = Protected {
            ranges: config.protect.clone(),
            edge_ranges: config.edge_ranges.clone(),
            ..Protected::default()
        };
        let cluster = match config.nodes_from {
            NodesFrom::Operators | NodesFrom::Primary => None,
            NodesFrom::Cluster => {
                protected.cluster = Some(ClusterProtected {
                    direct: config.direct.clone(),
                    ..Default::default()
                });
                Some(ClusterSource::open(&config.state)?)
            }
        };
        let given = config.given.clone();
        let wanted = (
            config.vip4_range.trunc(),
            config.vip6_range.map(|range| range.trunc()),
        );
        let state = config.state.clone();
        let zone = config.zone.clone();
        let mut sources = Self {
            state,
            zone,
            protected,
            stored,
            file,
            wanted,
            cluster,
            follows,
            is_unwritten: false,
            given,
        };
        sources.protect(None);
        sources.load_last_good();
        sources.refresh(host);
        if follows {
            return Ok(sources);
        }
        let was_stored = Stored::is_there(&sources.state);
        match sources.commit(sources.stored.nodes.clone(), sources.declared().clone()) {
            // What is stored already serves.
            Err(DirectoryError::State(StateError::Write { .. })) if was_stored => {
                sources.is_unwritten = true;
            }
            committed => committed?,
        }
        Ok(sources)
    }

    /// Writes what is in force and could not be written before.
    pub(super) fn write_again(&mut self) -> Result<(), StateError> {
        if self.is_unwritten {
            self.stored.write(&self.state)?;
            self.is_unwritten = false;
        }
        match &mut self.cluster {
            Some(cluster) => cluster.write_again(),
            None => Ok(()),
        }
    }

    pub(super) fn view(&self) -> View {
        match &self.cluster {
            Some(cluster) => self.cluster_view(cluster),
            None => self.own_view(),
        }
    }

    fn own_view(&self) -> View {
        View::new(&ViewInput {
            nodes: &merged(&self.stored.nodes, self.declared()),
            source: &|node| {
                if self.follows {
                    Source::Primary
                } else if self.declared().contains_key(node) {
                    Source::File
                } else {
                    Source::TokenCreate
                }
            },
            protected: &self.protected,
            vips: &self.stored.vips,
            ranges: self.stored.ranges,
            zone: &self.zone,
            localhost_ports: BTreeSet::new(),
            clouds: Clouds::default(),
            left_out: BTreeSet::new(),
        })
    }

    /// Whether there is content: a cluster without a state does not count as empty, nor does a
    /// primary that never answered.
    pub(super) fn is_known(&self) -> bool {
        if self.follows {
            return self.stored.is_copy;
        }
        self.cluster
            .as_ref()
            .is_none_or(|cluster| cluster.last().is_some())
    }

    /// Computes the protected addresses, with the claims of Nodes if they have changed.
    fn protect(&mut self, claims: Option<Claims>) {
        let last = self.cluster.as_ref().and_then(ClusterSource::last);
        let ranges = last.map_or(self.stored.ranges, |last| last.allocation.ranges);
        self.protected.vips = vec![ranges.vip4.into(), ranges.vip6.into()];
        let Some(protected) = &mut self.protected.cluster else {
            return;
        };
        let found = self.cluster.as_ref().and_then(ClusterSource::own);
        protected.asked = if found.is_some() {
            OwnRanges::Known
        } else {
            OwnRanges::Unknown
        };
        protected.own = found.cloned().unwrap_or_default().with(&self.given);
        protected.contested = last.map(|last| last.contested.clone()).unwrap_or_default();
        if let Some(claims) = claims.or_else(|| last.map(|last| Claims::new(&last.nodes))) {
            protected.claims = claims;
        }
    }

    pub(super) fn put(
        &mut self,
        node: &NodeName,
        addresses: Vec<IpAddr>,
        ports: Vec<u16>,
    ) -> Result<(), DirectoryError> {
        let given = NodeSpec {
            addresses,
            ports,
            ..NodeSpec::with_default_ports()
        }
        .checked()?;
        if self.cluster.is_some() {
            return self.accept(node, &given);
        }
        self.check_own()?;
        if let Some(file) = &self.file
            && file.nodes.contains_key(node)
        {
            return if given.addresses.is_empty() && given.ports.is_empty() {
                Ok(())
            } else {
                Err(DirectoryError::DescribedInFile {
                    node: node.clone(),
                    file: file.path.clone(),
                })
            };
        }
        let mut nodes = self.stored.nodes.clone();
        let spec = nodes
            .entry(node.clone())
            .or_insert_with(NodeSpec::with_default_ports);
        if !given.addresses.is_empty() {
            spec.addresses = given.addresses;
        }
        if !given.ports.is_empty() {
            spec.ports = given.ports;
        }
        self.commit(nodes, self.declared().clone())
    }

    pub(super) fn remove(&mut self, node: &NodeName) -> Result<Removal, DirectoryError> {
        if self.cluster.is_some() {
            return if self.has_edge(node) {
                Ok(Removal::StillInCluster)
            } else {
                Err(UnknownNode::new(node.as_str()).into())
            };
        }
        self.check_own()?;
        let mut nodes = self.stored.nodes.clone();
        let made = nodes.remove(node).is_some();
        if made {
            self.commit(nodes, self.declared().clone())?;
        }
        match &self.file {
            Some(file) if file.nodes.contains_key(node) => {
                Ok(Removal::StillInFile(file.path.clone()))
            }
            _ if made => Ok(Removal::Gone),
            _ => Err(UnknownNode::new(node.as_str()).into()),
        }
    }

    /// Allocates VIPs for these nodes and writes the new state. Uses it only after it is written.
    fn commit(
        &mut self,
        nodes: BTreeMap<NodeName, NodeSpec>,
        declared: BTreeMap<NodeName, NodeSpec>,
    ) -> Result<(), DirectoryError> {
        let all = merged(&nodes, &declared);
        self.check_addresses(&all)?;
        if all.len() > MAX_NODES {
            return Err(DirectoryError::Full(MAX_NODES));
        }
        let ranges = self.stored.ranges;
        let vips = self
            .stored
            .vips
            .reconciled(all.keys(), &ranges, UnixTime::now())?;
        let stored = Stored {
            ranges,
            nodes,
            vips,
            is_copy: false,
        };
        stored.write(&self.state)?;
        self.stored = stored;
        self.is_unwritten = false;
        if let Some(file) = &mut self.file {
            file.nodes = declared;
        }
        Ok(())
    }

    fn check_own(&self) -> Result<(), DirectoryError> {
        if self.follows {
            Err(DirectoryError::Follows)
        } else {
            Ok(())
        }
    }

    fn check_addresses(&self, nodes: &BTreeMap<NodeName, NodeSpec>) -> Result<(), DirectoryError> {
        let ranges = self.stored.ranges;
        for (node, spec) in nodes {
            if let Some(address) = spec
                .addresses
                .iter()
                .copied()
                .find(|address| ranges.contains(*address))
            {
                let range = if address.is_ipv4() {
                    IpNet::V4(ranges.vip4)
                } else {
                    IpNet::V6(ranges.vip6)
                };
                return Err(DirectoryError::AddressInVipRange {
                    node: node.clone(),
                    address,
                    range,
                });
            }
        }
        Ok(())
    }

    fn declared(&self) -> &BTreeMap<NodeName, NodeSpec> {
        static NONE: BTreeMap<NodeName, NodeSpec> = BTreeMap::new();
        self.file.as_ref().map_or(&NONE, |file| &file.nodes)
    }
}

/// The file takes precedence for its nodes.
fn merged(
    made: &BTreeMap<NodeName, NodeSpec>,
    declared: &BTreeMap<NodeName, NodeSpec>,
) -> BTreeMap<NodeName, NodeSpec> {
    let mut all = made.clone();
    all.extend(
        declared
            .iter()
            .map(|(node, spec)| (node.clone(), spec.clone())),
    );
    all
}
