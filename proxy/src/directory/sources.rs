//! Where nodes come from: those that `token create` made, kept on disk with the VIPs, and the operator's file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use culvert_daemon::write_atomic;
use culvert_tunnel::NodeName;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::addresses::Protected;
use super::cluster::ClusterPorts;
use super::file::{self, FileError};
use super::node::NodeSpec;
use super::view::{Given, View, Zone};
use super::vips::{VipRanges, Vips, random_vip6_range};
use super::{DirectoryConfig, DirectoryError};
use crate::clock::UnixTime;
use crate::state::{StateDir, StateError, StateFile};

const NODES: StateFile =
    StateFile { name: "directory.json", what: "the nodes that `token create` made, and with new VIPs" };
/// The operator's file as it last was good: used when the proxy starts and finds the file broken.
const LAST_GOOD: &str = "directory-last-good.toml";
/// Far more than one proxy has tunnels for, and well within the default VIP range.
const MAX_NODES: usize = 20_000;
/// Ranges in which VIPs would not be the node's alone.
const EVERYONES: [(&str, &str); 7] = [
    ("0.0.0.0/8", "the unspecified addresses"),
    ("127.0.0.0/8", "the loopback addresses"),
    ("169.254.0.0/16", "the link-local addresses"),
    ("224.0.0.0/3", "the multicast and reserved addresses"),
    ("::/96", "the unspecified and loopback addresses"),
    ("fe80::/10", "the link-local addresses"),
    ("ff00::/8", "the multicast addresses"),
];

/// What the removal of a node left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Nothing.
    Gone,
    /// The node itself, for this file still describes it.
    StillInFile(PathBuf),
}

/// Whether there may be something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refreshed {
    Unchanged,
    Changed,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    ranges: VipRanges,
    nodes: BTreeMap<NodeName, NodeSpec>,
    vips: Vips,
}

/// Everything that the view is computed from.
#[derive(Debug)]
pub(super) struct Sources {
    state: StateDir,
    zone: Zone,
    protected: Protected,
    stored: Stored,
    file: Option<DirectoryFile>,
    ports: ClusterPorts,
}

#[derive(Debug)]
struct DirectoryFile {
    path: PathBuf,
    /// As it was last taken up, so that only changes are looked at.
    text: Option<String>,
    nodes: BTreeMap<NodeName, NodeSpec>,
    loaded: Loaded,
    problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    Never,
    Once,
}

impl Sources {
    pub(super) fn open(config: &DirectoryConfig, host: BTreeSet<IpAddr>) -> Result<Self, DirectoryError> {
        let before: Option<Stored> = config.state.read(NODES)?;
        let ranges = ranges(config, before.as_ref(), &host)?;
        let stored = match before {
            Some(stored) => checked(&config.state, stored)?.moved(ranges),
            None => Stored { ranges, nodes: BTreeMap::new(), vips: Vips::default() },
        };
        let file = config.file.as_ref().map(|path| DirectoryFile {
            path: path.clone(),
            text: None,
            nodes: BTreeMap::new(),
            loaded: Loaded::Never,
            problem: None,
        });
        let protected = Protected { ranges: config.protect.clone(), host: BTreeSet::new() };
        let (state, zone) = (config.state.clone(), config.zone.clone());
        let mut sources = Self { state, zone, protected, stored, file, ports: ClusterPorts::default() };
        sources.load_last_good();
        sources.refresh(host);
        sources.commit(sources.stored.nodes.clone(), sources.declared().clone())?;
        Ok(sources)
    }

    pub(super) fn view(&self) -> View {
        View::new(&Given {
            nodes: &merged(&self.stored.nodes, self.declared()),
            declared: self.declared(),
            protected: &self.protected,
            vips: &self.stored.vips,
            ranges: self.stored.ranges,
            zone: &self.zone,
        })
    }

    pub(super) fn file_problem(&self) -> Option<String> {
        self.file.as_ref()?.problem.clone()
    }

