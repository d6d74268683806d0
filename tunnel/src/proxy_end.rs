//! The proxy's end of a tunnel: the gRPC client of `culvert.tunnel.v1.Agent` on a connection that
//! the agent dialled.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{PingPong, Reason, SendStream};
use prost::Message;
use scopeguard::ScopeGuard;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::budget::Budget;
use crate::dial_failure::DialFailure;
use crate::error::TunnelError;
use crate::first_message::{FirstMessageError, first_message};
use crate::frame::{self, FrameError};
use crate::grpc;
use crate::http2::{self, Keepalive, Pings, RoundTrip};
use crate::io::LastRead;
use crate::outbox::Payload;
use crate::proto::tunnel::{
    DescribeRequest, DescribeResponse, DialCode, Frame, Open, Opened, frame::Kind,
};
use crate::relay::{self, Incoming, RelayError, Role};
use crate::socket::Socket;
use crate::transferred::Transferred;

/// How long an agent may take to dial a backend.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the proxy waits for the agent's word: its dial, and twice a slow link's round trip.
const OPEN_TIMEOUT: Duration = Duration::from_secs(8);

/// Characters of an agent's message that go into logs and answers.
const MESSAGE_MAX: usize = 512;

/// Settings of the proxy's end of a tunnel.
#[derive(Clone, Debug)]
pub struct ProxyTunnel {
    /// Bytes that one stream may have under way from the agent.
    pub stream_window: u32,
    /// Streams relayed at once in this tunnel.
    pub max_streams: u32,
    /// Streams carried in this tunnel's life, after which it is worn out:
    /// [`crate::STREAMS_IN_LIFE`].
    pub streams_in_life: u32,
    /// For what waits for clients, in all tunnels together: that [of](Budget::of) this tunnel's
    /// node.
    pub budget: Budget,
}

/// An established tunnel, ready to open streams. Clones share it.
#[derive(Clone, Debug)]
pub struct Tunnel {
    requests: SendRequest<Payload>,
    round_trip: RoundTrip,
    load: Arc<Load>,
    max_streams: u32,
    streams_in_life: u32,
    budget: Budget,
}

/// Moves a tunnel's bytes. The tunnel lives while this runs.
pub struct Driver<T> {
    connection: Connection<T, Payload>,
    pings: PingPong,
    last_read: LastRead,
    round_trip: RoundTrip,
    keepalive: Keepalive,
}

/// Why a stream was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// As many streams are open as the tunnel may have.
    #[error("{0} streams are open in the tunnel already")]
    TooManyStreams(u32),
    /// The tunnel failed before the agent answered: another tunnel of the node may do, unless the
    /// client's bytes went [`Early`].
    #[error("the tunnel was lost while opening")]
    Tunnel(#[source] h2::Error),
    /// The agent did not say in time how its dial went.
    #[error("the agent did not answer within {} s", OPEN_TIMEOUT.as_secs())]
    TimedOut,
    /// The agent's answer makes no sense.
    #[error("the agent answered {0}")]
    Answer(String),
    /// The agent reached no backend, or must not.
    #[error("{}", .0.message)]
    Refused(DialFailure),
    /// The client failed while its first bytes were read.
    #[error("the client's connection failed")]
    Client(#[source] io::Error),
}

impl From<FrameError> for OpenError {
    fn from(error: FrameError) -> Self {
        Self::Answer(error.to_string())
    }
}

impl From<FirstMessageError> for OpenError {
    fn from(error: FirstMessageError) -> Self {
        match error {
            FirstMessageError::Http2(error) => Self::Tunnel(error),
            FirstMessageError::Frame(error) => error.into(),
        }
    }
}

/// A client whose first bytes go ahead with the request for its backend, which saves a round trip.
/// Once they [have](Self::has_gone), that request must not be made again: the backend may have
/// them.
#[derive(Clone, Copy, Debug)]
pub struct Early<'a> {
    /// The client.
    pub client: &'a Socket,
    /// Its bytes so far.
    pub transferred: &'a Transferred,
}

impl Early<'_> {
    /// Whether bytes have gone.
    #[must_use]
    pub fn has_gone(self) -> bool {
        self.transferred.into_tunnel.bytes() > 0
    }

    async fn send(self, stream: &mut SendStream<Payload>, budget: &Budget) -> io::Result<()> {
        relay::send_first(self.client, stream, budget, &self.transferred.into_tunnel).await
    }
}

/// A stream whose backend has answered. Dropping it resets it.
#[derive(Debug)]
pub struct Stream {
    send: SendStream<Payload>,
    incoming: Incoming,
    _place: Place,
}

