//! The nodes with their names, addresses and VIPs, and whether each is online: the only source of
//! truth on this proxy.
//!
//! Two sources are merged: nodes made by `culvert token create`, kept in the state directory,
//! and the file given with `--directory`, which takes precedence for its nodes. In a Kubernetes
//! cluster its Nodes are the only source, because all proxies must agree on the VIPs. A proxy that
//! follows another one (`--follow`) has that one's nodes and VIPs, and nothing else. After each
//! change the whole view is computed again, and watchers get the differences.

mod addresses;
mod allocation;
mod behind;
mod cluster_nodes;
mod cluster_state;
mod cluster_writer;
mod destination;
mod editor;
mod error;
mod facts;
mod file;
mod freshness;
mod node;
mod sources;
mod stored;
mod uid;
mod view;
mod vips;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use culvert_api::{NodeName, Zone, node_named};
use culvert_daemon::host_addresses;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::{broadcast, watch as signal};

pub use allocation::{Allocation, Proposal, ShardedAllocation};
pub use cluster_nodes::{CloudNode, ClusterNodes, ClusterOwn, ClusterPorts, EdgeNode, LeftOut};
pub use cluster_writer::ClusterWriter;
pub use destination::{Destination, ResolveError, Target};
pub use editor::Editor;
pub use error::DirectoryError;
pub use facts::FactsWriter;
pub use freshness::Freshness;
pub use node::{MAX_ADDRESSES, MAX_BEHIND, MAX_PORTS, NodeSpec, checked_behind, never_a_nodes};
use sources::Sources;
pub use sources::{Facts, Removal};
pub use uid::NodeUid;
pub(crate) use view::Census;
pub use view::{AddressView, BehindView, Clouds, NodeView, Source};
use view::{Difference, View};
pub use vips::{MAX_VIP_SHARDS, VipError, VipRanges, VipShards, Vips};
use watch::Step;
pub use watch::{Change, Event, Watcher};

use crate::state::StateDir;

/// Changes that a watcher can lag behind before it gets a snapshot instead.
const WATCH_BACKLOG: usize = 256;

/// The sources of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodesFrom {
    /// `token create` and the file.
    Operators,
    /// A Kubernetes cluster, and nothing else.
    Cluster,
    /// Another proxy, the primary, and nothing else.
    Primary,
}

/// Whether an agent of a node has a tunnel to any proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has one.
    Online,
    /// It has none.
    Offline,
}

/// The settings of the directory.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    /// The file of the nodes made by `token create` and of the VIPs.
    pub state: StateDir,
    /// The file of `--directory`.
    pub file: Option<PathBuf>,
    /// `--protect`.
    pub protect: Vec<IpNet>,
    /// `--edge-range`.
    pub edge_ranges: Vec<IpNet>,
    /// The ranges of `--direct`. In a cluster, no kubelet can make an address of these an edge
    /// node's.
    pub direct: Vec<IpNet>,
    /// The cluster's own addresses and ranges, by the flags and the environment.
    pub given: ClusterOwn,
    /// `--vip4-range`.
    pub vip4_range: Ipv4Net,
    /// `--vip6-range`; `None`: the range in the state, which is made once.
    pub vip6_range: Option<Ipv6Net>,
    /// `--dns-zone`.
    pub zone: Zone,
    /// `--kubernetes`.
    pub nodes_from: NodesFrom,
}

