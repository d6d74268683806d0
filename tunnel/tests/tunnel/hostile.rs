//! Hand-written ends of a tunnel that try to make the other end hold more memory than it counts.

use std::future::poll_fn;

use bytes::{BufMut, Bytes, BytesMut};
use culvert_tunnel::proto::tunnel::{Moved, Opened, Resume, frame::Kind};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use prost::Message;
use socket2::SockRef;

use super::early::{ByHand, message};
use super::*;

/// The HTTP/2 window of a stream: a quarter more than the bytes in flight.
const WINDOW: usize = 320 << 10;
/// Payload bytes in a message. The rest of its frame is a field that the receiver does not know.
const PAYLOAD: usize = 4 << 10;
/// If nothing could be sent for this long, the other end accepts no more.
const STILL: Duration = Duration::from_millis(500);

/// A message that fills a frame and is mostly framing: field 9, then data.
fn mostly_framing() -> Bytes {
    let mut fields = BytesMut::new();
    let unknown = vec![0; 60 << 10];
    fields.put_u8((9 << 3) | 2);
    prost::encoding::encode_varint(unknown.len() as u64, &mut fields);
    fields.extend_from_slice(&unknown);
    fields.put_u8((3 << 3) | 2);
    prost::encoding::encode_varint(PAYLOAD as u64, &mut fields);
    fields.extend_from_slice(&[7; PAYLOAD]);
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(fields.len().try_into().unwrap());
    message.extend_from_slice(&fields);
    message.freeze()
}

/// Sends such messages until the other end accepts no more. Returns how many bytes and how much
/// payload it accepted.
async fn pour(send: &mut SendStream<Bytes>) -> (usize, usize) {
    let mut bytes = 0;
    let mut messages = 0;
    loop {
        let mut message = mostly_framing();
        while !message.is_empty() {
            send.reserve_capacity(message.len());
            let Ok(room) = timeout(STILL, poll_fn(|context| send.poll_capacity(context))).await
            else {
                return (bytes, messages * PAYLOAD);
            };
            let room = room.unwrap().unwrap().min(message.len());
            bytes += room;
            send.send_data(message.split_to(room), false).unwrap();
        }
        messages += 1;
        assert!(bytes < 256 << 20, "it takes them without end");
    }
}

/// The released window covers the payload that the socket accepted, and its framing, but nothing
/// that the socket did not accept.
fn check(budget: &Budget, (bytes, payload): (usize, usize)) {
    let held = budget.stalled_bytes();
    let taken = payload.saturating_sub(held);
    let message = mostly_framing().len();
    let most = taken.div_ceil(PAYLOAD) * message + WINDOW + 2 * message;
    assert!(held > 0, "the socket took all of {payload}");
    assert!(
        bytes <= most,
        "{bytes} were taken, with {held} of {payload} held: {most} at most"
    );
}

#[tokio::test]
async fn framing_for_a_stalled_backend_is_not_given_back_to_the_proxy() {
    let budget = Budget::new(64 << 20);
    let mut agent = ByHand::with_budget(budget.clone()).await;
    let (listener, port) = backend().await;
    SockRef::from(&listener)
        .set_recv_buffer_size(4 << 10)
        .unwrap();
    let (response, mut send) = agent.ask().await;
    send.send_data(message(Kind::Open(to_port(port))), false)
        .unwrap();
    let (response, accepted) = tokio::join!(response, listener.accept());
    let poured = pour(&mut send).await;
    check(&budget, poured);
    drop((response, accepted));
}

/// A hand-written agent for one call. The test chooses its answers.
struct AgentByHand {
    tunnel: Tunnel,
    calls: tokio::sync::mpsc::Receiver<SendResponse<Bytes>>,
    reads_no_more: Arc<Notify>,
    _ends: JoinSet<()>,
}

impl AgentByHand {
    async fn start(budget: Budget, window: u32) -> Self {
        Self::start_as(FarEnd::Agent, budget, window).await
    }

