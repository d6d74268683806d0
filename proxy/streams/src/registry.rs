//! The tunnels of each node, here and at other proxies.
//!
//! Each registration has a number, its generation, so a tunnel that ends late removes only itself.
//! An agent can come back before its dead tunnels are noticed. These are then superseded: new
//! streams use them only if there is no other.

mod candidates;
mod feed;
mod heavy;
mod misplaced;
mod peers;
mod sharing;
#[cfg(test)]
mod tests;
mod tracked;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use culvert_api::NodeName;
use culvert_daemon::{Coverage, Worker};
use culvert_proxy_core::directory::{Directory, NodeView, Presence};
use culvert_proxy_core::metrics::Metrics;
use culvert_tunnel::Tunnel;
use culvert_tunnel::proto::tunnel::{DescribeRequest, DescribeResponse};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::history::History;
use crate::peers::Peers;
use crate::rank::Rank;
pub use candidates::Candidate;
pub(crate) use candidates::StreamOnItsWay;
use feed::Feeds;
pub use feed::{TunnelChanges, TunnelFeed};
pub use peers::PeerRegistration;
use tracked::TrackedStreams;
pub(crate) use tracked::{MoveReason, StreamPlace, TrackedStream, Tracking};

/// Tunnels of one node at this proxy. A further one closes another. An agent has 32 at most
/// (`--tunnels` and `--extra-tunnels`), and twice as many while it renews its certificate.
const TUNNELS_PER_NODE: usize = 64;
/// Longest wait for an agent that is asked again.
const DESCRIBE_TIME: Duration = Duration::from_secs(2);
/// How often links to peers are counted while they are waited for.
const LINK_INTERVAL: Duration = Duration::from_millis(50);

/// All tunnels of this proxy. Clones share it.
#[derive(Clone)]
pub struct Registry(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// The streams that go by way of other proxies.
    by_peer: TrackedStreams,
    directory: Directory,
    history: History,
    metrics: Metrics,
    /// Signals each change of the tunnels here.
    tunnels_tx: watch::Sender<()>,
    /// Signals each change of the peers.
    peers_tx: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    generation: u64,
    nodes: HashMap<NodeName, Vec<Arc<Registered>>>,
    peers: Peers,
    feeds: Feeds,
}

impl State {
    fn presence(&self, node: &NodeName) -> Presence {
        if self.nodes.contains_key(node) || self.peers.has(node) {
            Presence::Online
        } else {
            Presence::Offline
        }
    }

    fn all_at_peers(&self) -> bool {
        self.nodes.keys().all(|node| self.peers.has(node))
    }

    /// The node's tunnels that end here. A tunnel that is worn out is closed as soon as it has no
    /// streams, if there is another.
    fn tunnels(&self, node: &NodeName) -> Vec<Arc<Registered>> {
        let all = self.nodes.get(node).cloned().unwrap_or_default();
        if all.iter().any(|tunnel| !tunnel.tunnel.is_worn_out()) {
            for registered in &all {
                if registered.tunnel.is_worn_out() && registered.tunnel.streams() == 0 {
                    registered.close.cancel();
                }
            }
        }
        all
    }
}

/// A tunnel and its properties.
pub struct Registered {
    /// The number of the registration.
    pub generation: u64,
    /// The node.
    pub node: NodeName,
    /// The tunnel.
    pub tunnel: Tunnel,
    /// What the agent says about itself.
    pub described: DescribeResponse,
    /// The addresses of the agent's host, as it described them.
    addresses: BTreeSet<IpAddr>,
    /// Which tunnels it comes before.
    pub rank: Rank,
    /// Where it comes from.
    pub agent: SocketAddr,
    /// When it was registered.
    pub since: Instant,
    /// The worker thread that relays the bytes of the tunnel and of its streams.
    pub(crate) worker: Worker,
    /// Streams that are on their way to the tunnel and not in it yet.
    on_their_way: AtomicU32,
    /// Its streams.
    streams: TrackedStreams,
    close: CancellationToken,
}

