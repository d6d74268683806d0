//! The agent's end of a tunnel: the gRPC server of `culvert.tunnel.v1.Agent` on a connection that
//! the agent dialled.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{PingPong, RecvStream};
use http::Request;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::budget::Budget;
use crate::dial_failure::DialFailure;
use crate::error::TunnelError;
use crate::frame;
use crate::grpc;
use crate::http2::{self, Keepalive, Pings, RoundTrip};
use crate::io::LastRead;
use crate::outbox::Payload;
use crate::proto::tunnel::{
    DescribeRequest, DescribeResponse, DialCode, Frame, Open, Opened, frame::Kind,
};
use crate::relay::{self, Incoming, RelayError, Role};
use crate::socket::Socket;
use crate::transferred::{Total, Transferred};

/// A stream whose first message does not come is reset.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long streams may take to end after their tunnel has.
const LAST_STREAMS: Duration = Duration::from_secs(1);
/// A `Describe` request holds a version, `Open` an address and what the client dialled.
const FIRST_MAX: usize = 4096;

/// What an agent does for the streams of its tunnels.
pub trait Backends: Send + Sync + 'static {
    /// Connects to the backend that `open` asks for, if that is allowed. Bounded in time by the
    /// implementation; dropped when the client leaves.
    fn dial(&self, open: &Open) -> impl Future<Output = Result<TcpStream, DialFailure>> + Send;

    /// A stream that `open` began has ended, perhaps before there was a connection.
    fn stream_ended(&self, open: &Open, end: &StreamEnd);
}

/// How a stream went, once it has ended.
#[derive(Debug)]
pub struct StreamEnd {
    /// Payload bytes from the backend into the tunnel.
    pub into_tunnel: u64,
    /// Payload bytes from the tunnel to the backend.
    pub out_of_tunnel: u64,
    /// From the request to the end.
    pub duration: Duration,
    /// Both directions ended, or what failed first.
    pub result: Result<(), StreamError>,
}

/// Why a stream did not end well.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The backend was not reached, or not allowed.
    #[error("{}", .0.message)]
    Dial(DialFailure),
    /// The relay failed.
    #[error("relay")]
    Relay(#[source] RelayError),
}

/// Settings of the agent's end of a tunnel.
#[derive(Clone, Debug)]
pub struct AgentTunnel {
    /// Bytes that one stream may have under way from the proxy.
    pub stream_window: u32,
    /// Streams relayed at once in this tunnel; more are answered with `TOO_MANY_STREAMS`.
    pub max_streams: u32,
    /// Streams carried in this tunnel's life, after which it is [worn
    /// out](AgentTunnelState::worn_out): [`crate::STREAMS_IN_LIFE`].
    pub streams_in_life: u32,
    /// For what waits for backends, in all tunnels together: that [of](Budget::of) this tunnel's
    /// proxy.
    pub budget: Budget,
    /// What `Describe` answers: also how long the tunnel may be silent.
    pub describe: DescribeResponse,
}

/// What a running tunnel can be asked. Clones share it. The default's streams count in no total.
#[derive(Clone, Debug, Default)]
pub struct AgentTunnelState(Arc<State>);

#[derive(Debug, Default)]
struct State {
    round_trip: RoundTrip,
    total: Total,
    next: AtomicU64,
    streams: Mutex<BTreeMap<u64, Arc<LiveStream>>>,
    worn_out: Notify,
}

/// A stream that is being relayed.
#[derive(Debug)]
pub struct LiveStream {
    /// What the proxy asked for.
    pub open: Open,
    /// When it asked.
    pub since: Instant,
    /// Bytes so far.
    pub transferred: Transferred,
}

impl AgentTunnelState {
    /// Of a tunnel whose streams count in `total`.
    #[must_use]
    pub fn new(total: Total) -> Self {
        Self(Arc::new(State {
            total,
            ..State::default()
        }))
    }

