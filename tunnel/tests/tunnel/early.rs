//! Tests of the bytes that a client sends before its backend has answered. The test writes the
//! proxy's end by hand where the real one never sends such bytes.

use std::future::poll_fn;

use bytes::{BufMut, Bytes, BytesMut};
use culvert_tunnel::EarlyClient;
use culvert_tunnel::proto::tunnel::{Frame, frame::Kind};
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use prost::Message;

use super::*;

/// More than the invalid frames that an agent may reset in a tunnel's life, together with all the
/// resets that it remembers.
const REFUSALS: usize = 45_000;

/// The proxy's end of a client's connection.
struct ProxySide {
    client: Socket,
    transferred: Transferred,
}

impl ProxySide {
    fn early(&self) -> EarlyClient<'_> {
        EarlyClient {
            client: &self.client,
            transferred: &self.transferred,
        }
    }
}

async fn client() -> (TcpStream, ProxySide) {
    let (client, proxy_side) = socket_pair().await;
    (
        client,
        ProxySide {
            client: proxy_side.into(),
            transferred: Transferred::default(),
        },
    )
}

#[tokio::test]
async fn what_a_client_says_first_goes_ahead_of_the_answer_and_of_all_else() {
    let pair = pair(256 << 10, 8).await;
    let (listener, port) = backend().await;
    let (mut client, proxy_side) = client().await;
    let early = proxy_side.early();
    let dialling = pair.backends.dialling.write().await;
    let mut opening = Box::pin(pair.tunnel.open(to_port(port), Some(early)));
    client.write_all(b"early ").await.unwrap();
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
    let mut stream = stream.unwrap();
    let mut backend = accepted.unwrap().0;
    // More than a window: the test needs the agent to release the window correctly.
    let late = "late ".repeat(100_000);
    let mut received = String::new();
    let sent = async {
        client.write_all(late.as_bytes()).await?;
        client.shutdown().await
    };
    let received = async {
        backend.read_to_string(&mut received).await?;
        drop(backend);
        Ok(received)
    };
    let relayed = async {
        stream
            .relay(early.client, early.transferred)
            .await
            .map_err(io::Error::other)
    };
    let all = async { tokio::try_join!(sent, received, relayed) };
    let ((), received, ()) = timeout(DEADLINE, all).await.expect("all arrives").unwrap();
    assert!(received == format!("early {late}"));
}

#[tokio::test]
async fn no_more_than_a_request_goes_ahead() {
    let pair = pair(256 << 10, 8).await;
    let (mut client, proxy_side) = client().await;
    let early = proxy_side.early();
    let dial = pair.tunnel.open(to_port(1), Some(early));
    let speaking = async {
        client.write_all(&vec![1; 64 << 10]).await.unwrap();
        std::future::pending::<()>().await
    };
    let hung = timeout(Duration::from_millis(500), async {
        tokio::select! { _ = dial => {}, () = speaking => {} }
    });
    hung.await.expect_err("the dial hangs");
    assert_eq!(proxy_side.transferred.into_tunnel.bytes(), 16 << 10);
}

#[tokio::test]
async fn a_client_that_has_spoken_hears_why_its_dial_was_refused() {
    let pair = pair(256 << 10, 8).await;
    let (mut client, proxy_side) = client().await;
    client.write_all(b"GET / HTTP/1.1").await.unwrap();
    let early = proxy_side.early();
    let refused = timeout(DEADLINE, pair.tunnel.open(to_port(2), Some(early)))
        .await
        .unwrap();
    assert!(
        matches!(refused, Err(OpenError::Refused(failure)) if failure.code == DialCode::Forbidden)
    );
}

#[tokio::test]
async fn a_client_that_fails_while_it_is_listened_to_opens_nothing() {
    let pair = pair(256 << 10, 8).await;
    let (client, proxy_side) = client().await;
    reset(client);
    let early = proxy_side.early();
    let opened = timeout(DEADLINE, pair.tunnel.open(to_port(1), Some(early)))
        .await
        .unwrap();
    assert!(matches!(opened, Err(OpenError::Client(_))), "{opened:?}");
    assert_eq!(pair.tunnel.streams(), 0);
}

/// An agent's end of a tunnel, and a raw HTTP/2 client at the other end.
pub(crate) struct ByHand {
    requests: SendRequest<Bytes>,
    ends: JoinSet<()>,
}

