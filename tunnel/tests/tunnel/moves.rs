//! Streams that move from one tunnel of an agent to another.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use culvert_tunnel::{MovableStream, MoveError, RelayError, TunnelSocket};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use super::peers::SecondProxy;
use super::*;

/// Bytes that each direction of a stream carries.
const BYTES: usize = 300_000;
/// How often a stream moves at most.
const MOVES: u32 = 4;
/// A link's bytes between two cuts that are tried. They fall at and within frames.
const CUTS_APART: usize = 6_007;

/// A link that is cut after so many bytes, both ways together.
#[derive(Clone)]
struct Link(Arc<AtomicUsize>);

struct LinkEnd {
    io: DuplexStream,
    link: Link,
}

impl Link {
    fn after(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn ends(&self) -> [LinkEnd; 2] {
        let (near, far) = tokio::io::duplex(16 << 10);
        [near, far].map(|io| LinkEnd {
            io,
            link: self.clone(),
        })
    }
}

fn cut<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

impl AsyncRead for LinkEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.link.left() == 0 {
            return cut();
        }
        Pin::new(&mut self.io).poll_read(context, out)
    }
}

impl AsyncWrite for LinkEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let left = self.link.left();
        if left == 0 {
            return cut();
        }
        let most = bytes.len().min(left);
        let written = Pin::new(&mut self.io).poll_write(context, &bytes[..most]);
        if let Poll::Ready(Ok(count)) = written {
            self.link.0.fetch_sub(count, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

impl TunnelSocket for LinkEnd {
    fn unsent(&self) -> Option<u32> {
        None
    }

    fn acknowledged(&self) -> Option<u64> {
        None
    }

    fn limit_unsent(&self, _bytes: u32) {}

    fn poll_room(&self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

type Ends = JoinSet<Result<(), TunnelError>>;

/// Two ways to an agent, at a proxy. A stream is opened in the first.
struct Two {
    tunnels: [Tunnel; 2],
    backends: Arc<Loopback>,
    states: [AgentTunnelState; 2],
    ends: [Ends; 2],
    /// How often a stream can move.
    moves: u32,
    is_by_peer: bool,
}

/// The tunnel over a link, with the `agent` at its far end, and both ends. `None`: the link was cut
/// before it was set up.
async fn connect<B: Backends>(
    link: &Link,
    far_end: FarEnd,
    agent: AgentTunnel,
    state: AgentTunnelState,
    backends: Arc<B>,
) -> Option<(Tunnel, Ends)> {
    let [near, far] = link.ends();
    let mut ends = JoinSet::new();
    let settings = ProxyTunnel {
        far_end,
        stream_window: agent.stream_window,
        max_streams: 8,
        streams_in_life: 1 << 29,
        budget: Budget::new(64 << 20),
    };
    ends.spawn(async move {
        let io = ReadAhead::new(far);
        let socket_state = io.socket_state();
        let drain = std::future::pending();
        agent.serve(io, socket_state, state, backends, drain).await
    });
    let io = ReadAhead::new(near);
    let socket_state = io.socket_state();
    let (tunnel, driver) = settings.establish(io, socket_state).await.ok()?;
    ends.spawn(driver.run());
    tunnel.describe(&DescribeRequest::default()).await.ok()?;
    Some((tunnel, ends))
}

fn far_end(stream_window: u32, movable: MovableStreams, moves: bool) -> AgentTunnel {
    AgentTunnel {
        stream_window,
        max_streams: 8,
        streams_in_life: 1 << 29,
        budget: Budget::new(64 << 20),
        movable,
        describe: DescribeResponse {
            moves,
            ..DescribeResponse::default()
        },
    }
}

/// Two tunnels over these links.
async fn two(links: &[Link], window: u32) -> Option<Two> {
    let backends = Arc::new(Loopback::default());
    let movable = MovableStreams::default();
    let mut tunnels = Vec::new();
    let mut states = Vec::new();
    let mut all_ends = Vec::new();
    for link in links {
        let state = AgentTunnelState::default();
        let agent = far_end(window, movable.clone(), true);
        let connected = connect(link, FarEnd::Agent, agent, state.clone(), backends.clone());
        let (tunnel, ends) = connected.await?;
        tunnels.push(tunnel);
        states.push(state);
        all_ends.push(ends);
    }
    Some(Two {
        tunnels: tunnels.try_into().ok()?,
        backends,
        states: states.try_into().ok()?,
        ends: all_ends.try_into().ok()?,
        moves: MOVES,
        is_by_peer: false,
    })
}

/// A way through another proxy, over the first link to it and over the second to the agent, and a
/// tunnel over the third.
async fn by_peer(links: &[Link], window: u32) -> Option<Two> {
    let Two {
        tunnels: [of_peer, own],
        backends,
        states,
        ends: [mut through_peer, direct],
        ..
    } = two(&links[1..], window).await?;
    let peer = far_end(window, MovableStreams::default(), false);
    let state = AgentTunnelState::default();
    let peer_backends = Arc::new(SecondProxy(of_peer));
    let linked = connect(&links[0], FarEnd::Proxy, peer, state, peer_backends);
    let (link, mut ends) = linked.await?;
    through_peer.spawn(async move {
        match ends.join_next().await {
            Some(ended) => ended.expect("no panic"),
            None => Ok(()),
        }
    });
    Some(Two {
        tunnels: [link, own],
        backends,
        states,
        ends: [through_peer, direct],
        moves: 1,
        is_by_peer: true,
    })
}

async fn whole() -> Two {
    let links = [Link::after(usize::MAX), Link::after(usize::MAX)];
    two(&links, 256 << 10).await.unwrap()
}

/// A client and a backend whose connection is relayed in the first tunnel.
struct Relayed {
    client: TcpStream,
    backend: TcpStream,
    movable: MovableStream,
    relay: tokio::task::JoinHandle<Result<(), RelayError>>,
}

#[expect(clippy::disallowed_methods, reason = "the test owns the task")]
async fn start(two: &Two) -> Option<Relayed> {
    let (listener, port) = backend().await;
    let opened = two.tunnels[0].open(to_port(port), None);
    let stream = timeout(DEADLINE, opened).await.unwrap().ok()?;
    let backend = listener.accept().await.unwrap().0;
    let (client, proxy_side) = socket_pair().await;
    Some(Relayed {
        client,
        backend,
        movable: stream.movable().unwrap(),
        relay: tokio::spawn(relay(stream, proxy_side)),
    })
}

fn bytes(seed: u32) -> Vec<u8> {
    let words = 0..u32::try_from(BYTES / 4).unwrap();
    words
        .flat_map(|word| word.wrapping_mul(2_654_435_761 ^ seed).to_le_bytes())
        .collect()
}

/// Reads to the end; the result is what came, and whether it ended in order.
async fn read_all(socket: &mut (impl AsyncRead + Unpin)) -> (Vec<u8>, bool) {
    let mut read = Vec::new();
    let ended = timeout(DEADLINE, socket.read_to_end(&mut read)).await;
    (read, ended.expect("it ends").is_ok())
}

/// Sends both ways at once while the stream moves there and back. Checks that what arrives is what
/// was sent, from its begin, and all of it if it ended in order. Returns how often it moved, unless
/// it failed.
async fn move_there_and_back(two: &Two) -> Option<u32> {
    let relayed = start(two).await?;
    let Relayed {
        client,
        backend,
        movable,
        relay,
    } = relayed;
    let (mut client_reads, mut client_writes) = client.into_split();
    let (mut backend_reads, mut backend_writes) = backend.into_split();
    let up = bytes(1);
    let down = bytes(2);
    let send_up = async {
        client_writes.write_all(&up).await.ok();
        client_writes.shutdown().await.ok();
    };
    let send_down = async {
        backend_writes.write_all(&down).await.ok();
        backend_writes.shutdown().await.ok();
    };
    let moves = async {
        let mut to = 1;
        while movable.moves() < two.moves && !relay.is_finished() {
            // It may come too late, or find its tunnel cut.
            if two.tunnels[to].resume(&movable).await.is_ok() {
                to = 1 - to;
            }
            yield_now().await;
        }
    };
    let all = async {
        tokio::join!(
            send_up,
            send_down,
            moves,
            read_all(&mut backend_reads),
            read_all(&mut client_reads)
        )
    };
    let ((), (), (), (got_up, up_ended), (got_down, down_ended)) =
        timeout(DEADLINE, all).await.expect("all ends");
    for (got, sent, ended) in [(&got_up, &up, up_ended), (&got_down, &down, down_ended)] {
        assert!(
            sent.starts_with(got),
            "{} bytes are not what was sent",
            got.len()
        );
        assert!(!ended || got == sent, "it ended after {} bytes", got.len());
    }
    let finished = relay.await.unwrap().is_ok();
    // A client may have all of its answer before the peer has passed on its last bytes: what is lost
    // then is reset at the backend.
    assert!(!finished || down_ended && (up_ended || two.is_by_peer));
    finished.then(|| movable.moves())
}

#[tokio::test]
async fn a_stream_that_moves_there_and_back_loses_no_byte() {
    let two = whole().await;
    let mut moves = 0;
    for _ in 0..20 {
        moves += move_there_and_back(&two).await.unwrap();
    }
    assert!(moves > 20, "{moves} in 20 streams");
    assert_eq!(two.tunnels.each_ref().map(Tunnel::streams), [0, 0]);
    let left = async {
        while two.states.iter().any(|state| !state.streams().is_empty()) {
            yield_now().await;
        }
    };
    timeout(DEADLINE, left).await.expect("no stream is left");
    assert_eq!(*two.backends.ended.lock(), ["finished"; 20]);
}

/// Cuts each of so many links at many places. `open` sets up the tunnels over them.
async fn cut_everywhere(links: usize, open: impl AsyncFn(&[Link]) -> Option<Two>) {
    let whole: Vec<_> = (0..links).map(|_| Link::after(usize::MAX)).collect();
    let uncut = open(&whole).await.unwrap();
    assert!(move_there_and_back(&uncut).await > Some(0));
    let mut finished = 0;
    let mut failed = 0;
    for (cut, link) in whole.iter().enumerate() {
        let used = usize::MAX - link.left();
        for at in (0..used + used / 8).step_by(CUTS_APART) {
            let mut links: Vec<_> = whole.iter().map(|_| Link::after(usize::MAX)).collect();
            links[cut] = Link::after(at);
            let Some(two) = open(&links).await else {
                continue;
            };
            if move_there_and_back(&two).await.is_some() {
                finished += 1;
            } else {
                failed += 1;
            }
        }
    }
    assert!(finished > 0 && failed > 0, "{finished}, {failed}");
}

#[tokio::test]
async fn wherever_a_tunnel_is_cut_no_byte_is_lost_doubled_or_reordered_unseen() {
    cut_everywhere(2, async |links| two(links, 256 << 10).await).await;
}

#[tokio::test]
async fn the_same_holds_where_a_stream_by_way_of_a_peer_moves_to_a_tunnel_here() {
    cut_everywhere(3, async |links| by_peer(links, 256 << 10).await).await;
}

#[tokio::test]
async fn a_stream_by_way_of_a_peer_moves_to_a_tunnel_here_and_outlives_the_peer() {
    let links = [(); 3].map(|()| Link::after(usize::MAX));
    let mut two = by_peer(&links, 256 << 10).await.unwrap();
    for _ in 0..20 {
        assert_eq!(move_there_and_back(&two).await, Some(1));
    }
    let mut relayed = start(&two).await.unwrap();
    two.tunnels[1].resume(&relayed.movable).await.unwrap();
    exchange(&mut relayed).await;
    until_streams_are(&two, [0, 1]).await;
    two.ends[0].shutdown().await;
    exchange(&mut relayed).await;
    drop(relayed.client);
    let (read, ended) = read_all(&mut relayed.backend).await;
    assert!(read.is_empty() && ended);
}

#[tokio::test]
async fn a_stream_that_has_moved_outlives_its_first_tunnel_and_ends_with_its_last() {
    let mut two = whole().await;
    let mut relayed = start(&two).await.unwrap();
    two.tunnels[1].resume(&relayed.movable).await.unwrap();
    exchange(&mut relayed).await;
    until_streams_are(&two, [0, 1]).await;
    two.ends[0].shutdown().await;
    exchange(&mut relayed).await;
    two.ends[1].shutdown().await;
    let (read, ended) = read_all(&mut relayed.client).await;
    assert!(read.is_empty() && !ended);
    let failed = relayed.relay.await.unwrap().unwrap_err();
    assert_eq!(failed.reason(), "tunnel_lost");
}

/// A message there and back.
async fn exchange(relayed: &mut Relayed) {
    let Relayed {
        client, backend, ..
    } = relayed;
    let there_and_back = async {
        client.write_all(b"ping").await.unwrap();
        backend.read_exact(&mut [0; 4]).await.unwrap();
        backend.write_all(b"pong").await.unwrap();
        client.read_exact(&mut [0; 4]).await.unwrap();
    };
    timeout(DEADLINE, there_and_back).await.expect("it moves");
}

/// Waits until both ends count so many streams in each tunnel.
async fn until_streams_are(two: &Two, wanted: [u32; 2]) {
    let counted = || {
        let proxy = two.tunnels.each_ref().map(Tunnel::streams);
        let agent = two.states.each_ref().map(|state| state.streams().len());
        proxy == wanted && agent == wanted.map(|count| count as usize)
    };
    let until = async {
        while !counted() {
            yield_now().await;
        }
    };
    timeout(DEADLINE, until).await.expect("the stream is there");
}

#[tokio::test]
async fn a_reset_of_either_side_reaches_the_other_after_a_move() {
    let two = whole().await;
    for by_client in [true, false] {
        let mut relayed = start(&two).await.unwrap();
        two.tunnels[1].resume(&relayed.movable).await.unwrap();
        exchange(&mut relayed).await;
        let Relayed {
            client, backend, ..
        } = relayed;
        let [left, mut stays] = if by_client {
            [client, backend]
        } else {
            [backend, client]
        };
        reset_after_delivery(left).await;
        let (_, ended) = read_all(&mut stays).await;
        assert!(!ended, "{by_client}");
    }
    until_streams_are(&two, [0, 0]).await;
}

#[tokio::test]
async fn a_stream_of_an_agent_that_moves_none_stays_where_it_is() {
    let pair = pair(256 << 10, 8).await;
    pair.tunnel
        .describe(&DescribeRequest::default())
        .await
        .unwrap();
    let (listener, port) = backend().await;
    let (stream, _accepted) =
        tokio::join!(pair.tunnel.open(to_port(port), None), listener.accept());
    assert!(stream.unwrap().movable().is_none());
    assert!(!pair.tunnel.moves_streams());
}

#[tokio::test]
async fn a_stream_that_has_ended_or_half_ended_does_not_move() {
    let two = whole().await;
    let mut relayed = start(&two).await.unwrap();
    relayed.client.shutdown().await.unwrap();
    let (_, ended) = read_all(&mut relayed.backend).await;
    assert!(ended);
    let refused = two.tunnels[1].resume(&relayed.movable).await;
    assert!(matches!(refused, Err(MoveError::Unmovable)), "{refused:?}");
    drop(relayed.backend);
    relayed.relay.await.unwrap().unwrap();
    let refused = two.tunnels[1].resume(&relayed.movable).await;
    assert!(matches!(refused, Err(MoveError::Unmovable)), "{refused:?}");
    assert_eq!(two.tunnels[1].streams(), 0);
}
