//! The tunnels of each node, here and at other proxies.
//!
//! Each registration has a number, its generation, so a tunnel that ends late removes only itself.
//! An agent can come back before its dead tunnels are noticed. These are then superseded: new
//! streams use them only if there is no other.

mod peers;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use culvert_api::NodeName;
use culvert_daemon::{Reach, Worker};
use culvert_tunnel::Tunnel;
use culvert_tunnel::proto::tunnel::{DescribeRequest, DescribeResponse};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::directory::Directory;
use crate::metrics::Metrics;
use crate::streams::elsewhere::{Elsewhere, PeerLink};
use crate::streams::history::History;
use crate::streams::rank::Rank;
pub(crate) use peers::PeerRegistration;

/// Tunnels of one node at this proxy. A further one closes another. An agent has 32 at most
/// (`--tunnels` and `--extra-tunnels`), and twice as many while it renews its certificate.
const TUNNELS_PER_NODE: usize = 64;
/// Longest wait for an agent that is asked again.
const DESCRIBE_TIME: Duration = Duration::from_secs(2);
/// How often links to peers are counted while they are waited for.
const LINK_INTERVAL: Duration = Duration::from_millis(50);

/// All tunnels of this proxy. Clones share it.
#[derive(Clone)]
pub(crate) struct Registry(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
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
    elsewhere: Elsewhere,
}

impl State {
    fn is_online(&self, node: &NodeName) -> bool {
        self.nodes.contains_key(node) || self.elsewhere.has(node)
    }

    fn all_elsewhere(&self) -> bool {
        self.nodes.keys().all(|node| self.elsewhere.has(node))
    }

    /// The node's tunnels that end here. A tunnel that is worn out is closed as soon as it has no
    /// streams, if there is another.
    fn tunnels(&self, node: &NodeName) -> Vec<Arc<Registered>> {
        let all = self.nodes.get(node).cloned().unwrap_or_default();
        if all.iter().any(|tunnel| !tunnel.tunnel.is_worn_out()) {
            let spent = |tunnel: &&Arc<Registered>| {
                tunnel.tunnel.is_worn_out() && tunnel.tunnel.streams() == 0
            };
            all.iter()
                .filter(spent)
                .for_each(|tunnel| tunnel.close.cancel());
        }
        all
    }
}

/// A tunnel and its properties.
pub(crate) struct Registered {
    pub(crate) generation: u64,
    pub(crate) node: NodeName,
    pub(crate) tunnel: Tunnel,
    pub(crate) described: DescribeResponse,
    pub(crate) rank: Rank,
    pub(crate) agent: SocketAddr,
    pub(crate) since: Instant,
    /// The worker thread that moves the bytes of the tunnel and of its streams.
    pub(crate) worker: Worker,
    /// Streams that are on their way to the tunnel and not in it yet.
    expected: AtomicU32,
    close: CancellationToken,
}

impl Registered {
    /// What the agent reports about itself now: the ports that it dials change while the tunnel is up.
    /// What it told at first, if it does not answer soon. For operators.
    pub(crate) async fn described_now(&self) -> DescribeResponse {
        if self.tunnel.is_silent() {
            return self.described.clone();
        }
        let request = DescribeRequest::default();
        let asked = timeout(DESCRIBE_TIME, self.tunnel.describe(&request)).await;
        let now = asked.ok().and_then(Result::ok);
        now.unwrap_or_else(|| self.described.clone())
    }

    /// Whether `self` replaces the earlier tunnel `other` of the same node.
    fn supersedes(&self, other: &Self) -> bool {
        self.generation > other.generation
            && (self.described.instance != other.described.instance
                || self.described.slot == other.described.slot)
    }
}

/// A way to a node.
#[derive(Clone)]
pub(crate) enum Candidate {
    /// A tunnel of its agent that ends here.
    Agent(Arc<Registered>),
    /// A link to a proxy where a tunnel of its agent ends.
    Peer(Arc<PeerLink>),
}

impl Candidate {
    /// The tunnel that carries the stream from here.
    pub(crate) fn tunnel(&self) -> &Tunnel {
        match self {
            Self::Agent(registered) => &registered.tunnel,
            Self::Peer(link) => &link.tunnel,
        }
    }

