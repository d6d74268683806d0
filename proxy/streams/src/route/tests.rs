//! The order in which tunnels are tried.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use culvert_tunnel::proto::tunnel::DescribeResponse;
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Budget, DialFailure, FarEnd, MovableStreams,
    ProxyTunnel, ReadAhead, Socket, StreamEnd, Transferred,
};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::*;
use crate::live::Streams;
use crate::registry::Registration;
use crate::routed::RoutedClient;

const DEADLINE: Duration = Duration::from_secs(20);

/// An agent whose dials never complete.
#[derive(Default)]
struct Hanging {
    dials: AtomicUsize,
    dialled: Notify,
}

impl Backends for Hanging {
    async fn dial(&self, _: &Open) -> Result<Backend, DialFailure> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        self.dialled.notify_one();
        std::future::pending().await
    }

    fn stream_ended(&self, _: &Open, _: &StreamEnd) {}
}

/// A node with tunnels.
struct Tunnels {
    router: Router,
    registry: Registry,
    backends: Arc<Hanging>,
    /// What serves each tunnel at the agent.
    agents: Vec<AbortHandle>,
    ends: JoinSet<()>,
    registrations: Vec<Registration>,
    _state: tempfile::TempDir,
}

fn node() -> NodeName {
    "edge-1".parse().unwrap()
}

impl Tunnels {
    fn none() -> Self {
        let state = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(state.path(), &[node()]);
        let registry = Registry::new(directory.clone(), Metrics::default());
        let router = Router::new(
            directory,
            registry.clone(),
            Streams::for_tests(Metrics::default()),
            Metrics::default(),
        );
        Self {
            router,
            registry,
            backends: Arc::default(),
            agents: Vec::new(),
            ends: JoinSet::new(),
            registrations: Vec::new(),
            _state: state,
        }
    }

    async fn add(&mut self, slot: &str) {
        let (near, far) = tokio::io::duplex(64 << 10);
        let budget = Budget::new(1 << 20);
        let described = DescribeResponse::default();
        let settings = AgentTunnel {
            stream_window: 1 << 20,
            max_streams: 8,
            streams_in_life: 1 << 29,
            budget,
            movable: MovableStreams::default(),
            describe: described.clone(),
        };
        let served = self.backends.clone();
        self.agents.push(self.ends.spawn(async move {
            let io = ReadAhead::new(far);
            let socket_state = io.socket_state();
            let state = AgentTunnelState::default();
            settings
                .serve(io, socket_state, state, served, std::future::pending())
                .await
                .ok();
        }));
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
        let described = DescribeResponse {
            slot: slot.to_owned(),
            ..described
        };
        self.registrations.push(self.registry.register(
            node(),
            tunnel,
            described,
            "10.0.3.7:40000".parse().unwrap(),
        ));
    }
}

/// Closes the first tunnel while a stream opens in it, and the second one too if it is tried. The
/// second one comes up after the stream's begin. Returns the error and the number of dials at the
/// agent.
async fn lose_tunnels(said: &[u8]) -> (&'static str, usize) {
    let mut tunnels = Tunnels::none();
    tunnels.add("0").await;
    let destination = Destination::Name("edge-1".to_owned(), 9100);
    let route = tunnels.router.route(destination).unwrap();
    tunnels.add("1").await;
    let Tunnels {
        router,
        backends,
        agents,
        ..
    } = &tunnels;
    let (mut client, proxy_side) = UnixStream::pair().unwrap();
    client.write_all(said).await.unwrap();
    let proxy_side = Socket::from(proxy_side);
    let transferred = Transferred::default();
    let early = EarlyClient {
        client: &proxy_side,
        transferred: &transferred,
    };
    let lose = async {
        for agent in agents {
            backends.dialled.notified().await;
            while early.has_gone() == said.is_empty() {
                tokio::task::yield_now().await;
            }
            agent.abort();
        }
        std::future::pending().await
    };
    let opened = tokio::select! {
        opened = router.open(&route, 1, Some(early)) => opened,
        () = lose => unreachable!("it has no end"),
    };
    (
        opened.err().unwrap().reason(),
        backends.dials.load(Ordering::Relaxed),
    )
}

#[tokio::test]
async fn a_dial_is_tried_in_another_tunnel_unless_its_client_has_spoken() {
    let lost = timeout(DEADLINE, lose_tunnels(b"")).await.unwrap();
    assert_eq!(
        lost,
        ("tunnel_lost", 2),
        "a client that has said nothing is given every tunnel"
    );
    let lost = timeout(DEADLINE, lose_tunnels(b"POST /once"))
        .await
        .unwrap();
    assert_eq!(
        lost,
        ("tunnel_lost", 1),
        "what may be at the backend is not said twice"
    );
}

#[tokio::test]
async fn clients_that_come_at_once_go_to_different_tunnels_and_each_counts_once() {
    let mut tunnels = Tunnels::none();
    tunnels.add("0").await;
    tunnels.add("1").await;
    let client = || {
        let destination = Destination::Name("edge-1".to_owned(), 9100);
        let router = &tunnels.router;
        let record = router.start_record(Frontend::Ebpf, "10.0.0.9:40000".to_owned(), &destination);
        let route = router.route(destination).unwrap();
        RoutedClient::new(router.clone(), route, ClientKind::Host, record)
    };
    let next = || match tunnels.registry.candidates(&node()).remove(0) {
        Candidate::Agent(registered) => registered.generation,
        Candidate::Peer(_) => panic!("no peer is registered"),
    };
    assert_eq!(next(), 1);
    let mut first = client();
    assert_eq!(next(), 2, "a client counts before its stream opens");
    let mut opening = Box::pin(first.open(None));
    assert!(futures_util::poll!(&mut opening).is_pending());
    let _second = client();
    assert_eq!(next(), 1, "an opening stream counts once");
}