    /// Streams of the tunnel now, dialling ones included.
    #[must_use]
    pub fn streams(&self) -> Vec<Arc<LiveStream>> {
        self.lock().values().cloned().collect()
    }

    /// Round trip to the proxy, once measured.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.0.round_trip.last()
    }

    /// Completes once when the tunnel has carried as many streams as it may. It goes on, but
    /// another one should take its place before HTTP/2 has no numbers left for its streams.
    pub async fn worn_out(&self) {
        self.0.worn_out.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<LiveStream>>> {
        self.0
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentTunnel {
    /// Serves the proxy at the other end of `io` until the connection ends. When `drain` completes,
    /// the proxy is told to open no more streams here (GOAWAY), and those that are open may end.
    ///
    /// # Errors
    /// Why the connection ended, unless it was drained.
    pub async fn serve<T, B>(
        &self,
        io: T,
        last_read: LastRead,
        state: AgentTunnelState,
        backends: Arc<B>,
        drain: impl Future<Output = ()>,
    ) -> Result<(), TunnelError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
        B: Backends,
    {
        let handshake = self.builder().handshake::<_, Payload>(io);
        let handshake = timeout(http2::HANDSHAKE_TIMEOUT, handshake).await;
        let mut connection = handshake
            .map_err(|_| TunnelError::HandshakeTimedOut)?
            .map_err(TunnelError::Http2)?;
        let pings = connection.ping_pong().expect("taken once");
        let mut death = std::pin::pin!(self.peer_death(pings, last_read, &state));
        let mut drain = std::pin::pin!(drain);
        let (mut draining, mut carried) = (false, 0_u32);
        let mut streams = JoinSet::new();
        let (tunnel, worn_out) = (Arc::new(self.clone()), state.clone());
        let ended = loop {
            tokio::select! {
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => {
                        let (tunnel, state, backends) = (tunnel.clone(), state.clone(), backends.clone());
                        let method = Method::of(&request);
                        let incoming = Incoming::new(request.into_body(), self.budget.share());
                        let mut call = Call { tunnel, state, backends, incoming, respond };
                        streams.spawn(async move { call.serve(method).await });
                        carried = carried.saturating_add(1);
                        if carried == self.streams_in_life {
                            worn_out.0.worn_out.notify_one();
                        }
                    }
                    Some(Err(error)) => break Err(TunnelError::Http2(error)),
                    None if draining => break Ok(()),
                    None => break Err(TunnelError::Closed),
                },
                Some(_) = streams.join_next() => {}
                silent = &mut death => break Err(TunnelError::PeerSilent(silent)),
                () = &mut drain, if !draining => {
                    draining = true;
                    connection.graceful_shutdown();
                }
            }
        };
        // Without its connection every stream fails by itself, and tells of its end.
        drop(connection);
        let last_streams = async { while streams.join_next().await.is_some() {} };
        // A stream that hangs on is dropped, which resets it.
        timeout(LAST_STREAMS, last_streams).await.ok();
        ended
    }

    fn peer_death(
        &self,
        pings: PingPong,
        last_read: LastRead,
        state: &AgentTunnelState,
    ) -> impl Future<Output = Duration> + use<> {
        let keepalive = Keepalive::of(self.describe.keepalive_seconds);
        http2::peer_death(
            pings,
            last_read,
            state.0.round_trip.clone(),
            keepalive,
            Pings::IfUnheard,
        )
    }

    fn builder(&self) -> h2::server::Builder {
        let mut builder = h2::server::Builder::new();
        builder
            .initial_connection_window_size(http2::CONNECTION_WINDOW)
            .initial_window_size(http2::initial_window(self.stream_window))
            .max_frame_size(http2::FRAME_SIZE)
            .max_header_list_size(http2::HEADER_LIST)
            .max_send_buffer_size(http2::SEND_BUFFER)
            .max_concurrent_streams(self.max_streams.saturating_add(http2::SPARE_STREAMS))
            .max_pending_accept_reset_streams(http2::RESETS)
            .max_concurrent_reset_streams(http2::RESETS)
            .max_local_error_reset_streams(Some(http2::LOCAL_ERRORS))
            .reset_stream_duration(http2::RESET_MEMORY);
        builder
    }
}

/// What the proxy asks for.
#[derive(Clone, Copy, Debug)]
enum Method {
    Open,
    Describe,
    Unknown,
}

impl Method {
    fn of(request: &Request<RecvStream>) -> Self {
        match request.uri().path() {
            grpc::OPEN => Self::Open,
            grpc::DESCRIBE => Self::Describe,
            _ => Self::Unknown,
        }
    }
}

/// One call of the proxy. Its functions take it by reference: a task keeps what is passed on by
/// value once for each of them.
struct Call<B> {
    tunnel: Arc<AgentTunnel>,
    state: AgentTunnelState,
    backends: Arc<B>,
    incoming: Incoming,
    respond: SendResponse<Payload>,
}

impl<B: Backends> Call<B> {
    async fn serve(&mut self, method: Method) {
        let served = match method {
            Method::Open => self.open().await,
            Method::Describe => self.describe().await,
            Method::Unknown => reject(&mut self.respond, grpc::UNIMPLEMENTED, "no such method"),
        };
        if let Err(error) = served {
            tracing::debug!(?method, %error, "call failed");
        }
    }

    /// What the proxy says first; `None` if it is no message.
    async fn first_message(&mut self) -> Result<Option<Bytes>, TunnelError> {
        let first = timeout(OPEN_TIMEOUT, self.incoming.first_message(FIRST_MAX)).await;
        Ok(first.map_err(|_| TunnelError::HandshakeTimedOut)?.ok())
    }

    async fn describe(&mut self) -> Result<(), TunnelError> {
        let request = self.first_message().await?;
        let Some(request) = request.and_then(|message| DescribeRequest::decode(message).ok())
        else {
            return reject(
                &mut self.respond,
                grpc::INVALID_ARGUMENT,
                "no DescribeRequest",
            );
        };
        tracing::debug!(proxy.version = request.version, "described");
        let mut send = self
            .respond
            .send_response(grpc::response(), false)
            .map_err(TunnelError::Http2)?;
        send.send_data(frame::encode(&self.tunnel.describe).into(), false)
            .map_err(TunnelError::Http2)?;
        send.send_trailers(grpc::trailers(grpc::OK))
            .map_err(TunnelError::Http2)
    }

    async fn open(&mut self) -> Result<(), TunnelError> {
        let Some(open) = self.first_message().await?.and_then(as_open) else {
            return refuse(
                &mut self.respond,
                &invalid("the first message is no `open`"),
            );
        };
        let Some(slot) = Slot::take(&self.state, self.tunnel.max_streams, open) else {
            refuse(
                &mut self.respond,
                &too_many_streams(self.tunnel.max_streams),
            )?;
            discard(&mut self.incoming).await;
            return Ok(());
        };
        let result = self.dial_and_relay(&slot.stream).await;
        let was_refused = matches!(result, Err(StreamError::Dial(_)));
        self.backends
            .stream_ended(&slot.stream.open, &slot.stream.end(result));
        drop(slot);
        if was_refused {
            discard(&mut self.incoming).await;
        }
        Ok(())
    }

    async fn dial_and_relay(&mut self, stream: &LiveStream) -> Result<(), StreamError> {
        // Boxed: it takes as much room as a relay, and what it returns would stay beside that.
        let socket = Box::pin(self.dial(&stream.open)).await?;
        let lost = |error| StreamError::Relay(RelayError::from(error));
        let mut send = self
            .respond
            .send_response(grpc::response(), false)
            .map_err(lost)?;
        let opened = Opened {
            code: DialCode::Ok.into(),
            message: String::new(),
        };
        send.send_data(
            frame::encode(&Frame {
                kind: Some(Kind::Opened(opened)),
            })
            .into(),
            false,
        )
        .map_err(lost)?;
        let relayed = relay::relay(
            &socket,
            &mut send,
            &mut self.incoming,
            Role::Server,
            &stream.transferred,
        );
        relayed.await.map_err(StreamError::Relay)
    }

    /// The backend, unless the client leaves first; a refusal is answered.
    async fn dial(&mut self, open: &Open) -> Result<Socket, StreamError> {
        let dialled = tokio::select! {
            dialled = self.backends.dial(open) => dialled,
            left = std::future::poll_fn(|context| self.respond.poll_reset(context)) => {
                return Err(StreamError::Relay(left.map_or_else(RelayError::from, RelayError::Reset)));
            }
            ended = self.incoming.gather() => return Err(StreamError::Relay(ended)),
        };
        dialled.map(Socket::from).map_err(|failure| {
            // It is refused all the same where the proxy cannot hear of it any more.
            refuse(&mut self.respond, &failure).ok();
            StreamError::Dial(failure)
        })
    }
}

fn as_open(message: Bytes) -> Option<Open> {
    match frame::first_kind(message) {
        Ok(Kind::Open(open)) => Some(open),
        Ok(_) | Err(_) => None,
    }
}

fn invalid(message: &str) -> DialFailure {
    DialFailure {
        code: DialCode::Invalid,
        message: message.to_owned(),
    }
}

fn too_many_streams(limit: u32) -> DialFailure {
    DialFailure {
        code: DialCode::TooManyStreams,
        message: format!("the agent relays {limit} streams in this tunnel already"),
    }
}

/// Answers an `Open` with the reason why there is no connection.
fn refuse(respond: &mut SendResponse<Payload>, failure: &DialFailure) -> Result<(), TunnelError> {
    let opened = Opened {
        code: failure.code.into(),
        message: failure.message.clone(),
    };
    let mut send = respond
        .send_response(grpc::response(), false)
        .map_err(TunnelError::Http2)?;
    send.send_data(
        frame::encode(&Frame {
            kind: Some(Kind::Opened(opened)),
        })
        .into(),
        false,
    )
    .map_err(TunnelError::Http2)?;
    send.send_trailers(grpc::trailers(grpc::OK))
        .map_err(TunnelError::Http2)
}

/// Reads what comes behind a refusal: its client may speak until the proxy has heard of it. Behind
/// a stream that was dropped that would be an error of the proxy's, of which a tunnel has so many
/// in its life.
///
/// Boxed: few streams get here, and all would be that much larger.
fn discard(incoming: &mut Incoming) -> Pin<Box<impl Future<Output = ()>>> {
    Box::pin(async {
        timeout(OPEN_TIMEOUT, incoming.discard())
            .await
            .unwrap_or_default()
    })
}

fn reject(
    respond: &mut SendResponse<Payload>,
    status: u8,
    message: &'static str,
) -> Result<(), TunnelError> {
    respond
        .send_response(grpc::error_response(status, message), true)
        .map(|_| ())
        .map_err(TunnelError::Http2)
}

/// A stream's place among those of its tunnel; given back on drop.
struct Slot {
    state: AgentTunnelState,
    number: u64,
    stream: Arc<LiveStream>,
}

impl Slot {
    fn take(state: &AgentTunnelState, limit: u32, open: Open) -> Option<Self> {
        let mut streams = state.lock();
        if streams.len() >= limit as usize {
            return None;
        }
        let number = state.0.next.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(LiveStream {
            open,
            since: Instant::now(),
            transferred: state.0.total.begin(),
        });
        streams.insert(number, stream.clone());
        Some(Self {
            state: state.clone(),
            number,
            stream,
        })
    }
}

impl LiveStream {
    fn end(&self, result: Result<(), StreamError>) -> StreamEnd {
        StreamEnd {
            into_tunnel: self.transferred.into_tunnel.bytes(),
            out_of_tunnel: self.transferred.out_of_tunnel.bytes(),
            duration: self.since.elapsed(),
            result,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.state.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