/// Opens the directory: reads the state and the file. If the file is broken,
/// [`Editor::file_problem`] reports it, and the last valid version is used.
pub fn open(config: &DirectoryConfig) -> Result<Handles, DirectoryError> {
    let host = host_addresses().map_err(DirectoryError::Interfaces)?;
    let sources = Sources::open(config, host)?;
    let freshness = match config.nodes_from {
        NodesFrom::Operators | NodesFrom::Primary => None,
        NodesFrom::Cluster => Some(Freshness::Stale {
            since: sources.last().map(|last| last.as_of),
            cause: "the API server has not answered since this proxy started".to_owned(),
        }),
    };
    let published = Published {
        revision: 1,
        view: sources.view(),
        online: BTreeSet::new(),
        uids: sources.uids(),
        freshness,
        is_known: sources.is_known(),
    };
    let directory = Directory(Arc::new(Shared {
        sources: Mutex::new(sources),
        published: RwLock::new(published),
        step_tx: broadcast::Sender::new(WATCH_BACKLOG),
        changed_tx: signal::Sender::default(),
    }));
    Ok(Handles {
        editor: Editor::new(directory.clone()),
        cluster: match config.nodes_from {
            NodesFrom::Operators | NodesFrom::Primary => None,
            NodesFrom::Cluster => Some(ClusterWriter::new(directory.clone())),
        },
        facts: match config.nodes_from {
            NodesFrom::Operators | NodesFrom::Cluster => None,
            NodesFrom::Primary => Some(FactsWriter::new(directory.clone())),
        },
        directory,
    })
}

/// The handles of one directory, by purpose.
pub struct Handles {
    /// For readers.
    pub directory: Directory,
    /// For changes by operators.
    pub editor: Editor,
    /// For changes by the cluster, if there is one.
    pub cluster: Option<ClusterWriter>,
    /// For changes by the primary, if this proxy follows one.
    pub facts: Option<FactsWriter>,
}

/// Reads the directory. Clones share it.
#[derive(Clone, Debug)]
pub struct Directory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Held while a change is computed and written. Readers do not wait for it.
    sources: Mutex<Sources>,
    published: RwLock<Published>,
    step_tx: broadcast::Sender<Step>,
    /// Signals each change of the sources.
    changed_tx: signal::Sender<()>,
}

#[derive(Debug)]
struct Published {
    revision: u64,
    view: View,
    online: BTreeSet<NodeName>,
    /// The selector of the cluster's edge nodes.
    uids: BTreeMap<NodeName, NodeUid>,
    /// How current the cluster's state is, if there is a cluster.
    freshness: Option<Freshness>,
    /// Whether there is content: a cluster that was never seen does not count as empty.
    is_known: bool,
}

impl Directory {
    /// The node that a destination leads to, and what its agent dials.
    pub fn resolve(&self, destination: &Destination) -> Result<Target, ResolveError> {
        self.published().view.resolve(destination)
    }

    /// The node that a name means, of the edge or the cloud, as DNS reads it.
    pub fn named(&self, text: &str) -> Option<NodeName> {
        node_named(text, &self.published().view).ok()
    }

    /// Whether the node exists.
    pub fn contains(&self, node: &NodeName) -> bool {
        self.published().view.node(node).is_some()
    }

    /// The node in its present state.
    pub fn node(&self, node: &NodeName) -> Option<NodeView> {
        self.published().view.node(node).cloned()
    }

    /// The number of addresses that do not route and of parts of Nodes that are left out, by
    /// reason.
    pub fn refusals(&self) -> [(&'static str, usize); 3] {
        self.published().view.refusals()
    }

    /// Whether a cluster is the source of nodes.
    pub fn is_cluster(&self) -> bool {
        self.published().freshness.is_some()
    }

    /// Whether the API server confirms the cluster's state now.
    pub fn is_live(&self) -> bool {
        self.published().freshness == Some(Freshness::Live)
    }

    /// The UID of the cluster's Node of this name.
    pub fn uid(&self, node: &NodeName) -> Option<NodeUid> {
        self.published().uids.get(node).cloned()
    }

    /// The number of nodes.
    pub fn census(&self) -> Census {
        self.published().view.census()
    }

    /// The names by which clients reach the node, the shortest first.
    pub fn names_of(&self, node: &NodeName) -> Vec<String> {
        culvert_api::names_of(node, &self.published().view)
    }

    /// `--dns-zone`.
    pub fn zone(&self) -> Zone {
        self.published().view.zone().clone()
    }

    /// All nodes in the order of their names.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.published().view.nodes().cloned().collect()
    }

