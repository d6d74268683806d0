//! Tests both ends of a tunnel over real sockets in one process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "tunnel/early.rs"]
mod early;
#[path = "tunnel/hostile.rs"]
mod hostile;
#[path = "tunnel/moves.rs"]
mod moves;
#[path = "tunnel/peers.rs"]
mod peers;
#[path = "tunnel/predecessors.rs"]
mod predecessors;
#[path = "tunnel/proxies.rs"]
mod proxies;
#[path = "tunnel/silence.rs"]
mod silence;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_tunnel::proto::tunnel::{DescribeRequest, DescribeResponse, DialCode, Open, Proxy};
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Budget, Close, Declined, DialFailure, Driver,
    FarEnd, MovableStreams, OpenError, ProxyTunnel, ReadAhead, Socket, Stream, StreamEnd,
    ThroughTunnel, Total, Transferred, Tunnel, TunnelError,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, RwLock, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(20);

/// Dials loopback. Port 1 hangs until the dial is dropped; port 2 is forbidden.
#[derive(Default)]
struct Loopback {
    /// A test that holds this lock delays dials.
    dialling: RwLock<()>,
    dial_dropped: Arc<Notify>,
    ended: Mutex<Vec<String>>,
    end: Notify,
    /// What the proxy has told last.
    told: Mutex<Vec<Proxy>>,
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Backends for Loopback {
    async fn dial(&self, open: &Open) -> Result<Backend, DialFailure> {
        let _dialling = self.dialling.read().await;
        match open.port {
            1 => {
                let _dropped = NotifyOnDrop(self.dial_dropped.clone());
                std::future::pending().await
            }
            2 => Err(DialFailure {
                code: DialCode::Forbidden,
                message: "port 2 is not allowed".to_owned(),
            }),
            port => {
                let socket = TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())).await;
                socket.map(Backend::from).map_err(|error| DialFailure {
                    code: DialCode::Refused,
                    message: error.to_string(),
                })
            }
        }
    }

    fn stream_ended(&self, _: &Open, end: &StreamEnd) {
        let end = end
            .result
            .as_ref()
            .map_or_else(ToString::to_string, |()| "finished".to_owned());
        self.ended.lock().push(end);
        self.end.notify_one();
    }

    fn admit_proxy(&self, proxy: &DescribeRequest) -> Result<(), Declined> {
        match proxy.instance.as_str() {
            "unwanted" => Err(Declined),
            _ => Ok(()),
        }
    }

    fn set_proxies(&self, proxies: Vec<Proxy>) {
        *self.told.lock() = proxies;
    }
}

/// The two ends of one tunnel.
struct Pair {
    tunnel: Tunnel,
    backends: Arc<Loopback>,
    agent_state: AgentTunnelState,
    drain: Option<oneshot::Sender<()>>,
    agent: tokio::task::AbortHandle,
    ends: JoinSet<Result<(), TunnelError>>,
}

async fn pair(stream_window: u32, max_streams: u32) -> Pair {
    pair_with_budget(stream_window, max_streams, Budget::new(64 << 20)).await
}

/// The budget is the budget of the proxy's end.
async fn pair_with_budget(stream_window: u32, max_streams: u32, budget: Budget) -> Pair {
    let (agent_socket, proxy_socket) = socket_pair().await;
    let backends = Arc::new(Loopback::default());
    let agent_state = AgentTunnelState::default();
    let (drain_tx, drain_rx) = oneshot::channel::<()>();
    let mut ends = JoinSet::new();
    let agent = ends.spawn({
        let backends = backends.clone();
        let state = agent_state.clone();
        let describe = DescribeResponse {
            instance: "test".to_owned(),
            ..Default::default()
        };
        async move {
            let io = ReadAhead::new(agent_socket);
            let socket_state = io.socket_state();
            let drain = async {
                if drain_rx.await.is_err() {
                    std::future::pending().await
                }
            };
            let budget = Budget::new(64 << 20);
            let end = AgentTunnel {
                stream_window,
                max_streams,
                streams_in_life: 1 << 29,
                budget,
                movable: MovableStreams::default(),
                describe,
            };
            end.serve(io, socket_state, state, backends, drain).await
        }
    });
    let io = ReadAhead::new(proxy_socket);
    let socket_state = io.socket_state();
    let (tunnel, driver) = ProxyTunnel {
        far_end: FarEnd::Agent,
        stream_window,
        max_streams,
        streams_in_life: 1 << 29,
        budget,
    }
    .establish(io, socket_state)
    .await
    .unwrap();
    ends.spawn(driver.run());
    Pair {
        tunnel,
        backends,
        agent_state,
        drain: Some(drain_tx),
        agent,
        ends,
    }
}

