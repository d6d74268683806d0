use std::any::Any;
use std::sync::Arc;

use culvert_proxy_core::directory::Directory;
use culvert_tunnel::proto::tunnel::{DescribeRequest, DescribeResponse, Open};
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Budget, DialFailure, FarEnd, MovableStreams,
    ProxyTunnel, ReadAhead, Stream, StreamEnd, ThroughTunnel,
};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::*;
use crate::peers::{PeerChange, PeerInfo};
use crate::rank::Rank;
use crate::registry::{MoveReason, Registration, StreamPlace, Tracking};

/// Connects all streams to one listener.
struct ToListener(TcpListener);

impl Backends for ToListener {
    async fn dial(&self, _: &Open) -> Result<Backend, DialFailure> {
        let address = self.0.local_addr().unwrap();
        Ok(TcpStream::connect(address).await.unwrap().into())
    }

    fn stream_ended(&self, _: &Open, _: &StreamEnd) {}
}

/// Another proxy, which has a tunnel of the agent.
struct Peer {
    tunnel: Tunnel,
    asked: Mutex<Vec<DialProxyRequest>>,
}

impl Backends for Peer {
    async fn dial(&self, open: &Open) -> Result<Backend, DialFailure> {
        Ok(Backend::Agent(Box::new(ThroughTunnel {
            tunnel: self.tunnel.clone(),
            open: open.clone(),
        })))
    }

    fn stream_ended(&self, _: &Open, _: &StreamEnd) {}

    async fn request_tunnels_to(&self, request: DialProxyRequest) {
        self.asked.lock().push(request);
    }
}

/// A node whose agent has tunnels here.
struct Node {
    registry: Registry,
    movable: MovableStreams,
    backends: Arc<ToListener>,
    tunnels: Vec<Registration>,
    ends: JoinSet<()>,
    _state: tempfile::TempDir,
}

impl Node {
    async fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let node = "edge-1".parse().unwrap();
        let directory = Directory::for_tests(state.path(), &[node]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            registry: Registry::new(directory, Metrics::default()),
            movable: MovableStreams::default(),
            backends: Arc::new(ToListener(listener)),
            tunnels: Vec::new(),
            ends: JoinSet::new(),
            _state: state,
        }
    }

    /// A tunnel with these backends at its far end.
    async fn connect<B: Backends>(
        &mut self,
        far_end: FarEnd,
        describe: DescribeResponse,
        backends: Arc<B>,
    ) -> (Tunnel, DescribeResponse) {
        let (near, far) = tokio::io::duplex(64 << 10);
        let agent = AgentTunnel {
            stream_window: 1 << 20,
            max_streams: 8,
            streams_in_life: 1 << 29,
            budget: Budget::new(1 << 20),
            movable: self.movable.clone(),
            describe,
        };
        self.ends.spawn(async move {
            let io = ReadAhead::new(far);
            let socket_state = io.socket_state();
            let state = AgentTunnelState::default();
            let drain = std::future::pending();
            let served = agent.serve(io, socket_state, state, backends, drain);
            served.await.ok();
        });
        let io = ReadAhead::new(near);
        let socket_state = io.socket_state();
        let settings = ProxyTunnel {
            far_end,
            stream_window: 1 << 20,
            max_streams: 8,
            streams_in_life: 1 << 29,
            budget: Budget::new(1 << 20),
        };
        let (tunnel, driver) = settings.establish(io, socket_state).await.unwrap();
        self.ends.spawn(async move {
            driver.run().await.ok();
        });
        let request = DescribeRequest::default();
        let described = tunnel.describe(&request).await.unwrap();
        (tunnel, described)
    }

    /// A tunnel of this run of the agent.
    async fn tunnel(&mut self, slot: &str, run: &str) -> (Tunnel, DescribeResponse) {
        let describe = DescribeResponse {
            slot: slot.to_owned(),
            instance: run.to_owned(),
            moves: true,
            ..DescribeResponse::default()
        };
        let backends = self.backends.clone();
        self.connect(FarEnd::Agent, describe, backends).await
    }

    /// Another tunnel that ends here, of this run of the agent.
    async fn add(&mut self, slot: &str, run: &str) -> Arc<Registered> {
        let (tunnel, described) = self.tunnel(slot, run).await;
        let address = "10.0.3.7:40000".parse().unwrap();
        let node = "edge-1".parse().unwrap();
        let registration = self.registry.register(node, tunnel, described, address);
        self.tunnels.push(registration);
        self.registry.all().pop().unwrap()
    }

    /// A peer with a tunnel of the node, and the way through it.
    async fn peer(&mut self) -> (Arc<Peer>, Candidate, Box<dyn Any>) {
        let (tunnel, described) = self.tunnel("9", "run").await;
        let peer = Arc::new(Peer {
            tunnel,
            asked: Mutex::default(),
        });
        let describe = DescribeResponse::default();
        let (link, _) = self.connect(FarEnd::Proxy, describe, peer.clone()).await;
        let info = PeerInfo {
            instance: "peer".into(),
            host: "peer".to_owned(),
            version: String::new(),
            addresses: Vec::new(),
            certificate_ends: None,
        };
        let registration = self.registry.register_peer(info).unwrap();
        let node: NodeName = "edge-1".parse().unwrap();
        registration.change(PeerChange {
            opened: vec![(1, node.clone(), Rank::of(&described))],
            ..PeerChange::default()
        });
        let linked = self.registry.register_link(&"peer".into(), link).unwrap();
        let way = self.registry.candidates(&node).pop().unwrap();
        (peer, way, Box::new((registration, linked)))
    }

    fn mover(&self) -> Mover {
        Mover::new(self.registry.clone(), "own".into(), Metrics::default())
    }
}