impl ProxyTunnel {
    /// Sets up HTTP/2 on a connection that an agent dialled.
    ///
    /// # Errors
    /// The peer does not speak HTTP/2 in time.
    pub async fn establish<T>(
        &self,
        io: T,
        last_read: LastRead,
    ) -> Result<(Tunnel, Driver<T>), TunnelError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = timeout(http2::HANDSHAKE_TIMEOUT, self.builder().handshake(io)).await;
        let (requests, mut connection) = handshake
            .map_err(|_| TunnelError::HandshakeTimedOut)?
            .map_err(TunnelError::Http2)?;
        let pings = connection.ping_pong().expect("taken once");
        let (round_trip, keepalive) = (RoundTrip::default(), Keepalive::of(0));
        let tunnel = Tunnel {
            requests,
            round_trip: round_trip.clone(),
            load: Arc::new(Load::new(last_read.clone(), keepalive.clone())),
            max_streams: self.max_streams,
            streams_in_life: self.streams_in_life,
            budget: self.budget.clone(),
        };
        Ok((
            tunnel,
            Driver {
                connection,
                pings,
                last_read,
                round_trip,
                keepalive,
            },
        ))
    }

    fn builder(&self) -> h2::client::Builder {
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_connection_window_size(http2::CONNECTION_WINDOW)
            .initial_window_size(http2::initial_window(self.stream_window))
            .initial_max_send_streams(self.max_streams as usize)
            .max_concurrent_streams(0)
            .max_frame_size(http2::FRAME_SIZE)
            .max_header_list_size(http2::HEADER_LIST)
            .max_send_buffer_size(http2::SEND_BUFFER)
            .max_concurrent_reset_streams(http2::RESETS)
            .max_pending_accept_reset_streams(http2::RESETS)
            .max_local_error_reset_streams(Some(http2::LATE_RESETS))
            .reset_stream_duration(http2::RESET_MEMORY);
        builder
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    /// Runs the tunnel until it ends.
    ///
    /// # Errors
    /// Why it ended. The agent's orderly leave, and the end of all [`Tunnel`]s here, are none.
    pub async fn run(self) -> Result<(), TunnelError> {
        let Self {
            connection,
            pings,
            last_read,
            round_trip,
            keepalive,
        } = self;
        let death = http2::peer_death(pings, last_read, round_trip, keepalive, Pings::First);
        tokio::select! {
            ended = connection => ended.map_err(TunnelError::Http2),
            silent = death => Err(TunnelError::PeerSilent(silent)),
        }
    }
}

impl Tunnel {
    /// Asks the agent who it is, and how long the tunnel may be silent.
    ///
    /// # Errors
    /// The tunnel fails, or the agent's answer makes no sense or does not come in time.
    pub async fn describe(
        &self,
        request: &DescribeRequest,
    ) -> Result<DescribeResponse, TunnelError> {
        let answer = async {
            let (response, _) = self
                .call(grpc::DESCRIBE, frame::encode(request), true)
                .await
                .map_err(TunnelError::Http2)?;
            let response = response.await.map_err(TunnelError::Http2)?;
            if let Some(error) = grpc::error_of(&response) {
                return Err(TunnelError::Call(error));
            }
            let (message, _) = first_message(&mut response.into_body(), frame::MESSAGE_MAX)
                .await
                .map_err(|error| TunnelError::Call(error.to_string()))?;
            let described = DescribeResponse::decode(message)
                .map_err(|error| TunnelError::Call(error.to_string()))?;
            self.load.keepalive.set(described.keepalive_seconds);
            Ok(printable(described))
        };
        timeout(http2::HANDSHAKE_TIMEOUT, answer)
            .await
            .map_err(|_| TunnelError::HandshakeTimedOut)?
    }

    /// Opens a stream: returns once the backend has answered the agent. Dropping the future cancels
    /// the dial at the agent. The first that comes from an `early` client meanwhile is sent at
    /// once.
    ///
    /// # Errors
    /// [`OpenError::Tunnel`] if another tunnel of the node may do better, unless bytes went early;
    /// else what the caller should hear.
    pub async fn open(&self, open: Open, early: Option<Early<'_>>) -> Result<Stream, OpenError> {
        let place = Place::take(&self.load, self.max_streams)?;
        timeout(OPEN_TIMEOUT, self.open_in(place, open, early))
            .await
            .map_err(|_| OpenError::TimedOut)?
    }

    async fn open_in(
        &self,
        place: Place,
        open: Open,
        early: Option<Early<'_>>,
    ) -> Result<Stream, OpenError> {
        let first = frame::encode(&Frame {
            kind: Some(Kind::Open(open)),
        });
        let (mut response, send) = self
            .call(grpc::OPEN, first, false)
            .await
            .map_err(OpenError::Tunnel)?;
        // By itself HTTP/2 keeps what a stream that was given up has yet to send until the
        // connection takes bytes again.
        let mut send = scopeguard::guard(send, |mut send| send.send_reset(Reason::CANCEL));
        let response = match early {
            None => response.await,
            Some(early) => tokio::select! {
                biased;
                response = &mut response => response,
                sent = early.send(&mut send, &self.budget) => match sent {
                    Ok(()) => response.await,
                    Err(error) => return Err(OpenError::Client(error)),
                },
            },
        };
        let response = response.map_err(OpenError::Tunnel)?;
        if let Some(error) = grpc::error_of(&response) {
            return Err(OpenError::Answer(error));
        }
        let mut incoming = Incoming::new(response.into_body(), self.budget.share());
        let message = incoming.first_message(frame::MESSAGE_MAX).await?;
        let Kind::Opened(Opened { code, message }) = frame::first_kind(message)? else {
            return Err(OpenError::Answer("another frame than `opened`".to_owned()));
        };
        let code = DialCode::try_from(code).unwrap_or(DialCode::Failed);
        if code == DialCode::Ok {
            return Ok(Stream {
                send: ScopeGuard::into_inner(send),
                incoming,
                _place: place,
            });
        }
        let message = message
            .chars()
            .take(MESSAGE_MAX)
            .map(printable_char)
            .collect();
        Err(OpenError::Refused(DialFailure { code, message }))
    }