/// A proxy's end of a tunnel, whose far end is not an agent's.
async fn proxy_end(socket: TcpStream) -> (Tunnel, Driver<ReadAhead<TcpStream>>) {
    let io = ReadAhead::new(socket);
    let socket_state = io.socket_state();
    let settings = ProxyTunnel {
        far_end: FarEnd::Agent,
        stream_window: 1 << 20,
        max_streams: 8,
        streams_in_life: 1 << 29,
        budget: Budget::new(1 << 20),
    };
    settings.establish(io, socket_state).await.unwrap()
}

async fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

async fn backend() -> (TcpListener, u32) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port.into())
}

fn to_port(port: u32) -> Open {
    Open {
        port,
        original_dst: format!("edge-1:{port}"),
        ..Open::default()
    }
}

/// A client whose connection is relayed through the tunnel, and the backend's end of it.
async fn relayed(
    pair: &Pair,
    relays: &mut JoinSet<Result<(), culvert_tunnel::RelayError>>,
) -> (TcpStream, TcpStream) {
    let (listener, port) = backend().await;
    let (stream, accepted) = tokio::join!(pair.tunnel.open(to_port(port), None), listener.accept());
    let (client, proxy_side) = socket_pair().await;
    relays.spawn(relay(stream.unwrap(), proxy_side));
    (client, accepted.unwrap().0)
}

async fn relay(
    mut stream: Stream,
    client: impl Into<Socket>,
) -> Result<(), culvert_tunnel::RelayError> {
    stream.relay(&client.into(), &Transferred::default()).await
}

fn reset(socket: TcpStream) {
    Socket::from(socket).on_close(Close::Reset);
}

/// A reset drops what the kernel has not sent yet.
async fn reset_after_delivery(socket: TcpStream) {
    let socket = Socket::from(socket);
    socket.acknowledged().await;
    socket.on_close(Close::Reset);
}

#[tokio::test]
async fn describe_answers() {
    let pair = pair(1 << 20, 8).await;
    let described = pair
        .tunnel
        .describe(&DescribeRequest::default())
        .await
        .unwrap();
    assert_eq!(described.instance, "test");
}

#[tokio::test]
async fn each_direction_closes_by_itself_and_all_bytes_arrive() {
    let pair = pair(256 << 10, 8).await;
    let mut relays = JoinSet::new();
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    let request: Vec<u8> = (0..3_000_000_u32)
        .map(|index| (index / 7).to_le_bytes()[0])
        .collect();
    client.write_all(&request[..10]).await.unwrap();
    let rest = request[10..].to_vec();
    let upload = async {
        client.write_all(&rest).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let serve = async {
        let mut received = Vec::new();
        backend.read_to_end(&mut received).await.unwrap();
        backend.write_all(b"got it all").await.unwrap();
        drop(backend);
        received
    };
    let (answer, received) = timeout(DEADLINE, async { tokio::join!(upload, serve) })
        .await
        .unwrap();
    assert!(
        received == request,
        "{} of {} bytes",
        received.len(),
        request.len()
    );
    assert_eq!(answer, b"got it all");
    relays.join_next().await.unwrap().unwrap().unwrap();
    pair.backends.end.notified().await;
    assert_eq!(*pair.backends.ended.lock(), ["finished"]);
    assert_eq!(
        (pair.tunnel.streams(), pair.agent_state.streams().len()),
        (0, 0)
    );
}

#[tokio::test]
async fn stalled_readers_leave_their_neighbour_moving() {
    let pair = pair(256 << 10, 64).await;
    let mut relays = JoinSet::new();
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let (client, backend) = relayed(&pair, &mut relays).await;
        fill(&backend).await;
        stalled.push((client, backend));
    }
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    bytes_arrive(&mut backend, &mut client).await;
}