impl Registered {
    /// What the agent reports about itself now: the ports that it dials change while the tunnel is up.
    /// What it reported at first, if it does not answer soon. For operators.
    pub async fn described_now(&self) -> DescribeResponse {
        if self.tunnel.is_silent() {
            return self.described.clone();
        }
        let request = DescribeRequest::default();
        let asked = timeout(DESCRIBE_TIME, self.tunnel.describe(&request)).await;
        let now = asked.ok().and_then(Result::ok);
        now.unwrap_or_else(|| self.described.clone())
    }

    /// The node's addresses that the agent's host has.
    pub(crate) fn addresses_of(&self, node: &NodeView) -> Vec<IpAddr> {
        let mut own = Vec::new();
        for view in &node.addresses {
            if self.addresses.contains(&view.ip) {
                own.push(view.ip);
            }
        }
        own
    }

    /// Whether `self` replaces the earlier tunnel `other` of the same node.
    fn supersedes(&self, other: &Self) -> bool {
        self.generation > other.generation
            && (self.described.instance != other.described.instance
                || self.described.slot == other.described.slot)
    }
}

/// Closes one of a node's tunnels if it has as many as it may: the oldest one without a stream, or
/// else the oldest. Agents replace what they lost.
fn make_room(tunnels: &[Arc<Registered>]) {
    // A closed tunnel stays listed until its own thread has noticed.
    let mut open = Vec::new();
    for tunnel in tunnels {
        if !tunnel.close.is_cancelled() {
            open.push(tunnel);
        }
    }
    if open.len() >= TUNNELS_PER_NODE {
        let unused = open.iter().find(|tunnel| tunnel.tunnel.streams() == 0);
        unused.unwrap_or(&open[0]).close.cancel();
    }
}

/// Keeps a tunnel registered. Dropping it removes this tunnel only.
pub struct Registration {
    registry: Registry,
    registered: Arc<Registered>,
}

impl Registry {
    /// Without tunnels.
    pub fn new(directory: Directory, metrics: Metrics) -> Self {
        let history = History::new(directory.clone());
        Self(Arc::new(Shared {
            state: Mutex::default(),
            by_peer: TrackedStreams::default(),
            directory,
            history,
            metrics,
            tunnels_tx: watch::Sender::default(),
            peers_tx: watch::Sender::default(),
        }))
    }

    /// What this proxy reaches.
    pub fn reach(&self) -> Coverage {
        let mut coverage = Coverage {
            nodes: self.own_nodes(),
            ..Coverage::default()
        };
        for peer in self.peers() {
            if peer.links > 0 && !peer.draining {
                coverage.peers.push(peer.info.instance.to_string());
            }
        }
        coverage
    }

    /// Waits until this proxy reaches as much as another one.
    pub async fn reaches(&self, other: &Coverage) {
        self.has_nodes(other.nodes).await;
        loop {
            let own = self.reach();
            if other.peers.iter().all(|peer| own.peers.contains(peer)) {
                return;
            }
            tokio::time::sleep(LINK_INTERVAL).await;
        }
    }

    /// Waits until at least that many nodes have tunnels here.
    pub(crate) async fn has_nodes(&self, count: u32) {
        let mut changes = self.0.tunnels_tx.subscribe();
        while self.own_nodes() < count {
            // The sender is in `self`.
            let _changed = changes.changed().await;
        }
    }

    /// Waits until a peer has a tunnel of each node that has one here.
    pub async fn all_at_peers(&self) {
        let mut tunnels = self.0.tunnels_tx.subscribe();
        let mut peers = self.peer_changes();
        while !self.lock().all_at_peers() {
            // The senders are in `self`.
            tokio::select! {
                _ = tunnels.changed() => {}
                _ = peers.changed() => {}
            }
        }
    }

    /// Waits until a node has a tunnel, here or at a peer.
    pub async fn has_any(&self) {
        let mut peers = self.peer_changes();
        while self.peers().iter().all(|peer| peer.tunnels == 0) {
            tokio::select! {
                () = self.has_nodes(1) => return,
                // The sender is in `self`.
                _ = peers.changed() => {}
            }
        }
    }

