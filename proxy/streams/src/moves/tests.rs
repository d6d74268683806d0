use std::sync::Arc;

use culvert_proxy_core::directory::Directory;
use culvert_tunnel::proto::tunnel::{DescribeRequest, DescribeResponse, Open};
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Budget, DialFailure, FarEnd, MovableStreams,
    ProxyTunnel, ReadAhead, Stream, StreamEnd,
};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::*;
use crate::registry::{Registration, Tracking};

/// Connects all streams to one listener.
struct ToListener(TcpListener);

impl Backends for ToListener {
    async fn dial(&self, _: &Open) -> Result<Backend, DialFailure> {
        let address = self.0.local_addr().unwrap();
        Ok(TcpStream::connect(address).await.unwrap().into())
    }

    fn stream_ended(&self, _: &Open, _: &StreamEnd) {}
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

    /// Another tunnel, of this run of the agent.
    async fn add(&mut self, slot: &str, run: &str) -> Arc<Registered> {
        let (near, far) = tokio::io::duplex(64 << 10);
        let agent = AgentTunnel {
            stream_window: 1 << 20,
            max_streams: 8,
            streams_in_life: 1 << 29,
            budget: Budget::new(1 << 20),
            movable: self.movable.clone(),
            describe: DescribeResponse {
                slot: slot.to_owned(),
                instance: run.to_owned(),
                moves: true,
                ..DescribeResponse::default()
            },
        };
        let backends = self.backends.clone();
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
            far_end: FarEnd::Agent,
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
        let address = "10.0.3.7:40000".parse().unwrap();
        let node = "edge-1".parse().unwrap();
        let registration = self.registry.register(node, tunnel, described, address);
        self.tunnels.push(registration);
        self.registry.all().pop().unwrap()
    }

    fn mover(&self) -> Mover {
        Mover::new(self.registry.clone(), Metrics::default())
    }
}

/// A stream that is relayed, and moves as many bytes as a test says.
struct Moving {
    tracking: Tracking,
    transferred: Arc<culvert_tunnel::Transferred>,
    _client: UnixStream,
}

impl Moving {
    async fn start(number: u64, tunnel: &Arc<Registered>, relays: &mut JoinSet<()>) -> Self {
        let stream: Stream = tunnel.tunnel.open(Open::default(), None).await.unwrap();
        let transferred = Arc::<culvert_tunnel::Transferred>::default();
        let movable = stream.movable().unwrap();
        let tracking = Tracking::start(number, movable, transferred.clone(), tunnel.clone());
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
        self.tracking.0.tunnel().generation
    }
}

/// Looks for more than a second, in which these streams are heavy.
async fn look(mover: &mut Mover, tunnels: &[Arc<Registered>], heavy: &[&Moving]) {
    for _ in 0..6 {
        for stream in heavy {
            stream.bulk();
        }
        mover.look("edge-1".parse().unwrap(), tunnels);
        while mover.tasks.join_next().await.is_some() {}
    }
}

#[tokio::test]
async fn of_a_heavy_stream_and_a_thin_one_in_a_tunnel_the_heavy_one_moves_to_a_free_one() {
    let mut node = Node::new().await;
    let shared = node.add("0", "run").await;
    let mut relays = JoinSet::new();
    let heavy = Moving::start(1, &shared, &mut relays).await;
    let thin = Moving::start(2, &shared, &mut relays).await;
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
        heavy.push(Moving::start(number, &shared, &mut relays).await);
    }
    let mut tunnels = vec![shared];
    for slot in ["1", "2", "3"] {
        tunnels.push(node.add(slot, "run").await);
    }
    let heavy: Vec<&Moving> = heavy.iter().collect();
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
    let first = Moving::start(1, &shared, &mut relays).await;
    let second = Moving::start(2, &shared, &mut relays).await;
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
    let heavy = Moving::start(1, &shared, &mut relays).await;
    let _thin = Moving::start(2, &shared, &mut relays).await;
    let used = node.add("1", "run").await;
    let _other = Moving::start(3, &used, &mut relays).await;
    let strange = node.add("0", "copy").await;
    let tunnels = [shared.clone(), used, strange];
    look(&mut node.mover(), &tunnels, &[&heavy]).await;
    assert_eq!(heavy.tunnel(), shared.generation);
}