    /// Whether both are the same tunnel here, or lead to the same proxy.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Agent(one), Self::Agent(other)) => Arc::ptr_eq(one, other),
            (Self::Peer(one), Self::Peer(other)) => one.peer == other.peer,
            (Self::Agent(_), Self::Peer(_)) | (Self::Peer(_), Self::Agent(_)) => false,
        }
    }

    /// The thread that moves its bytes.
    pub(crate) fn worker(&self) -> &Worker {
        match self {
            Self::Agent(registered) => &registered.worker,
            Self::Peer(link) => &link.worker,
        }
    }
}

/// Counts a stream that is on its way to a tunnel, until this is dropped. Otherwise connections that
/// come at the same moment would all go to one tunnel.
pub(crate) struct Expected(Arc<Registered>);

impl Expected {
    /// A stream that tries the candidates in their order.
    pub(crate) fn of(candidates: &[Candidate]) -> Option<Self> {
        match candidates.first()? {
            Candidate::Agent(registered) => {
                registered.expected.fetch_add(1, Ordering::Relaxed);
                Some(Self(registered.clone()))
            }
            Candidate::Peer(_) => None,
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.0.expected.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps a tunnel registered. Dropping it removes this tunnel only.
pub(crate) struct Registration {
    registry: Registry,
    registered: Arc<Registered>,
}

impl Registry {
    pub(crate) fn new(directory: Directory, metrics: Metrics) -> Self {
        let history = History::new(directory.clone());
        Self(Arc::new(Shared {
            state: Mutex::default(),
            directory,
            history,
            metrics,
            tunnels_tx: watch::Sender::default(),
            peers_tx: watch::Sender::default(),
        }))
    }

    /// What this proxy reaches.
    pub(crate) fn reach(&self) -> Reach {
        let peers = self.peers().into_iter();
        let linked = peers.filter(|peer| peer.links > 0 && !peer.draining);
        Reach {
            nodes: self.own_nodes(),
            peers: linked.map(|peer| peer.info.instance.to_string()).collect(),
        }
    }

    /// Waits until this proxy reaches as much as another one.
    pub(crate) async fn reaches(&self, other: &Reach) {
        self.has_nodes(other.nodes).await;
        let lacks_one = |own: &Reach| other.peers.iter().any(|peer| !own.peers.contains(peer));
        while lacks_one(&self.reach()) {
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
    pub(crate) async fn all_elsewhere(&self) {
        let (mut tunnels, mut peers) = (self.0.tunnels_tx.subscribe(), self.peer_changes());
        while !self.lock().all_elsewhere() {
            // The senders are in `self`.
            tokio::select! {
                _ = tunnels.changed() => {}
                _ = peers.changed() => {}
            }
        }
    }

    /// Waits until a node has a tunnel, here or at a peer.
    pub(crate) async fn has_any(&self) {
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
    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    /// Adds a tunnel of `node` that the calling thread moves. `agent` is the agent's address. The
    /// node is online afterwards.
    pub(crate) fn register(
        &self,
        node: NodeName,
        tunnel: Tunnel,
        described: DescribeResponse,
        agent: SocketAddr,
    ) -> Registration {
        let mut state = self.lock();
        state.generation += 1;
        let (generation, since, close) =
            (state.generation, Instant::now(), CancellationToken::new());
        let worker = Worker::current();
        let rank = Rank::of(&described);
        let registered = Arc::new(Registered {
            generation,
            node,
            tunnel,
            described,
            rank,
            agent,
            since,
            worker,
            expected: AtomicU32::new(0),
            close,
        });
        let tunnels = state.nodes.entry(registered.node.clone()).or_default();
        // A closed tunnel stays listed until its own thread has noticed.
        let open: Vec<_> = tunnels
            .iter()
            .filter(|tunnel| !tunnel.close.is_cancelled())
            .collect();
        if open.len() >= TUNNELS_PER_NODE {
            // The oldest one that nobody misses, or else the oldest. Agents replace what they lost.
            let unused = open.iter().find(|tunnel| tunnel.tunnel.streams() == 0);
            unused.unwrap_or(&open[0]).close.cancel();
        }
        tunnels.push(registered.clone());
        // The lock is held, so that the directory gets all changes of a node in their order.
        self.0.directory.set_online(&registered.node, true);
        self.0.metrics.tunnels.inc();
        self.0.tunnels_tx.send_replace(());
        Registration {
            registry: self.clone(),
            registered,
        }
    }

    /// The ways to the node in the order in which a new stream tries them: tunnels here, those that
    /// are not busy first, then peers, then what is superseded, worn out or ending, and last what is
    /// silent.
    pub(crate) fn candidates(&self, node: &NodeName) -> Vec<Candidate> {
        let (tunnels, peers, ranks) = {
            let state = self.lock();
            let State { elsewhere, .. } = &*state;
            (
                state.tunnels(node),
                elsewhere.links(node),
                elsewhere.ranks(node),
            )
        };
        let is_last = |tunnel: &Registered| {
            tunnel.tunnel.is_worn_out()
                || !tunnel.tunnel.takes_streams()
                || tunnels.iter().any(|other| other.supersedes(tunnel))
                || ranks.iter().any(|other| other.supersedes(&tunnel.rank))
        };
        let is_superseded = |rank: &Rank| {
            let here = tunnels.iter().map(|tunnel| &tunnel.rank);
            here.chain(&ranks).any(|other| other.supersedes(rank))
        };
        let here = tunnels.iter().map(|tunnel| {
            let order = (tunnel.tunnel.is_silent(), is_last(tunnel), false);
            // A stream of another proxy is on a thread already: two would wake each other.
            let is_away = !tunnel.worker.is_current();
            (
                (
                    order,
                    tunnel.tunnel.is_busy(),
                    is_away,
                    tunnel.tunnel.streams() + tunnel.expected.load(Ordering::Relaxed),
                ),
                Candidate::Agent(tunnel.clone()),
            )
        });
        // The peers are in order already.
        let elsewhere = peers.into_iter().zip(0..).map(|((link, ranks), place)| {
            let order = (
                link.tunnel.is_silent(),
                ranks.iter().all(is_superseded),
                true,
            );
            ((order, false, true, place), Candidate::Peer(link))
        });
        let mut all: Vec<_> = here.chain(elsewhere).collect();
        all.sort_by_key(|(order, _)| *order);
        all.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Sees a change each time a tunnel is registered or removed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.tunnels_tx.subscribe()
    }

    /// The number of tunnels that end here.
    pub(crate) fn own_tunnels(&self) -> u32 {
        u32::try_from(self.0.metrics.tunnels.get()).unwrap_or_default()
    }

    /// The number of nodes that have tunnels here.
    pub(crate) fn own_nodes(&self) -> u32 {
        u32::try_from(self.lock().nodes.len()).unwrap_or(u32::MAX)
    }

    /// How many tunnels the node has.
    pub(crate) fn count(&self, node: &NodeName) -> usize {
        self.lock().nodes.get(node).map_or(0, Vec::len)
    }

    /// Closes all tunnels of the node.
    pub(crate) fn close(&self, node: &NodeName) {
        for tunnel in self.lock().nodes.get(node).into_iter().flatten() {
            tunnel.close.cancel();
        }
    }

    /// The node's newest tunnel.
    pub(crate) fn newest(&self, node: &NodeName) -> Option<Arc<Registered>> {
        self.lock().nodes.get(node)?.last().cloned()
    }

    /// Every tunnel, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Registered>> {
        let mut tunnels: Vec<_> = self.lock().nodes.values().flatten().cloned().collect();
        tunnels.sort_by_key(|tunnel| tunnel.generation);
        tunnels
    }

    /// A tunnel of `node` to an agent that sends nothing.
    #[cfg(test)]
    pub(crate) async fn register_for_tests(&self, node: &str) -> Registration {
        let agent = "10.0.3.7:40000".parse().unwrap();
        let described = DescribeResponse::default();
        self.register(
            node.parse().unwrap(),
            tests::tunnel().await,
            described,
            agent,
        )
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// The number of the registration, for logs.
    pub(crate) fn generation(&self) -> u64 {
        self.registered.generation
    }

    pub(crate) fn tunnel(&self) -> &Tunnel {
        &self.registered.tunnel
    }

    pub(crate) fn agent_version(&self) -> &str {
        &self.registered.described.version
    }

    /// Completes when the tunnel must be closed.
    pub(crate) async fn closed(&self) {
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
        self.registry.0.metrics.tunnels.dec();
        if tunnels.is_empty() {
            state.nodes.remove(node);
            let online = state.is_online(node);
            self.registry.0.directory.set_online(node, online);
        }
        self.registry.0.tunnels_tx.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use culvert_tunnel::proto::tunnel::Open;
    use culvert_tunnel::{Budget, FarEnd, ProxyTunnel, ReadAhead};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio_util::task::TaskTracker;

    use super::*;

    pub(super) async fn tunnel() -> Tunnel {
        tunnel_for(1 << 29).await
    }

    async fn tunnel_for(streams_in_life: u32) -> Tunnel {
        let (near, far) = tokio::io::duplex(1 << 10);
        tunnel_over(ReadAhead::new(near), far, streams_in_life).await
    }

    /// A tunnel to `far`, which stays open.
    async fn tunnel_over(
        io: ReadAhead<DuplexStream>,
        far: DuplexStream,
        streams_in_life: u32,
    ) -> Tunnel {
        let socket_state = io.socket_state();
        let (tunnel, driver) = ProxyTunnel {
            far_end: FarEnd::Agent,
            stream_window: 1 << 20,
            max_streams: 8,
            streams_in_life,
            budget: Budget::new(1 << 20),
        }
        .establish(io, socket_state)
        .await
        .unwrap();
        TaskTracker::new().spawn(async move {
            let _far = far;
            driver.run().await
        });
        tunnel
    }

    async fn register(registry: &Registry, instance: &str, slot: &str) -> Registration {
        let described = DescribeResponse {
            instance: instance.into(),
            slot: slot.into(),
            ..Default::default()
        };
        registry.register(
            node(),
            tunnel().await,
            described,
            "10.0.3.7:40000".parse().unwrap(),
        )
    }

    fn node() -> NodeName {
        "edge-1".parse().unwrap()
    }

    fn order(registry: &Registry) -> Vec<u64> {
        registry
            .candidates(&node())
            .iter()
            .map(|candidate| match candidate {
                Candidate::Agent(registered) => registered.generation,
                Candidate::Peer(_) => panic!("no peer is registered"),
            })
            .collect()
    }

    fn registry() -> (tempfile::TempDir, Registry) {
        let state = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(state.path(), &[node()]);
        (state, Registry::new(directory, Metrics::default()))
    }

    fn online(registry: &Registry) -> bool {
        registry
            .0
            .directory
            .node(&node())
            .is_some_and(|view| view.online)
    }

    #[tokio::test]
    async fn an_old_tunnel_ending_late_removes_nothing_newer() {
        let (_state, registry) = registry();
        let old = register(&registry, "run-1", "0").await;
        let new = register(&registry, "run-2", "0").await;
        drop(old);
        assert_eq!((registry.count(&node()), online(&registry)), (1, true));
        drop(new);
        assert_eq!((registry.count(&node()), online(&registry)), (0, false));
    }

    #[tokio::test]
    async fn superseded_tunnels_are_tried_last() {
        let (_state, registry) = registry();
        let _first = register(&registry, "run-1", "0").await;
        let _second = register(&registry, "run-1", "1").await;
        assert_eq!(
            order(&registry),
            [1, 2],
            "two slots of one run serve side by side"
        );
        let _again = register(&registry, "run-1", "0").await;
        assert_eq!(
            order(&registry),
            [2, 3, 1],
            "the slot's earlier tunnel may be dead"
        );
        let _restarted = register(&registry, "run-2", "0").await;
        assert_eq!(order(&registry)[0], 4, "all of the earlier run may be");
    }

    #[tokio::test]
    async fn a_tunnel_that_its_agent_ends_is_tried_last() {
        const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let (near, mut far) = tokio::io::duplex(1 << 10);
        far.write_all(&[&SETTINGS[..], &GOAWAY].concat())
            .await
            .unwrap();
        let ending = tunnel_over(ReadAhead::new(near), far, 1 << 29).await;
        let (_state, registry) = registry();
        let agent = "10.0.3.7:40000".parse().unwrap();
        let slot = |slot: &str| DescribeResponse {
            slot: slot.into(),
            ..Default::default()
        };
        let _other = registry.register(node(), tunnel().await, slot("1"), agent);
        let _ending = registry.register(node(), ending.clone(), slot("0"), agent);
        let _free = registry.register(node(), tunnel().await, slot("2"), agent);
        while ending.takes_streams() {
            tokio::task::yield_now().await;
        }
        assert_eq!(order(&registry), [1, 3, 2]);
    }

    #[tokio::test]
    async fn a_tunnel_that_bulk_keeps_busy_is_tried_after_one_that_is_free() {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let mut io = ReadAhead::new(near);
        far.write_all(&[7; 64 << 10]).await.unwrap();
        io.read_exact(&mut [0; 64 << 10]).await.unwrap();
        let busy = tunnel_over(io, far, 1 << 29).await;
        let (_state, registry) = registry();
        let agent = "10.0.3.7:40000".parse().unwrap();
        let slot = |slot: &str| DescribeResponse {
            slot: slot.into(),
            ..Default::default()
        };
        let _busy = registry.register(node(), busy.clone(), slot("0"), agent);
        let _other = registry.register(node(), tunnel().await, slot("1"), agent);
        assert_eq!(order(&registry), [1, 2], "its bulk has ended");
        let mut bulk = Box::pin(busy.open(Open::default(), None));
        assert!(futures_util::poll!(&mut bulk).is_pending());
        assert_eq!(order(&registry), [2, 1]);
    }

    #[tokio::test]
    async fn streams_that_come_at_once_go_to_different_tunnels() {
        let (_state, registry) = registry();
        let _first = register(&registry, "run", "0").await;
        let _second = register(&registry, "run", "1").await;
        let expected = Expected::of(&registry.candidates(&node()));
        assert_eq!(order(&registry), [2, 1]);
        drop(expected);
        assert_eq!(order(&registry), [1, 2]);
    }

    #[tokio::test]
    async fn a_worn_out_tunnel_is_tried_last_and_closed_once_another_has_taken_its_place() {
        let (_state, registry) = registry();
        let described = |slot: &str| DescribeResponse {
            slot: slot.into(),
            ..Default::default()
        };
        let agent = "10.0.3.7:40000".parse().unwrap();
        let worn_out = registry.register(node(), tunnel_for(0).await, described("0"), agent);
        assert_eq!(order(&registry), [1]);
        assert!(
            futures_util::poll!(std::pin::pin!(worn_out.closed())).is_pending(),
            "there is no other"
        );
        let _other = registry.register(node(), tunnel().await, described("1"), agent);
        assert_eq!(order(&registry), [2, 1]);
        worn_out.closed().await;
    }

    #[tokio::test]
    async fn each_tunnel_too_many_closes_the_oldest_that_is_open() {
        let (_state, registry) = registry();
        let mut tunnels = Vec::new();
        // No tunnel leaves the list meanwhile: its thread may notice late that it is closed.
        for slot in 0..TUNNELS_PER_NODE + 2 {
            tunnels.push(register(&registry, "run", &slot.to_string()).await);
        }
        tunnels[0].closed().await;
        tunnels[1].closed().await;
        assert!(futures_util::poll!(std::pin::pin!(tunnels[2].closed())).is_pending());
    }

    #[tokio::test]
    async fn closing_a_node_reaches_all_its_tunnels() {
        let (_state, registry) = registry();
        let tunnels = [
            register(&registry, "run", "0").await,
            register(&registry, "run", "1").await,
        ];
        registry.close(&node());
        for registration in &tunnels {
            registration.closed().await;
        }
    }
}