    /// The first so many names of nodes.
    pub fn first_names(&self, most: usize) -> Vec<NodeName> {
        let published = self.published();
        let nodes = published.view.nodes().take(most);
        nodes.map(|node| node.name.clone()).collect()
    }

    /// Sets whether an agent of the node has a tunnel.
    pub fn set_presence(&self, node: &NodeName, presence: Presence) {
        let mut published = self.published_mut();
        match presence {
            Presence::Online => published.online.insert(node.clone()),
            Presence::Offline => published.online.remove(node),
        };
        if let Some(node) = published.view.set_presence(node, presence) {
            self.announce(
                &mut published,
                Difference {
                    changed: vec![node],
                    ..Difference::default()
                },
            );
        }
    }

    /// Whether there is content: a cluster that was never seen does not count as empty.
    pub fn is_known(&self) -> bool {
        self.published().is_known
    }

    /// How current the cluster's state is; `None` without a cluster.
    pub fn freshness(&self) -> Option<Freshness> {
        self.published().freshness.clone()
    }

    /// The cluster's cloud nodes.
    pub fn clouds(&self) -> Clouds {
        self.published().view.clouds().clone()
    }

    /// The parts of the cluster's Nodes that are left out, with reasons.
    pub fn left_out(&self) -> BTreeSet<LeftOut> {
        self.published().view.left_out().clone()
    }

    /// The cloud node that a destination leads to, and the address to dial. Clients reach it
    /// without a tunnel.
    pub fn cloud(&self, destination: &Destination) -> Option<(NodeName, SocketAddr)> {
        self.published().view.cloud(destination)
    }

    /// A snapshot, followed by all later changes.
    pub fn watch(&self) -> Watcher {
        Watcher::new(self.clone())
    }

    /// Publishes the present state of the sources. Returns the nodes that were deleted.
    fn publish(&self, sources: &Sources) -> Vec<NodeName> {
        // The long part runs while others still read.
        let mut view = sources.view();
        let mut published = self.published_mut();
        for node in &published.online {
            view.set_presence(node, Presence::Online);
        }
        for LeftOut { node, reason } in view.left_out().difference(published.view.left_out()) {
            tracing::warn!(%node, reason, "a part of a Node is left out");
        }
        let difference = view.since(&published.view);
        let is_reset = !published.is_known || view.ranges() != published.view.ranges();
        published.view = view;
        published.is_known = sources.is_known();
        let uids = sources.uids();
        let mut gone = difference.removed.clone();
        // A Node that was deleted and created again is another Node of the same name.
        for (node, uid) in &published.uids {
            if uids.get(node).is_some_and(|now| now != uid) {
                gone.push(node.clone());
            }
        }
        published.uids = uids;
        self.0.changed_tx.send_replace(());
        if is_reset {
            published.revision += 1;
            // Without watchers there is no receiver.
            drop(self.0.step_tx.send(Step::Reset));
        } else {
            self.announce(&mut published, difference)
        }
        gone
    }

    fn announce(&self, published: &mut Published, difference: Difference) {
        if difference == Difference::default() {
            return;
        }
        published.revision += 1;
        let Difference {
            changed,
            removed,
            clouds,
        } = difference;
        let change = Change {
            revision: published.revision,
            changed,
            removed,
            clouds,
        };
        // Without watchers there is no receiver.
        drop(self.0.step_tx.send(Step::Change(Arc::new(change))));
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.0.sources.lock()
    }

    fn published(&self) -> RwLockReadGuard<'_, Published> {
        self.0.published.read()
    }

    fn published_mut(&self) -> RwLockWriteGuard<'_, Published> {
        self.0.published.write()
    }
}

/// Reads and checks the text of a directory file, and writes it again.
#[cfg(any(test, fuzzing))]
pub(crate) fn rewritten(text: &str) -> Result<String, file::FileError> {
    let nodes = file::parse(text, std::path::Path::new("nodes.toml"))?;
    Ok(
        toml::to_string(&std::collections::BTreeMap::from([("nodes", nodes)]))
            .expect("nodes have a text"),
    )
}

#[cfg(test)]
mod tests;