    /// Whether there is a file but no version of it was ever good.
    pub(super) fn lacks_file(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.loaded == Loaded::Never)
    }

    pub(super) fn put(
        &mut self,
        node: &NodeName,
        addresses: Vec<IpAddr>,
        ports: Vec<u16>,
    ) -> Result<(), DirectoryError> {
        let given = NodeSpec { addresses, ports }.checked()?;
        if let Some(file) = self.file.as_ref().filter(|file| file.nodes.contains_key(node)) {
            return match given.addresses.is_empty() && given.ports.is_empty() {
                true => Ok(()),
                false => Err(DirectoryError::DescribedInFile { node: node.clone(), file: file.path.clone() }),
            };
        }
        let mut nodes = self.stored.nodes.clone();
        let spec = nodes.entry(node.clone()).or_insert_with(NodeSpec::with_default_ports);
        if !given.addresses.is_empty() {
            spec.addresses = given.addresses;
        }
        if !given.ports.is_empty() {
            spec.ports = given.ports;
        }
        self.commit(nodes, self.declared().clone())
    }

    pub(super) fn remove(&mut self, node: &NodeName) -> Result<Removal, DirectoryError> {
        let mut nodes = self.stored.nodes.clone();
        let made = nodes.remove(node).is_some();
        if made {
            self.commit(nodes, self.declared().clone())?;
        }
        match self.file.as_ref().filter(|file| file.nodes.contains_key(node)) {
            Some(file) => Ok(Removal::StillInFile(file.path.clone())),
            None if made => Ok(Removal::Gone),
            None => Err(DirectoryError::UnknownNode { node: node.clone() }),
        }
    }

    pub(super) fn set_ports(&mut self, ports: ClusterPorts) -> Result<(), DirectoryError> {
        self.ports = ports;
        Ok(())
    }

    /// Takes up the file if its text has changed, and the host's addresses.
    pub(super) fn refresh(&mut self, host: BTreeSet<IpAddr>) -> Refreshed {
        let hosts = if self.protected.host == host { Refreshed::Unchanged } else { Refreshed::Changed };
        self.protected.host = host;
        let Some(file) = &mut self.file else { return hosts };
        let read = file::read(&file.path);
        let unchanged = read.as_ref().is_ok_and(|text| file.text.as_ref() == Some(text));
        if unchanged {
            file.problem = None;
            return hosts;
        }
        let path = file.path.clone();
        let outcome = read.map_err(DirectoryError::from).and_then(|text| self.take_up(text, &path));
        self.report(outcome);
        Refreshed::Changed
    }

    fn take_up(&mut self, text: String, path: &Path) -> Result<(), DirectoryError> {
        let nodes = file::parse(&text, path)?;
        self.commit(self.stored.nodes.clone(), nodes)?;
        let copy = self.state.join(LAST_GOOD);
        write_atomic(&copy, text.as_bytes(), 0o600).map_err(|source| StateError::Write { path: copy, source })?;
        if let Some(file) = &mut self.file {
            file.text = Some(text);
        }
        Ok(())
    }

    fn report(&mut self, outcome: Result<(), DirectoryError>) {
        let Some(file) = &mut self.file else { return };
        let problem = outcome.err().map(|error| format!("{:#}", anyhow::Error::new(error)));
        match &problem {
            None => {
                file.loaded = Loaded::Once;
                tracing::info!(file = %file.path.display(), nodes = file.nodes.len(), "directory file read");
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
                file.loaded = Loaded::Once;
            }
            Err(FileError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(error = %anyhow::Error::new(error), "last good directory file not usable"),
        }
    }

    /// Allocates VIPs for these nodes, writes what has to be kept, and only then believes it.
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
        let vips = self.stored.vips.reconciled(all.keys(), &ranges, UnixTime::now())?;
        let stored = Stored { ranges, nodes, vips };
        self.state.write(NODES, &stored)?;
        self.stored = stored;
        if let Some(file) = &mut self.file {
            file.nodes = declared;
        }
        Ok(())
    }

    fn check_addresses(&self, nodes: &BTreeMap<NodeName, NodeSpec>) -> Result<(), DirectoryError> {
        let ranges = self.stored.ranges;
        for (node, spec) in nodes {
            if let Some(address) = spec.addresses.iter().copied().find(|address| ranges.contains(*address)) {
                let range = if address.is_ipv4() { IpNet::V4(ranges.vip4) } else { IpNet::V6(ranges.vip6) };
                return Err(DirectoryError::AddressInVipRange { node: node.clone(), address, range });
            }
        }
        Ok(())
    }

    fn declared(&self) -> &BTreeMap<NodeName, NodeSpec> {
        static NONE: BTreeMap<NodeName, NodeSpec> = BTreeMap::new();
        self.file.as_ref().map_or(&NONE, |file| &file.nodes)
    }
}

impl Stored {
    fn moved(self, ranges: VipRanges) -> Self {
        if self.ranges == ranges {
            return self;
        }
        let (vips, lost) = self.vips.moved(&ranges);
        tracing::warn!(
            old.vip4 = %self.ranges.vip4, old.vip6 = %self.ranges.vip6, vip4 = %ranges.vip4, vip6 = %ranges.vip6,
            new_host_parts = lost, "VIP ranges changed: every node has another VIP now"
        );
        Self { ranges, vips, nodes: self.nodes }
    }
}

/// The file wins for the nodes that it describes.
fn merged(
    made: &BTreeMap<NodeName, NodeSpec>,
    declared: &BTreeMap<NodeName, NodeSpec>,
) -> BTreeMap<NodeName, NodeSpec> {
    let mut all = made.clone();
    all.extend(declared.iter().map(|(node, spec)| (node.clone(), spec.clone())));
    all
}

fn ranges(
    config: &DirectoryConfig,
    before: Option<&Stored>,
    host: &BTreeSet<IpAddr>,
) -> Result<VipRanges, DirectoryError> {
    let kept = || before.map_or_else(random_vip6_range, |stored| stored.ranges.vip6);
    let everyones = EVERYONES.iter().filter_map(|(range, what)| Some((range.parse().ok()?, (*what).to_owned())));
    let protected = config.protect.iter().map(|range| (*range, format!("the protected range {range}")));
    let host = host.iter().map(|address| (IpNet::from(*address), format!("this host's address {address}")));
    let foreign: Vec<_> = everyones.chain(protected).chain(host).collect();
    Ok(VipRanges::checked(config.vip4_range, config.vip6_range.unwrap_or_else(kept), &foreign)?)
}

fn checked(state: &StateDir, stored: Stored) -> Result<Stored, DirectoryError> {
    if let Some(problem) = stored.vips.problem(&stored.ranges) {
        return Err(state.invalid(NODES, problem).into());
    }
    for (node, spec) in &stored.nodes {
        if let Err(error) = spec.clone().checked() {
            return Err(state.invalid(NODES, format!("{node}: {error}")).into());
        }
    }
    Ok(stored)
}