    async fn start_as(far_end: FarEnd, budget: Budget, window: u32) -> Self {
        let (agent_socket, proxy_socket) = socket_pair().await;
        let (calls_tx, calls) = tokio::sync::mpsc::channel(1024);
        let mut ends = JoinSet::new();
        let reads_no_more = Arc::<Notify>::default();
        let stop = reads_no_more.clone();
        ends.spawn(async move {
            let mut server = h2::server::Builder::new();
            server
                .initial_window_size(window)
                .initial_connection_window_size((1 << 31) - 1);
            let mut connection = server.handshake::<_, Bytes>(agent_socket).await.unwrap();
            let mut unread = Vec::new();
            loop {
                tokio::select! {
                    Some(Ok((request, respond))) = connection.accept() => {
                        unread.push(request);
                        calls_tx.send(respond).await.unwrap();
                    }
                    () = stop.notified() => std::future::pending().await,
                }
            }
        });
        let io = ReadAhead::new(proxy_socket);
        let socket_state = io.socket_state();
        let settings = ProxyTunnel {
            far_end,
            stream_window: 256 << 10,
            max_streams: 1024,
            streams_in_life: 1 << 29,
            budget,
        };
        let (tunnel, driver) = settings.establish(io, socket_state).await.unwrap();
        ends.spawn(async move {
            driver.run().await.ok();
        });
        Self {
            tunnel,
            calls,
            reads_no_more,
            _ends: ends,
        }
    }

    /// Opens a stream of the proxy; returns it and the agent's half of it.
    async fn open(&mut self) -> (Stream, SendStream<Bytes>) {
        let answer = async {
            let mut respond = self.calls.recv().await.unwrap();
            let mut send = respond
                .send_response(http::Response::new(()), false)
                .unwrap();
            let opened = Opened {
                code: DialCode::Ok.into(),
                message: String::new(),
            };
            send.send_data(message(Kind::Opened(opened)), false)
                .unwrap();
            send
        };
        let (stream, send) = tokio::join!(self.tunnel.open(to_port(9), None), answer);
        (stream.unwrap(), send)
    }

    /// Says that the agent moves streams.
    async fn describe(&mut self) {
        let answer = async {
            let mut respond = self.calls.recv().await.unwrap();
            let mut send = respond
                .send_response(http::Response::new(()), false)
                .unwrap();
            let described = DescribeResponse {
                moves: true,
                ..DescribeResponse::default()
            };
            let described = described.encode_to_vec();
            let mut message = BytesMut::new();
            message.put_u8(0);
            message.put_u32(described.len().try_into().unwrap());
            message.extend_from_slice(&described);
            send.send_data(message.freeze(), true).unwrap();
        };
        let request = DescribeRequest::default();
        let (described, ()) = tokio::join!(self.tunnel.describe(&request), answer);
        described.unwrap();
    }
}

#[tokio::test]
async fn an_agent_that_says_moved_where_nothing_moves_breaks_the_protocol() {
    for moves in [false, true] {
        let mut agent = AgentByHand::start(Budget::new(64 << 20), 1 << 20).await;
        if moves {
            agent.describe().await;
        }
        let (stream, mut send) = agent.open().await;
        let (_client, proxy_side) = UnixStream::pair().unwrap();
        send.send_data(message(Kind::Moved(Moved {})), true)
            .unwrap();
        let ended = timeout(DEADLINE, relay(stream, proxy_side)).await.unwrap();
        assert_eq!(ended.unwrap_err().reason(), "protocol_error", "{moves}");
    }
}

#[tokio::test]
async fn a_peer_that_says_moved_where_nothing_moves_breaks_the_protocol() {
    let budget = Budget::new(64 << 20);
    let mut peer = AgentByHand::start_as(FarEnd::Proxy, budget, 1 << 20).await;
    let (stream, mut send) = peer.open().await;
    let (_client, proxy_side) = UnixStream::pair().unwrap();
    send.send_data(message(Kind::Moved(Moved {})), true)
        .unwrap();
    let ended = timeout(DEADLINE, relay(stream, proxy_side)).await.unwrap();
    assert_eq!(ended.unwrap_err().reason(), "protocol_error");
}

