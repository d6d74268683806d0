//! The sources of nodes: nodes made by `token create`, kept on disk with the VIPs, and the
//! operator's file; or a cluster alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_api::{NodeName, Zone};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::addresses::{Claims, ClusterProtected, OwnRanges, Protected};
use super::allocation::{Allocation, Proposal};
use super::cluster_nodes::{ClusterNodes, ClusterOwn, ClusterPorts};
use super::cluster_state::{ClusterSource, LastState};
use super::facts::Facts;
use super::file::{self, FileError};
use super::node::NodeSpec;
use super::stored::Stored;
use super::uid::NodeUid;
use super::view::{Clouds, Source, View, ViewInput};
use super::vips::{VipRanges, Vips, foreign};
use super::{DirectoryConfig, DirectoryError, NodesFrom};
use crate::clock::UnixTime;
use crate::state::StateDir;

/// The last valid version of the operator's file. It is used if the file is broken when the proxy
/// starts.
const LAST_GOOD: &str = "directory-last-good.toml";
/// More nodes than one proxy can have tunnels for, and far fewer than the default VIP range has
/// addresses.
const MAX_NODES: usize = 20_000;
/// The effect of removing a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
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
    /// The cluster's own addresses and ranges, by the flags and the environment.
    given: ClusterOwn,
}