fn here(tunnel: &Arc<Registered>) -> Candidate {
    Candidate::Agent(tunnel.clone())
}

/// A stream that is relayed, and moves as many bytes as a test says.
struct HeavyStream {
    tracking: Tracking,
    transferred: Arc<culvert_tunnel::Transferred>,
    _client: UnixStream,
}

impl HeavyStream {
    async fn start(
        registry: &Registry,
        number: u64,
        way: Candidate,
        relays: &mut JoinSet<()>,
    ) -> Self {
        let opened = way.tunnel().open(Open::default(), None).await;
        let stream: Stream = opened.unwrap();
        let transferred = Arc::<culvert_tunnel::Transferred>::default();
        let movable = stream.movable().unwrap();
        let tracking = registry.track(
            number,
            &"edge-1".parse().unwrap(),
            way,
            Some(movable),
            transferred.clone(),
        );
        let (client, proxy_side) = UnixStream::pair().unwrap();
        let counters = transferred.clone();
        relays.spawn(async move {
            let mut stream = stream;
            stream.relay(&proxy_side.into(), &counters).await.ok();
        });
        Self {
            tracking,
            transferred,
            _client: client,
        }
    }

    /// Counts bulk data since the last look.
    fn bulk(&self) {
        self.transferred.into_tunnel.add(&[0; 50_000]);
    }

    fn tunnel(&self) -> u64 {
        match self.tracking.0.place() {
            StreamPlace::Tunnel(number) => number,
            StreamPlace::Peer(peer) => panic!("{peer:?}"),
        }
    }
}

/// Looks for more than a second, in which these streams are heavy.
async fn look(mover: &mut Mover, tunnels: &[Arc<Registered>], heavy: &[&HeavyStream]) {
    for _ in 0..6 {
        for stream in heavy {
            stream.bulk();
        }
        let node = "edge-1".parse().unwrap();
        mover.look_at(&node, tunnels, Vec::new(), Instant::now());
        while mover.tasks.join_next().await.is_some() {}
    }
}

#[tokio::test]
async fn of_a_heavy_stream_and_a_thin_one_in_a_tunnel_the_heavy_one_moves_to_a_free_one() {
    let mut node = Node::new().await;
    let shared = node.add("0", "run").await;
    let mut relays = JoinSet::new();
    let heavy = HeavyStream::start(&node.registry, 1, here(&shared), &mut relays).await;
    let thin = HeavyStream::start(&node.registry, 2, here(&shared), &mut relays).await;
    let free = node.add("1", "run").await;
    let mut mover = node.mover();
    look(&mut mover, &[shared.clone(), free.clone()], &[&heavy]).await;
    let places = [heavy.tunnel(), thin.tunnel()];
    assert_eq!(places, [free.generation, shared.generation]);
    assert_eq!(mover.metrics.moved_streams.get(), 1);
    look(&mut mover, &[shared, free], &[&heavy]).await;
    assert_eq!(mover.metrics.moved_streams.get(), 1, "it is alone now");
}