/// The runtime of the test has one thread, as a worker has: a task that does not wait stops all of
/// it.
#[tokio::test]
async fn an_agent_that_says_moved_to_a_stalled_client_where_nothing_moves_stops_no_worker() {
    let mut agent = AgentByHand::start(Budget::new(64 << 20), 4 << 20).await;
    let (stream, mut send) = agent.open().await;
    let (mut client, proxy_side) = UnixStream::pair().unwrap();
    let mut relays = JoinSet::new();
    relays.spawn(relay(stream, proxy_side));
    // More than the socket takes while its client does not read.
    let data = message(Kind::Data(vec![7; 1 << 20].into()));
    send.send_data(data, false).unwrap();
    send.send_data(message(Kind::Moved(Moved {})), true)
        .unwrap();
    let mut read = Vec::new();
    // An error follows what was sent: the reset.
    let all = timeout(DEADLINE, client.read_to_end(&mut read)).await;
    drop(all.expect("the client gets what was sent"));
    let ended = timeout(DEADLINE, relays.join_next()).await.unwrap();
    let ended = ended.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().reason(), "protocol_error");
}

#[tokio::test]
async fn what_an_agent_sends_by_a_new_half_after_it_ended_the_old_one_counts_in_the_budget() {
    let budget = Budget::new(300 << 10);
    let mut unfinished = Unfinished::start(budget.clone()).await;
    // More than the socket takes, so that it waits for its client, and less than the budget.
    let data = message(Kind::Data(vec![7; 340 << 10].into()));
    unfinished.old.send_data(data, true).unwrap();
    let data = message(Kind::Data(vec![7; 500 << 10].into()));
    unfinished.new.send_data(data, false).unwrap();
    let ended = timeout(DEADLINE, unfinished.relays.join_next()).await;
    let ended = ended.expect("it has to go").unwrap().unwrap();
    assert_eq!(ended.unwrap_err().reason(), "buffer_budget");
}

/// A stream that the proxy moves. The agent has agreed, and does not end the old half.
struct Unfinished {
    _agent: AgentByHand,
    old: SendStream<Bytes>,
    new: SendStream<Bytes>,
    relays: JoinSet<Result<(), culvert_tunnel::RelayError>>,
    _client: UnixStream,
}

impl Unfinished {
    async fn start(budget: Budget) -> Self {
        let mut agent = AgentByHand::start(budget, 1 << 20).await;
        agent.describe().await;
        let (stream, old) = agent.open().await;
        let movable = stream.movable().unwrap();
        let (client, proxy_side) = UnixStream::pair().unwrap();
        let mut relays = JoinSet::new();
        relays.spawn(relay(stream, proxy_side));
        let answer = async {
            let mut respond = agent.calls.recv().await.unwrap();
            respond
                .send_response(http::Response::new(()), false)
                .unwrap()
        };
        let (moved, new) = tokio::join!(agent.tunnel.resume(&movable), answer);
        moved.unwrap();
        Self {
            _agent: agent,
            old,
            new,
            relays,
            _client: client,
        }
    }
}

#[tokio::test]
async fn what_an_agent_sends_by_a_new_half_before_it_ends_the_old_one_is_bounded() {
    let budget = Budget::new(64 << 20);
    let mut unfinished = Unfinished::start(budget.clone()).await;
    let poured = pour(&mut unfinished.new).await;
    check(&budget, poured);
}

#[tokio::test]
async fn what_an_agent_sends_by_a_new_half_before_it_ends_the_old_one_counts_in_the_budget() {
    let budget = Budget::new(128 << 10);
    let mut unfinished = Unfinished::start(budget.clone()).await;
    let data = message(Kind::Data(vec![7; 200 << 10].into()));
    unfinished.new.send_data(data, false).unwrap();
    let ended = timeout(DEADLINE, unfinished.relays.join_next()).await;
    let ended = ended.expect("it has to go").unwrap().unwrap();
    assert_eq!(ended.unwrap_err().reason(), "buffer_budget");
    assert_eq!(budget.stalled_bytes(), 0);
}

/// The status of gRPC in response headers; 0 if there is none.
async fn status(response: h2::client::ResponseFuture) -> u8 {
    let response = timeout(DEADLINE, response).await.unwrap().unwrap();
    match response.headers().get("grpc-status") {
        Some(status) => status.to_str().unwrap().parse().unwrap(),
        None => 0,
    }
}

