//! Tests of streams that go through another proxy: each test has a tunnel between two proxies, and
//! the second one forwards into the tunnel of the agent.

use culvert_tunnel::EarlyClient;

use super::*;

/// The second proxy. It has one tunnel, that of the node.
pub(super) struct SecondProxy(pub(super) Tunnel);

impl Backends for SecondProxy {
    async fn dial(&self, open: &Open) -> Result<Backend, DialFailure> {
        Ok(Backend::Agent(Box::new(ThroughTunnel {
            tunnel: self.0.clone(),
            open: open.clone(),
        })))
    }

    fn stream_ended(&self, _: &Open, _: &StreamEnd) {}
}

/// The pair as the first proxy sees it: its tunnel is the one to the second proxy.
async fn through_second_proxy(mut pair: Pair, stream_window: u32) -> Pair {
    let (second_socket, first_socket) = socket_pair().await;
    let backends = Arc::new(SecondProxy(pair.tunnel.clone()));
    pair.ends.spawn(async move {
        let io = ReadAhead::new(second_socket);
        let socket_state = io.socket_state();
        let end = AgentTunnel {
            stream_window,
            max_streams: 64,
            streams_in_life: 1 << 29,
            budget: Budget::new(64 << 20),
            movable: MovableStreams::default(),
            describe: DescribeResponse::default(),
        };
        let never = std::future::pending();
        end.serve(
            io,
            socket_state,
            AgentTunnelState::default(),
            backends,
            never,
        )
        .await
    });
    let io = ReadAhead::new(first_socket);
    let socket_state = io.socket_state();
    let settings = ProxyTunnel {
        far_end: FarEnd::Proxy,
        stream_window,
        max_streams: 64,
        streams_in_life: 1 << 29,
        budget: Budget::new(64 << 20),
    };
    let (tunnel, driver) = settings.establish(io, socket_state).await.unwrap();
    pair.ends.spawn(driver.run());
    pair.tunnel = tunnel;
    pair
}

async fn two_hops() -> Pair {
    through_second_proxy(pair(256 << 10, 64).await, 256 << 10).await
}

#[tokio::test]
async fn each_direction_closes_by_itself_and_all_bytes_arrive() {
    let pair = two_hops().await;
    let mut relays = JoinSet::new();
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    let request: Vec<u8> = (0..3_000_000_u32)
        .map(|index| (index / 7).to_le_bytes()[0])
        .collect();
    let upload = async {
        client.write_all(&request).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let serve = async {
        let mut received = Vec::new();
        backend.read_to_end(&mut received).await.unwrap();
        backend.write_all(&received).await.unwrap();
        drop(backend);
        received
    };
    let (answer, received) = timeout(DEADLINE, async { tokio::join!(upload, serve) })
        .await
        .unwrap();
    assert!(received == request && answer == request);
    relays.join_next().await.unwrap().unwrap().unwrap();
    pair.backends.end.notified().await;
    assert_eq!(*pair.backends.ended.lock(), ["finished"]);
    assert_eq!(pair.tunnel.streams(), 0);
}

#[tokio::test]
async fn the_agents_refusal_arrives_as_the_agent_wrote_it() {
    let pair = two_hops().await;
    let error = pair.tunnel.open(to_port(2), None).await.unwrap_err();
    let OpenError::Refused(failure) = error else {
        panic!("{error:?}")
    };
    assert_eq!(failure.code, DialCode::Forbidden);
    assert_eq!(failure.message, "port 2 is not allowed");
}

#[tokio::test]
async fn stalled_readers_leave_their_neighbour_moving() {
    let pair = two_hops().await;
    let mut relays = JoinSet::new();
    let mut stalled = Vec::new();
    for number in 0..20 {
        let (client, backend) = relayed(&pair, &mut relays).await;
        let full = if number % 2 == 0 { &backend } else { &client };
        fill(full).await;
        stalled.push((client, backend));
    }
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    bytes_arrive(&mut backend, &mut client).await;
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_dial() {
    let pair = two_hops().await;
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
    let pair = two_hops().await;
    let mut relays = JoinSet::new();
    let (client, mut backend) = relayed(&pair, &mut relays).await;
    fill(&client).await;
    reset(client);
    let mut sink = Vec::new();
    let ended = timeout(DEADLINE, backend.read_to_end(&mut sink)).await;
    assert_eq!(
        ended.expect("it notices").unwrap_err().kind(),
        io::ErrorKind::ConnectionReset
    );
}

#[tokio::test]
async fn a_backend_that_dies_resets_its_client() {
    let pair = two_hops().await;
    let mut relays = JoinSet::new();
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    backend.write_all(&[3; 1000]).await.unwrap();
    let mut received = [0; 1000];
    client.read_exact(&mut received).await.unwrap();
    reset(backend);
    let read = timeout(DEADLINE, client.read(&mut received)).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let relayed = relays.join_next().await.unwrap().unwrap();
    assert_eq!(relayed.unwrap_err().reason(), "peer_reset");
}

#[tokio::test]
async fn an_agent_that_is_gone_is_offline_and_takes_no_byte_of_the_client() {
    let pair = pair(256 << 10, 64).await;
    let to_agent = pair.tunnel.clone();
    let pair = through_second_proxy(pair, 256 << 10).await;
    pair.agent.abort();
    let gone = async {
        while !matches!(
            to_agent.open(to_port(2), None).await,
            Err(OpenError::Tunnel(_))
        ) {}
    };
    timeout(DEADLINE, gone).await.expect("the tunnel ends");
    let (mut client, proxy_side) = socket_pair().await;
    client.write_all(b"early").await.unwrap();
    let client = proxy_side.into();
    let transferred = Transferred::default();
    let early = EarlyClient {
        client: &client,
        transferred: &transferred,
    };
    let refused = timeout(DEADLINE, pair.tunnel.open(to_port(2), Some(early))).await;
    let error = refused.expect("it is answered").unwrap_err();
    assert!(
        matches!(&error, OpenError::Refused(failure) if failure.code == DialCode::Offline),
        "{error:?}"
    );
    assert!(!early.has_gone(), "the stream can be opened elsewhere");
}

#[tokio::test]
async fn what_a_client_says_first_goes_ahead_of_the_answer() {
    let pair = two_hops().await;
    let (listener, port) = backend().await;
    let (mut client, proxy_side) = socket_pair().await;
    let proxy_side = proxy_side.into();
    let transferred = Transferred::default();
    let early = EarlyClient {
        client: &proxy_side,
        transferred: &transferred,
    };
    let dialling = pair.backends.dialling.write().await;
    let mut opening = Box::pin(pair.tunnel.open(to_port(port), Some(early)));
    client.write_all(b"early").await.unwrap();
    let gone = async {
        while !early.has_gone() {
            tokio::select! {
                opened = &mut opening => panic!("{opened:?}: nothing has been dialled"),
                () = yield_now() => {}
            }
        }
    };
    timeout(DEADLINE, gone).await.expect("it goes");
    drop(dialling);
    let (stream, accepted) = tokio::join!(opening, listener.accept());
    let _stream = stream.unwrap();
    let mut backend = accepted.unwrap().0;
    let mut received = [0; 5];
    timeout(DEADLINE, backend.read_exact(&mut received))
        .await
        .expect("it arrives")
        .unwrap();
    assert_eq!(&received, b"early");
}