impl ByHand {
    async fn start() -> Self {
        Self::with_budget(Budget::new(64 << 20)).await
    }

    /// The budget is the budget of the agent's end.
    pub(crate) async fn with_budget(budget: Budget) -> Self {
        let (agent_socket, socket) = socket_pair().await;
        let mut ends = JoinSet::new();
        ends.spawn(async move {
            let io = ReadAhead::new(agent_socket);
            let socket_state = io.socket_state();
            let stream_window = 256 << 10;
            let max_streams = 8;
            let streams_in_life = 1 << 29;
            let describe = Default::default();
            let end = AgentTunnel {
                stream_window,
                max_streams,
                streams_in_life,
                budget,
                movable: MovableStreams::default(),
                describe,
            };
            let backends = Arc::<Loopback>::default();
            end.serve(
                io,
                socket_state,
                AgentTunnelState::default(),
                backends,
                std::future::pending(),
            )
            .await
            .ok();
        });
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        ends.spawn(async move { connection.await.unwrap() });
        Self { requests, ends }
    }

    /// Asks the agent to open a stream, and sends nothing else.
    pub(crate) async fn ask(&mut self) -> (ResponseFuture, SendStream<Bytes>) {
        self.call("Open").await
    }

    /// Calls a method of the agent, and sends nothing else.
    pub(crate) async fn call(&mut self, method: &str) -> (ResponseFuture, SendStream<Bytes>) {
        let request = format!("http://culvert/culvert.tunnel.v1.Agent/{method}");
        let request = http::Request::post(request)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        poll_fn(|context| self.requests.poll_ready(context))
            .await
            .unwrap();
        self.requests
            .send_request(request.body(()).unwrap(), false)
            .unwrap()
    }
}

/// A frame in gRPC's wire format.
pub(crate) fn message(kind: Kind) -> Bytes {
    let frame = Frame { kind: Some(kind) }.encode_to_vec();
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(frame.len().try_into().unwrap());
    message.extend_from_slice(&frame);
    message.freeze()
}

/// The window must be released once for each byte, also if data arrived in one piece with `open`.
#[tokio::test]
async fn however_open_and_data_are_cut_into_pieces_all_bytes_arrive() {
    let mut agent = ByHand::start().await;
    let (listener, port) = backend().await;
    let payload: Vec<u8> = (0..3_000_000_u32)
        .map(|index| (index / 7).to_le_bytes()[0])
        .collect();
    let data = payload
        .chunks(40_000)
        .flat_map(|piece| message(Kind::Data(piece.to_vec().into())));
    let mut wire: Bytes = message(Kind::Open(to_port(port)))
        .into_iter()
        .chain(data)
        .collect();
    let (_response, mut send) = agent.ask().await;
    let upload = async {
        send.send_data(wire.split_to(3), false).unwrap();
        while !wire.is_empty() {
            send.reserve_capacity(wire.len());
            let room = poll_fn(|context| send.poll_capacity(context))
                .await
                .unwrap()
                .unwrap();
            send.send_data(wire.split_to(room.min(wire.len())), false)
                .unwrap();
        }
        send.send_data(Bytes::new(), true).unwrap();
    };
    let receive = async {
        let mut received = Vec::new();
        listener
            .accept()
            .await
            .unwrap()
            .0
            .read_to_end(&mut received)
            .await
            .unwrap();
        received
    };
    let ((), received) = timeout(DEADLINE, async { tokio::join!(upload, receive) })
        .await
        .expect("all arrives");
    assert!(
        received == payload,
        "{} of {} bytes",
        received.len(),
        payload.len()
    );
}

/// Clients that send until they hear of a refusal are not errors of the proxy, of which an agent
/// allows a limited number in a tunnel's life.
#[tokio::test]
async fn a_tunnel_outlives_any_number_of_refusals_to_clients_that_speak_on() {
    let mut agent = ByHand::start().await;
    for number in 0..REFUSALS {
        let (response, mut send) = agent.ask().await;
        send.send_data(message(Kind::Open(to_port(2))), false)
            .unwrap();
        let refused = timeout(DEADLINE, response).await.unwrap();
        let mut body = refused
            .unwrap_or_else(|error| panic!("refusal {number}: {error}"))
            .into_body();
        while body.data().await.is_some() {}
        send.send_data(message(Kind::Data("more".into())), true)
            .unwrap();
    }
    assert!(agent.ends.try_join_next().is_none(), "both ends go on");
}