fn resume(key: &'static [u8]) -> Bytes {
    message(Kind::Resume(Resume { key: key.into() }))
}

/// Calls for streams that there are not.
const GUESSES: usize = 5_000;
const KEY: &[u8] = b"sixteen bytes...";

#[tokio::test]
async fn a_proxy_that_guesses_keys_moves_nothing_and_its_tunnel_goes_on() {
    let mut agent = ByHand::with_budget(Budget::new(64 << 20)).await;
    for number in 0..GUESSES {
        let (response, mut send) = agent.call("Resume").await;
        let key = [b"", &KEY[..9], b"sixteen bytes.. "][number % 3];
        send.send_data(resume(key), true).unwrap();
        assert_eq!(status(response).await, 5, "{number}");
    }
    let (_backend, port) = backend().await;
    let (response, mut send) = agent.ask().await;
    send.send_data(message(Kind::Open(to_port(port))), false)
        .unwrap();
    assert_eq!(status(response).await, 0);
}

#[tokio::test]
async fn a_stream_moves_once_at_a_time_and_a_move_that_is_never_finished_hurts_no_other() {
    let mut agent = ByHand::with_budget(Budget::new(64 << 20)).await;
    let (listener, port) = backend().await;
    let open = Open {
        key: KEY.into(),
        ..to_port(port)
    };
    let (response, mut old) = agent.ask().await;
    old.send_data(message(Kind::Open(open)), false).unwrap();
    assert_eq!(status(response).await, 0);
    let mut backend = listener.accept().await.unwrap().0;
    let (first, mut new) = agent.call("Resume").await;
    new.send_data(resume(KEY), false).unwrap();
    let first = timeout(DEADLINE, first).await.unwrap().unwrap();
    assert!(first.headers().get("grpc-status").is_none());
    for _ in 0..100 {
        let (again, mut send) = agent.call("Resume").await;
        send.send_data(resume(KEY), true).unwrap();
        assert_eq!(status(again).await, 9);
    }
    // The proxy has not moved: what it sends by the old half arrives, and by the new one it waits.
    new.send_data(message(Kind::Data("new".into())), false)
        .unwrap();
    old.send_data(message(Kind::Data("old".into())), false)
        .unwrap();
    let mut read = [0; 3];
    timeout(DEADLINE, backend.read_exact(&mut read))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&read, b"old");
    old.send_data(message(Kind::Moved(Moved {})), true).unwrap();
    timeout(DEADLINE, backend.read_exact(&mut read))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&read, b"new");
}

#[tokio::test]
async fn framing_for_a_stalled_client_is_not_given_back_to_the_agent() {
    let budget = Budget::new(64 << 20);
    let mut agent = AgentByHand::start(budget.clone(), 1 << 20).await;
    let (stream, mut send) = agent.open().await;
    let (_client, proxy_side) = UnixStream::pair().unwrap();
    let mut relays = JoinSet::new();
    relays.spawn(relay(stream, proxy_side));
    let poured = pour(&mut send).await;
    check(&budget, poured);
}

#[tokio::test]
async fn what_comes_while_a_backend_is_dialled_counts_in_the_budget() {
    let budget = Budget::new(256 << 10);
    let mut agent = ByHand::with_budget(budget.clone()).await;
    let (response, mut send) = agent.ask().await;
    send.send_data(message(Kind::Open(to_port(1))), false)
        .unwrap();
    let data = message(Kind::Data(vec![7; 200 << 10].into()));
    send.send_data(data.clone(), false).unwrap();
    let counted = async {
        while budget.stalled_bytes() < 200 << 10 {
            yield_now().await;
        }
    };
    timeout(DEADLINE, counted).await.expect("it counts");
    send.send_data(data, false).unwrap();
    let ended = timeout(DEADLINE, response).await.expect("it has to go");
    assert!(ended.is_err() && budget.stalled_bytes() == 0, "{ended:?}");
}

/// So many streams that their queues would hold four times what a tunnel may have unsent.
const UPLOADS: usize = 256;
const TUNNEL_MAX: u64 = 16 << 20;
/// Limit of what the kernel may keep in the tunnel's own connection.
const SOCKETS: u64 = 16 << 20;