    async fn call(
        &self,
        path: &'static str,
        message: Bytes,
        end: bool,
    ) -> Result<(h2::client::ResponseFuture, SendStream<Payload>), h2::Error> {
        let mut requests = self.requests.clone().ready().await?;
        let (response, mut send) = requests.send_request(grpc::request(path), false)?;
        self.load.opened.fetch_add(1, Ordering::Relaxed);
        send.send_data(message.into(), end)?;
        Ok((response, send))
    }

    /// Streams open or opening in this tunnel.
    #[must_use]
    pub fn streams(&self) -> u32 {
        self.load.active.load(Ordering::Relaxed)
    }

    /// Whether nothing has come from the agent for longer than a ping takes: the tunnel may be
    /// dead.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.load.is_silent()
    }

    /// Whether another tunnel should take its place once it has no streams: it has carried as many
    /// as it may, or so many clients gave up while the link was cut that their late frames could
    /// end it one day.
    #[must_use]
    pub fn is_worn_out(&self) -> bool {
        let (opened, given_up) = (&self.load.opened, &self.load.given_up_in_silence);
        opened.load(Ordering::Relaxed) >= self.streams_in_life
            || given_up.load(Ordering::Relaxed) >= http2::GIVEN_UP_IN_SILENCE
    }

    /// Round trip to the agent, once measured.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip.last()
    }
}

impl Stream {
    /// Sends what a client has sent already, before [`Self::relay`], which tells if that failed.
    pub fn send_pipelined(&mut self, pipelined: &[u8], transferred: &Transferred) {
        let budget = self.incoming.budget();
        relay::send_now(pipelined, &mut self.send, &budget, &transferred.into_tunnel);
    }

    /// Relays between `client` and the backend until both directions ended or one failed; then
    /// `client`, once dropped, ends with RST. To be called once: by reference, for a task that
    /// moved what it has in here would keep room for it twice.
    ///
    /// # Errors
    /// What failed first.
    pub fn relay(
        &mut self,
        client: &Socket,
        transferred: &Transferred,
    ) -> impl Future<Output = Result<(), RelayError>> {
        relay::relay(
            client,
            &mut self.send,
            &mut self.incoming,
            Role::Client,
            transferred,
        )
    }
}

/// What an agent says of itself, without what would command an operator's terminal.
fn printable(mut described: DescribeResponse) -> DescribeResponse {
    let DescribeResponse {
        version,
        instance,
        slot,
        addresses,
        allowed,
        keepalive_seconds: _,
    } = &mut described;
    let further = allowed.iter_mut().flat_map(|allowed| &mut allowed.further);
    for text in [version, instance, slot]
        .into_iter()
        .chain(addresses)
        .chain(further)
    {
        *text = text.chars().map(printable_char).collect();
    }
    described
}

fn printable_char(character: char) -> char {
    if character.is_control() {
        ' '
    } else {
        character
    }
}

/// What a tunnel carries and has carried.
#[derive(Debug)]
struct Load {
    /// Streams open or opening.
    active: AtomicU32,
    /// Streams of its whole life.
    opened: AtomicU32,
    /// Streams that ended at this end while nothing came from the agent.
    given_up_in_silence: AtomicU32,
    last_read: LastRead,
    keepalive: Keepalive,
}

impl Load {
    fn new(last_read: LastRead, keepalive: Keepalive) -> Self {
        let (active, opened, given_up_in_silence) =
            (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        Self {
            active,
            opened,
            given_up_in_silence,
            last_read,
            keepalive,
        }
    }

    fn is_silent(&self) -> bool {
        self.last_read.at().elapsed() > self.keepalive.silent_after()
    }
}

/// A stream's place among those that a tunnel may have; given back on drop.
#[derive(Debug)]
struct Place(Arc<Load>);

impl Place {
    fn take(load: &Arc<Load>, limit: u32) -> Result<Self, OpenError> {
        let below = |active: u32| (active < limit).then_some(active + 1);
        let taken = load
            .active
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below);
        taken
            .map(|_| Self(load.clone()))
            .map_err(|_| OpenError::TooManyStreams(limit))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
        if self.0.is_silent() {
            self.0.given_up_in_silence.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