#[derive(Debug)]
struct DirectoryFile {
    path: PathBuf,
    /// The text that was last read, to notice changes.
    text: Option<String>,
    nodes: BTreeMap<NodeName, NodeSpec>,
    /// Whether any version of it was valid.
    was_loaded: bool,
    problem: Option<String>,
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
        let file = config.file.as_ref().map(|path| DirectoryFile {
            path: path.clone(),
            text: None,
            nodes: BTreeMap::new(),
            was_loaded: false,
            problem: None,
        });
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
        let (state, zone) = (config.state.clone(), config.zone.clone());
        let mut sources = Self {
            state,
            zone,
            protected,
            stored,
            file,
            wanted,
            cluster,
            follows,
            given,
        };
        sources.protect(None);
        sources.load_last_good();
        sources.refresh(host);
        if follows {
            return Ok(sources);
        }
        sources.commit(sources.stored.nodes.clone(), sources.declared().clone())?;
        Ok(sources)
    }

    pub(super) fn view(&self) -> View {
        match &self.cluster {
            Some(cluster) => self.cluster_view(cluster),
            None => self.own_view(),
        }
    }

    fn own_view(&self) -> View {
        let of_file = |node: &NodeName| self.declared().contains_key(node);
        View::new(&ViewInput {
            nodes: &merged(&self.stored.nodes, self.declared()),
            source: &|node| {
                if self.follows {
                    Source::Primary
                } else if of_file(node) {
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

    fn cluster_view(&self, cluster: &ClusterSource) -> View {
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

    /// The last state of the cluster.
    pub(super) fn last(&self) -> Option<&LastState> {
        self.cluster.as_ref()?.last()
    }

    /// The UIDs of the cluster's edge nodes.
    pub(super) fn uids(&self) -> BTreeMap<NodeName, NodeUid> {
        let edges = self.last().into_iter().flat_map(|last| &last.nodes.edges);
        edges
            .filter_map(|(name, edge)| Some((name.clone(), edge.uid.clone()?)))
            .collect()
    }

    pub(super) fn proposal(&self) -> Proposal {
        let (vip4, vip6) = self.wanted;
        let last = self.last().map(|last| last.allocation.clone());
        let last = last.unwrap_or_else(|| Allocation {
            ranges: self.stored.ranges,
            vips: Vips::default(),
        });
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

    pub(super) fn set_cluster(
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
        let (Some(cluster), Some(protected)) = (&mut self.cluster, &self.protected.cluster) else {
            return Ok(());
        };
        let claims = cluster.set(nodes, allocation, &protected.claims)?;
        self.protect(Some(claims));
        Ok(())
    }

    /// Sets the cluster's own addresses and ranges, by the API server.
    pub(super) fn set_own(&mut self, own: ClusterOwn) -> Result<Refreshed, DirectoryError> {
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
    pub(super) fn set_api_servers(&mut self, addresses: BTreeSet<IpAddr>) -> Refreshed {
        if self.given.api_servers == addresses {
            return Refreshed::Unchanged;
        }
        self.given.api_servers = addresses;
        self.protect(None);
        Refreshed::Changed
    }

    pub(super) fn confirm_cluster(&mut self) -> Result<(), DirectoryError> {
        match &mut self.cluster {
            Some(cluster) => Ok(cluster.confirm()?),
            None => Ok(()),
        }
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

    pub(super) fn file_problem(&self) -> Option<String> {
        self.file.as_ref()?.problem.clone()
    }

    /// Whether there is a file, but no version of it was valid.
    pub(super) fn lacks_file(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.was_loaded)
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
        if let Some(file) = self
            .file
            .as_ref()
            .filter(|file| file.nodes.contains_key(node))
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

    /// Only the cluster adds nodes. A token can be made for any of them.
    fn accept(&self, node: &NodeName, given: &NodeSpec) -> Result<(), DirectoryError> {
        if !self.has_edge(node) {
            return Err(DirectoryError::NotInCluster { node: node.clone() });
        }
        if !given.addresses.is_empty() || !given.ports.is_empty() {
            return Err(DirectoryError::DescribedInCluster { node: node.clone() });
        }
        Ok(())
    }

    fn has_edge(&self, node: &NodeName) -> bool {
        self.last()
            .is_some_and(|last| last.nodes.edges.contains_key(node))
    }

    pub(super) fn remove(&mut self, node: &NodeName) -> Result<Removal, DirectoryError> {
        if self.cluster.is_some() {
            let there = self.has_edge(node).then_some(Removal::StillInCluster);
            return there.ok_or_else(|| DirectoryError::UnknownNode { node: node.clone() });
        }
        self.check_own()?;
        let mut nodes = self.stored.nodes.clone();
        let made = nodes.remove(node).is_some();
        if made {
            self.commit(nodes, self.declared().clone())?;
        }
        match self
            .file
            .as_ref()
            .filter(|file| file.nodes.contains_key(node))
        {
            Some(file) => Ok(Removal::StillInFile(file.path.clone())),
            None if made => Ok(Removal::Gone),
            None => Err(DirectoryError::UnknownNode { node: node.clone() }),
        }
    }

    pub(super) fn set_ports(&mut self, ports: ClusterPorts) -> Result<(), DirectoryError> {
        match &mut self.cluster {
            Some(cluster) => cluster.set_ports(ports),
            None => Ok(()),
        }
    }

    /// Reads the file if its text has changed, and sets the host's addresses.
    pub(super) fn refresh(&mut self, host: BTreeSet<IpAddr>) -> Refreshed {
        let hosts = if self.protected.host == host {
            Refreshed::Unchanged
        } else {
            Refreshed::Changed
        };
        self.protected.host = host;
        let Some(file) = &mut self.file else {
            return hosts;
        };
        let read = file::read(&file.path);
        let unchanged = read
            .as_ref()
            .is_ok_and(|text| file.text.as_ref() == Some(text));
        if unchanged {
            file.problem = None;
            return hosts;
        }
        let path = file.path.clone();
        let outcome = read
            .map_err(DirectoryError::from)
            .and_then(|text| self.take_up(text, &path));
        self.report(outcome);
        Refreshed::Changed
    }

    fn take_up(&mut self, text: String, path: &Path) -> Result<(), DirectoryError> {
        let nodes = file::parse(&text, path)?;
        self.commit(self.stored.nodes.clone(), nodes)?;
        self.state.write_text(LAST_GOOD, text.as_bytes())?;
        if let Some(file) = &mut self.file {
            file.text = Some(text);
        }
        Ok(())
    }

    fn report(&mut self, outcome: Result<(), DirectoryError>) {
        let Some(file) = &mut self.file else { return };
        let problem = outcome.err().map(|error| culvert_daemon::chain(&error));
        match &problem {
            None => {
                file.was_loaded = true;
                tracing::info!(
                    file = %file.path.display(),
                    nodes = file.nodes.len(),
                    "directory file read"
                );
            }
            Some(problem) if file.problem.as_ref() != Some(problem) => {
                tracing::error!(
                    reason = problem,
                    nodes = file.nodes.len(),
                    "directory file not used, keeping its last good nodes"
                );
            }
            Some(_) => {}
        }
        file.problem = problem;
    }

    fn load_last_good(&mut self) {
        let Some(file) = &mut self.file else { return };
        let copy = self.state.join(LAST_GOOD);
        let nodes = file::read(&copy).and_then(|text| file::parse(&text, &copy));
        match nodes {
            Ok(nodes) => {
                file.nodes = nodes;
                file.was_loaded = true;
            }
            Err(FileError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                reason = culvert_daemon::chain(&error),
                "last good directory file not usable"
            ),
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
        if let Some(file) = &mut self.file {
            file.nodes = declared;
        }
        Ok(())
    }

    /// What proxies that follow this one get; `None`: it has not made its nodes itself.
    pub(super) fn facts(&self) -> Option<Facts> {
        if self.cluster.is_some() || self.follows {
            return None;
        }
        let nodes = merged(&self.stored.nodes, self.declared());
        let with_host_part = |(node, spec): (NodeName, NodeSpec)| {
            let host_part = self.stored.vips.host_part(&node)?;
            Some((node, (spec, host_part)))
        };
        Some(Facts {
            ranges: self.stored.ranges,
            nodes: nodes.into_iter().filter_map(with_host_part).collect(),
        })
    }

    /// Takes what the primary has. It is on disk when this returns.
    pub(super) fn take_facts(&mut self, facts: Facts) -> Result<Refreshed, DirectoryError> {
        let Facts { ranges, nodes } = facts;
        if nodes.len() > MAX_NODES {
            return Err(DirectoryError::Full(MAX_NODES));
        }
        let foreign = foreign(&self.protected.ranges, &self.protected.host);
        let ranges = VipRanges::checked(ranges.vip4, ranges.vip6, &foreign)?;
        let (mut specs, mut held) = (BTreeMap::new(), BTreeMap::new());
        for (node, (spec, host_part)) in nodes {
            specs.insert(node.clone(), spec.checked()?);
            held.insert(node, host_part);
        }
        let before = if self.stored.ranges == ranges {
            self.stored.vips.clone()
        } else {
            Vips::default()
        };
        let vips = before.followed(held, UnixTime::now());
        if let Some(problem) = vips.problem(&ranges) {
            return Err(DirectoryError::Copy(problem));
        }
        let is_same = self.stored.is_copy
            && (self.stored.ranges, &self.stored.nodes, &self.stored.vips)
                == (ranges, &specs, &vips);
        if is_same {
            return Ok(Refreshed::Unchanged);
        }
        let stored = Stored {
            ranges,
            nodes: specs,
            vips,
            is_copy: true,
        };
        stored.write(&self.state)?;
        self.stored = stored;
        self.protect(None);
        Ok(Refreshed::Changed)
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