#[tokio::test]
async fn uploads_to_an_agent_that_reads_nothing_wait_at_their_clients_and_not_in_memory() {
    let mut agent = AgentByHand::start(Budget::new(1 << 30), (1 << 31) - 1).await;
    let total = Total::default();
    let mut relays = JoinSet::new();
    let mut clients = JoinSet::new();
    let mut streams = Vec::new();
    for _ in 0..UPLOADS {
        streams.push(agent.open().await);
    }
    agent.reads_no_more.notify_one();
    let mut answers = Vec::new();
    for (mut stream, answer) in streams {
        answers.push(answer);
        let (mut client, proxy_side) = UnixStream::pair().unwrap();
        let transferred = total.start_stream();
        relays.spawn(async move { stream.relay(&proxy_side.into(), &transferred).await });
        clients.spawn(async move { client.write_all(&[7; 1 << 20]).await });
    }
    let mut before = None;
    while before.replace(total.into_tunnel()) != Some(total.into_tunnel())
        || total.into_tunnel() == 0
    {
        timeout(STILL, relays.join_next())
            .await
            .expect_err("all of them wait");
    }
    let taken = total.into_tunnel();
    assert!(
        (TUNNEL_MAX / 2..TUNNEL_MAX + SOCKETS).contains(&taken),
        "{taken} bytes were taken from the clients"
    );
}

/// How many reset streams a proxy remembers: the first ones. Empty frames for these end a tunnel
/// for another reason.
const REMEMBERED: u32 = 8192;
/// More streams than the proxy remembers, together with the resets that it may send in a tunnel's
/// life for late frames.
const CARRIED: u32 = 25_000;

/// The agent ends each call with an error, and then sends one late frame on every stream.
#[tokio::test]
async fn an_agent_that_speaks_on_every_stream_there_ever_was_loses_its_tunnel() {
    let (mut agent, proxy_socket) = socket_pair().await;
    let io = ReadAhead::new(proxy_socket);
    let socket_state = io.socket_state();
    let budget = Budget::new(1 << 20);
    let settings = ProxyTunnel {
        far_end: FarEnd::Agent,
        stream_window: 256 << 10,
        max_streams: 64,
        streams_in_life: 1 << 29,
        budget,
    };
    let (tunnel, driver) = settings.establish(io, socket_state).await.unwrap();
    let mut ends = JoinSet::new();
    ends.spawn(driver.run());
    agent.read_exact(&mut [0; 24]).await.unwrap();
    agent.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    let carried = async {
        for _ in 0..CARRIED {
            assert!(matches!(
                tunnel.open(to_port(9), None).await,
                Err(OpenError::Answer(_))
            ));
        }
    };
    let answering = async {
        loop {
            let mut head = [0; 9];
            agent.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            agent.read_exact(&mut vec![0; length]).await.unwrap();
            match head[3] {
                // HEADERS with only `:status` 500, by its index in HPACK's static table.
                1 => agent
                    .write_all(&frame(
                        1,
                        5,
                        u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
                        &[0x8e],
                    ))
                    .await
                    .unwrap(),
                // SETTINGS, except an acknowledgement of this end's.
                4 if head[4] == 0 => agent.write_all(&frame(4, 1, 0, &[])).await.unwrap(),
                _ => {}
            }
        }
    };
    timeout(DEADLINE * 6, async {
        tokio::select! { () = carried => {}, () = answering => {} }
    })
    .await
    .expect("all are carried");
    assert!(ends.try_join_next().is_none(), "the tunnel is up");
    let late: Vec<u8> = (REMEMBERED..CARRIED)
        .flat_map(|number| frame(0, 0, 2 * number + 1, &[]))
        .collect();
    let flooded = agent.write_all(&late).await;
    let ended = timeout(DEADLINE, ends.join_next())
        .await
        .expect("the tunnel ends")
        .unwrap()
        .unwrap();
    let TunnelError::Http2(error) = ended.unwrap_err() else {
        panic!("{flooded:?}")
    };
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM), "{error:?}");
}

/// A frame of HTTP/2: length, type, flags, stream, payload.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