#[tokio::test]
async fn of_heavy_streams_among_themselves_one_stays_and_each_other_one_gets_a_tunnel() {
    let mut node = Node::new().await;
    let shared = node.add("0", "run").await;
    let mut relays = JoinSet::new();
    let mut heavy = Vec::new();
    for number in 0..3 {
        heavy.push(HeavyStream::start(&node.registry, number, here(&shared), &mut relays).await);
    }
    let mut tunnels = vec![shared];
    for slot in ["1", "2", "3"] {
        tunnels.push(node.add(slot, "run").await);
    }
    let heavy: Vec<&HeavyStream> = heavy.iter().collect();
    look(&mut node.mover(), &tunnels, &heavy).await;
    let mut places: Vec<u64> = heavy.iter().map(|stream| stream.tunnel()).collect();
    places.sort_unstable();
    let first = tunnels[0].generation;
    assert_eq!(places, [first, first + 1, first + 2]);
}

#[tokio::test]
async fn the_last_tunnel_without_heavy_streams_is_left_to_others() {
    let mut node = Node::new().await;
    let shared = node.add("0", "run").await;
    let mut relays = JoinSet::new();
    let first = HeavyStream::start(&node.registry, 1, here(&shared), &mut relays).await;
    let second = HeavyStream::start(&node.registry, 2, here(&shared), &mut relays).await;
    let free = node.add("1", "run").await;
    let tunnels = [shared.clone(), free];
    look(&mut node.mover(), &tunnels, &[&first, &second]).await;
    assert_eq!([first.tunnel(), second.tunnel()], [shared.generation; 2]);
}

#[tokio::test]
async fn a_stream_does_not_move_to_a_tunnel_with_streams_nor_to_one_of_another_run() {
    let mut node = Node::new().await;
    let shared = node.add("0", "run").await;
    let mut relays = JoinSet::new();
    let heavy = HeavyStream::start(&node.registry, 1, here(&shared), &mut relays).await;
    let _thin = HeavyStream::start(&node.registry, 2, here(&shared), &mut relays).await;
    let used = node.add("1", "run").await;
    let _other = HeavyStream::start(&node.registry, 3, here(&used), &mut relays).await;
    let strange = node.add("0", "copy").await;
    let tunnels = [shared.clone(), used, strange];
    look(&mut node.mover(), &tunnels, &[&heavy]).await;
    assert_eq!(heavy.tunnel(), shared.generation);
}

#[tokio::test]
async fn a_heavy_stream_by_way_of_a_peer_gets_tunnels_here_and_moves_to_one() {
    let mut node = Node::new().await;
    let (peer, way, _registered) = node.peer().await;
    let mut relays = JoinSet::new();
    let heavy = HeavyStream::start(&node.registry, 1, way, &mut relays).await;
    let name: NodeName = "edge-1".parse().unwrap();
    let mut mover = node.mover();
    let tracked = heavy.tracking.0.clone();
    for _ in 0..3 {
        mover.look_at(&name, &[], vec![tracked.clone()], Instant::now());
        while mover.tasks.join_next().await.is_some() {}
    }
    let asked = DialProxyRequest {
        node: name.to_string(),
        proxy: "own".to_owned(),
        count: 2,
    };
    assert_eq!(*peer.asked.lock(), [asked], "it is asked once");
    let tunnels = [node.add("0", "run").await, node.add("1", "run").await];
    mover.look_at(&name, &tunnels, vec![tracked.clone()], Instant::now());
    while mover.tasks.join_next().await.is_some() {}
    assert!(
        tunnels
            .iter()
            .any(|tunnel| tunnel.generation == heavy.tunnel())
    );
    assert_eq!(tracked.move_reason(), Some(MoveReason::ByPeer));
    assert_eq!(
        [tracked.moves(), 1],
        [1, mover.metrics.moved_streams.get() as u32]
    );
}

#[tokio::test]
async fn the_only_tunnel_here_is_left_to_light_streams_and_an_ended_stream_keeps_no_link() {
    let mut node = Node::new().await;
    let (_peer, way, _registered) = node.peer().await;
    let mut relays = JoinSet::new();
    let heavy = HeavyStream::start(&node.registry, 1, way, &mut relays).await;
    let name: NodeName = "edge-1".parse().unwrap();
    let mut mover = node.mover();
    let tracked = heavy.tracking.0.clone();
    let tunnels = [node.add("0", "run").await];
    mover.look_at(&name, &tunnels, vec![tracked.clone()], Instant::now());
    while mover.tasks.join_next().await.is_some() {}
    assert!(matches!(tracked.place(), StreamPlace::Peer(_)));
    drop(heavy);
    assert!(tracked.way().is_none(), "it keeps no link");
}