/// Sends 8 MiB from one end of a connection, and compares what arrives at the other one.
async fn bytes_arrive(from: &mut TcpStream, to: &mut TcpStream) {
    let sent = vec![2; 8 << 20];
    let mut received = vec![0; sent.len()];
    let copied = async { tokio::try_join!(from.write_all(&sent), to.read_exact(&mut received)) };
    timeout(DEADLINE, copied)
        .await
        .expect("the bytes arrive")
        .unwrap();
    assert!(received == sent);
}

#[tokio::test]
async fn over_the_budget_the_client_that_takes_nothing_for_longest_is_reset_and_no_other() {
    // How much memory a stalled client takes, between 0.8 and 1.3 of its window, depends on how its
    // bytes arrive. So clients come until one is too many.
    let window: u32 = 256 << 10;
    let limit = 4 * window as usize;
    let budget = Budget::new(limit);
    let pair = pair_with_budget(window, 64, budget.clone()).await;
    let mut relays = JoinSet::new();
    let mut stalled = Vec::new();
    let ended = loop {
        let before = budget.stalled_bytes();
        let (client, backend) = relayed(&pair, &mut relays).await;
        fill(&backend).await;
        stalled.push((client, backend));
        tokio::select! {
            ended = relays.join_next() => break ended.unwrap().unwrap(),
            stalls = timeout(DEADLINE, wait_stalled(&budget, before + limit / 8)) => stalls.unwrap(),
        }
    };
    assert!(stalled.len() > 3, "{} clients are too many", stalled.len());
    assert_eq!(ended.unwrap_err().reason(), "buffer_budget");
    let mut sink = Vec::new();
    let longest = timeout(DEADLINE, stalled[0].0.read_to_end(&mut sink))
        .await
        .unwrap();
    assert_eq!(longest.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(relays.len(), stalled.len() - 1);
    assert!(budget.stalled_bytes() <= limit);
    relays.shutdown().await;
    assert_eq!(
        budget.stalled_bytes(),
        0,
        "nothing is left of those that ended"
    );
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_dial() {
    let pair = pair(1 << 20, 8).await;
    let dial = pair.tunnel.open(to_port(1), None);
    assert!(
        timeout(Duration::from_millis(200), dial).await.is_err(),
        "the dial hangs, then its future is dropped"
    );
    timeout(DEADLINE, pair.backends.dial_dropped.notified())
        .await
        .unwrap();
    assert_eq!(pair.tunnel.streams(), 0);
}

#[tokio::test]
async fn a_client_that_dies_resets_a_backend_that_does_not_read() {
    let pair = pair(256 << 10, 8).await;
    let mut relays = JoinSet::new();
    let (client, mut backend) = relayed(&pair, &mut relays).await;
    fill(&client).await;
    reset(client);
    let relayed = timeout(DEADLINE, relays.join_next())
        .await
        .expect("the relay notices")
        .unwrap()
        .unwrap();
    assert_eq!(relayed.unwrap_err().reason(), "reset");
    let mut sink = Vec::new();
    let read = timeout(DEADLINE, backend.read_to_end(&mut sink))
        .await
        .unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// An upload that the backend answers and closes without reading all of it, as with HTTP 413.
#[tokio::test]
async fn an_early_answer_arrives_whole_though_its_backend_closed_on_unread_bytes() {
    let pair = pair(256 << 10, 8).await;
    for round in 0..20 {
        let mut relays = JoinSet::new();
        let (mut client, mut backend) = relayed(&pair, &mut relays).await;
        let upload = vec![1; 3 << 20];
        let answer = vec![2; 20_000];
        let serve = async {
            backend.read_exact(&mut [0; 1000]).await.unwrap();
            backend.write_all(&answer).await.unwrap();
            reset_after_delivery(backend).await;
        };
        let ask = async {
            let mut received = Vec::new();
            let (mut read, mut write) = client.split();
            let upload = async {
                // The backend's close cuts it short.
                let _cut = write.write_all(&upload).await;
                std::future::pending::<()>().await;
            };
            let download = async {
                // It ends with a reset, after the answer.
                let _reset = read.read_to_end(&mut received).await;
            };
            tokio::select! { () = upload => {}, () = download => {} }
            received
        };
        let (received, ()) = timeout(DEADLINE, async { tokio::join!(ask, serve) })
            .await
            .unwrap();
        assert!(
            received == answer,
            "round {round}: {} of {} bytes",
            received.len(),
            answer.len()
        );
    }
}

/// Part of the answer waits in the kernel because the client reads nothing yet.
#[tokio::test]
async fn an_answer_before_a_reset_arrives_whole_though_its_client_reads_late() {
    let pair = pair(1 << 20, 8).await;
    let mut relays = JoinSet::new();
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    // More than the receive buffer of a client that reads nothing.
    let answer = vec![2; 500_000];
    backend.write_all(&answer).await.unwrap();
    reset_after_delivery(backend).await;
    timeout(Duration::from_millis(300), relays.join_next())
        .await
        .expect_err("the relay waits for its client");
    let mut received = Vec::new();
    let read = timeout(DEADLINE, client.read_to_end(&mut received))
        .await
        .unwrap();
    assert_eq!(received.len(), answer.len());
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let relayed = timeout(DEADLINE, relays.join_next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(relayed.unwrap().unwrap_err().reason(), "peer_reset");
}

#[tokio::test]
async fn a_half_closed_stream_ends_with_its_other_half() {
    let pair = pair(256 << 10, 8).await;
    let mut relays = JoinSet::new();
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    client.shutdown().await.unwrap();
    assert_eq!(
        backend.read(&mut [0; 9]).await.unwrap(),
        0,
        "the backend sees the end, and says nothing"
    );
    reset(client);
    let relayed = timeout(DEADLINE, relays.join_next())
        .await
        .expect("the client's death is noticed")
        .unwrap()
        .unwrap();
    assert_eq!(relayed.unwrap_err().reason(), "reset");
    let told = async { while backend.write_all(b"x").await.is_ok() {} };
    timeout(DEADLINE, told)
        .await
        .expect("and told to the backend");
}

#[tokio::test]
async fn a_half_closed_backend_that_dies_is_noticed() {
    let pair = pair(256 << 10, 8).await;
    let mut relays = JoinSet::new();
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    backend.shutdown().await.unwrap();
    assert_eq!(client.read(&mut [0; 9]).await.unwrap(), 0);
    reset(backend);
    timeout(DEADLINE, pair.backends.end.notified())
        .await
        .expect("the agent's relay ends");
    let relayed = timeout(DEADLINE, relays.join_next())
        .await
        .expect("the proxy's too")
        .unwrap()
        .unwrap();
    assert_eq!(relayed.unwrap_err().reason(), "peer_reset");
}

#[tokio::test]
async fn a_lost_tunnel_ends_a_half_closed_client_that_does_not_read() {
    let pair = pair(256 << 10, 8).await;
    let mut relays = JoinSet::new();
    let (mut client, backend) = relayed(&pair, &mut relays).await;
    client.shutdown().await.unwrap();
    fill(&backend).await;
    pair.agent.abort();
    timeout(DEADLINE, relays.join_next())
        .await
        .expect("the relay ends")
        .unwrap()
        .unwrap()
        .unwrap_err();
}

#[tokio::test]
async fn a_unix_client_that_leaves_a_stalled_backend_is_noticed() {
    let pair = pair(256 << 10, 8).await;
    let (listener, port) = backend().await;
    let (stream, accepted) = tokio::join!(pair.tunnel.open(to_port(port), None), listener.accept());
    let _backend = accepted.unwrap();
    let (client, proxy_side) = UnixStream::pair().unwrap();
    let mut relays = JoinSet::new();
    relays.spawn(relay(stream.unwrap(), proxy_side));
    while timeout(Duration::from_millis(300), client.writable())
        .await
        .is_ok()
    {
        let _full_is_fine = client.try_write(&[1; 1 << 16]);
    }
    drop(client);
    timeout(DEADLINE, relays.join_next())
        .await
        .expect("the relay ends")
        .unwrap()
        .unwrap()
        .unwrap_err();
}

/// Waits until stalled streams hold as many bytes.
async fn wait_stalled(budget: &Budget, bytes: usize) {
    while budget.stalled_bytes() < bytes {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Writes until the socket accepts no more, and returns how much it accepted.
async fn fill(socket: &TcpStream) -> usize {
    let piece = vec![1; 1 << 20];
    let mut taken = 0;
    while timeout(Duration::from_millis(300), socket.writable())
        .await
        .is_ok()
    {
        match socket.try_write(&piece) {
            Ok(count) => taken += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    taken
}

#[tokio::test]
async fn a_backend_that_dies_resets_its_client() {
    let pair = pair(256 << 10, 8).await;
    let mut relays = JoinSet::new();
    let (mut client, backend) = relayed(&pair, &mut relays).await;
    reset(backend);
    let read = timeout(DEADLINE, client.read(&mut [0; 9])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_lost_tunnel_resets_its_clients() {
    let mut pair = pair(256 << 10, 8).await;
    let mut relays = JoinSet::new();
    let (mut client, _backend) = relayed(&pair, &mut relays).await;
    pair.agent.abort();
    let read = timeout(DEADLINE, client.read(&mut [0; 9])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    while pair.ends.join_next().await.is_some() {}
    assert!(
        matches!(
            pair.tunnel.open(to_port(9), None).await,
            Err(OpenError::Tunnel(_))
        ),
        "and another tunnel may be tried"
    );
}

#[tokio::test]
async fn refusals_keep_their_code() {
    let pair = pair(1 << 20, 8).await;
    let refused = |opened: Result<Stream, OpenError>| match opened {
        Err(OpenError::Refused(failure)) => failure.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(pair.tunnel.open(to_port(2), None).await),
        DialCode::Forbidden
    );
    let (listener, port) = backend().await;
    drop(listener);
    assert_eq!(
        refused(pair.tunnel.open(to_port(port), None).await),
        DialCode::Refused
    );
}

#[tokio::test]
async fn streams_past_the_limit_are_refused_not_queued() {
    let pair = pair(1 << 20, 2).await;
    let mut relays = JoinSet::new();
    let _streams = [
        relayed(&pair, &mut relays).await,
        relayed(&pair, &mut relays).await,
    ];
    let (_listener, port) = backend().await;
    assert!(matches!(
        pair.tunnel.open(to_port(port), None).await,
        Err(OpenError::TooManyStreams(2))
    ));
}

#[tokio::test]
async fn a_thousand_dials_given_up_at_once_end_no_stream() {
    let pair = pair(1 << 20, 1024).await;
    let mut relays = JoinSet::new();
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    let dials: Vec<_> = (0..1000)
        .map(|_| Box::pin(pair.tunnel.open(to_port(1), None)))
        .collect();
    let given_up = timeout(
        Duration::from_millis(500),
        futures_util::future::join_all(dials),
    )
    .await;
    assert!(given_up.is_err());
    client.write_all(b"still here").await.unwrap();
    let mut received = [0; 10];
    timeout(DEADLINE, backend.read_exact(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&received, b"still here");
}

#[tokio::test]
async fn a_draining_agent_lets_its_streams_end() {
    let mut pair = pair(1 << 20, 8).await;
    let mut relays = JoinSet::new();
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    pair.drain.take().unwrap().send(()).unwrap();
    let refused = async {
        // Until the GOAWAY arrives, a stream may still open.
        loop {
            if let Err(error) = pair.tunnel.open(to_port(2), None).await
                && matches!(error, OpenError::Tunnel(_))
            {
                return;
            }
            yield_now().await;
        }
    };
    timeout(DEADLINE, refused).await.expect("no new streams");
    client.write_all(b"last words").await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = Vec::new();
    backend.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"last words");
    drop(backend);
    while let Some(end) = timeout(DEADLINE, pair.ends.join_next()).await.unwrap() {
        end.unwrap().unwrap();
    }
}

#[tokio::test]
async fn rubbish_instead_of_http2_is_an_error() {
    let (mut stranger, proxy_socket) = socket_pair().await;
    let (tunnel, driver) = proxy_end(proxy_socket).await;
    stranger.write_all(&[0xff; 100]).await.unwrap();
    let request = DescribeRequest::default();
    let (described, driven) = tokio::join!(tunnel.describe(&request), driver.run());
    assert!(described.is_err() && driven.is_err());
}