    /// The reasons why tunnels ended and agents were refused.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// Adds a tunnel of `node` that the calling thread drives. `agent` is the agent's address. The
    /// node is online afterwards.
    pub fn register(
        &self,
        node: NodeName,
        tunnel: Tunnel,
        described: DescribeResponse,
        agent: SocketAddr,
    ) -> Registration {
        let mut state = self.lock();
        state.generation += 1;
        let generation = state.generation;
        let since = Instant::now();
        let close = CancellationToken::new();
        let worker = Worker::current();
        let rank = Rank::of(&described);
        let mut addresses = BTreeSet::new();
        for text in &described.addresses {
            addresses.extend(text.parse::<IpAddr>());
        }
        let registered = Arc::new(Registered {
            generation,
            node,
            tunnel,
            described,
            addresses,
            rank,
            agent,
            since,
            worker,
            on_their_way: AtomicU32::new(0),
            streams: TrackedStreams::default(),
            close,
        });
        let tunnels = state.nodes.entry(registered.node.clone()).or_default();
        make_room(tunnels);
        tunnels.push(registered.clone());
        state.feeds.opened(&registered);
        // The lock is held, so that the directory gets all changes of a node in their order.
        self.0
            .directory
            .set_presence(&registered.node, Presence::Online);
        self.0.metrics.tunnels.inc();
        self.0.tunnels_tx.send_replace(());
        Registration {
            registry: self.clone(),
            registered,
        }
    }

    /// Sees a change each time a tunnel is registered or removed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.tunnels_tx.subscribe()
    }

    /// The number of tunnels that end here.
    pub fn own_tunnels(&self) -> u32 {
        u32::try_from(self.0.metrics.tunnels.get()).unwrap_or_default()
    }

    /// The number of nodes that have tunnels here.
    pub fn own_nodes(&self) -> u32 {
        u32::try_from(self.lock().nodes.len()).unwrap_or(u32::MAX)
    }

    /// How many tunnels the node has.
    pub fn count(&self, node: &NodeName) -> usize {
        self.lock().nodes.get(node).map_or(0, Vec::len)
    }

    /// Closes all tunnels of the node.
    pub fn close(&self, node: &NodeName) {
        for tunnel in self.lock().nodes.get(node).into_iter().flatten() {
            tunnel.close.cancel();
        }
    }

    /// The node's tunnel here that a new stream tries first.
    pub fn preferred(&self, node: &NodeName) -> Option<Arc<Registered>> {
        for candidate in self.candidates(node) {
            if let Candidate::Agent(registered) = candidate {
                return Some(registered);
            }
        }
        None
    }

    /// Every tunnel, oldest first.
    pub fn all(&self) -> Vec<Arc<Registered>> {
        let mut tunnels: Vec<_> = self.lock().nodes.values().flatten().cloned().collect();
        tunnels.sort_by_key(|tunnel| tunnel.generation);
        tunnels
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

impl Registration {
    /// The number of the registration, for logs.
    pub fn generation(&self) -> u64 {
        self.registered.generation
    }

    /// The tunnel.
    pub fn tunnel(&self) -> &Tunnel {
        &self.registered.tunnel
    }

    /// The version of the agent's program.
    pub fn agent_version(&self) -> &str {
        &self.registered.described.version
    }

    /// Completes when the tunnel must be closed.
    pub async fn closed(&self) {
        self.registered.close.cancelled().await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let node = &self.registered.node;
        let mut state = self.registry.lock();
        let Some(tunnels) = state.nodes.get_mut(node) else {
            return;
        };
        tunnels.retain(|tunnel| tunnel.generation != self.registered.generation);
        let is_last = tunnels.is_empty();
        self.registry.0.metrics.tunnels.dec();
        state.feeds.closed(self.registered.generation);
        if is_last {
            state.nodes.remove(node);
            let presence = state.presence(node);
            self.registry.0.directory.set_presence(node, presence);
        }
        self.registry.0.tunnels_tx.send_replace(());
    }
}
