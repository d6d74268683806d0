//! The proxy's end of a tunnel: the gRPC client of `culvert.tunnel.v1.Agent` on a connection that
//! the agent dialled.

mod resume;
mod stream;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{PingPong, SendStream};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

pub use resume::{MovableStream, MoveError};
pub use stream::{DIAL_TIMEOUT, EarlyClient, OpenError, Stream};
pub(crate) use stream::{RequestedStream, first_frame};

use crate::budget::Budget;
use crate::budget::outbox::Payload;
use crate::error::TunnelError;
use crate::first_message::first_message;
use crate::frame;
use crate::gate::Gate;
use crate::grpc;
use crate::http2::{self, Keepalive, RoundTrip};
use crate::io::SocketState;
use crate::load::Load;
use crate::proto::tunnel::{
    DescribeRequest, DescribeResponse, SetProxiesRequest, SetProxiesResponse,
};
use crate::role::Role;
use crate::send_queue::FRAME_SIZE;

/// What is at the other end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarEnd {
    /// A node's agent.
    Agent,
    /// Another proxy, which forwards streams to its agents. It answers with response headers once
    /// it has a tunnel of the node. A client's first bytes wait for that, so that a stream can be
    /// opened elsewhere.
    Proxy,
}

/// Settings of the proxy's end of a tunnel.
#[derive(Clone, Debug)]
pub struct ProxyTunnel {
    /// What is at the other end.
    pub far_end: FarEnd,
    /// Bytes that one stream may have in flight from the agent.
    pub stream_window: u32,
    /// Streams relayed at once in this tunnel.
    pub max_streams: u32,
    /// Streams that this tunnel carries in all before it is [worn out](Tunnel::is_worn_out),
    /// usually [`crate::STREAMS_IN_LIFE`].
    pub streams_in_life: u32,
    /// The memory for data that waits for clients, [of](Budget::of) this tunnel's node.
    pub budget: Budget,
}

/// An established tunnel, ready to open streams. Clones share it.
#[derive(Clone, Debug)]
pub struct Tunnel {
    far_end: FarEnd,
    requests: SendRequest<Payload>,
    round_trip: RoundTrip,
    load: Arc<Load>,
    max_streams: u32,
    streams_in_life: u32,
    budget: Budget,
}

/// Reads and writes a tunnel's connection. The tunnel works while [`Self::run`] does.
pub struct Driver<T> {
    connection: Connection<Gate<T>, Payload>,
    pings: PingPong,
    round_trip: RoundTrip,
    keepalive: Keepalive,
}

impl ProxyTunnel {
    /// Sets up HTTP/2 on a connection that an agent dialled.
    ///
    /// # Errors
    /// The peer does not speak HTTP/2 in time.
    pub async fn establish<T>(
        &self,
        io: T,
        socket_state: SocketState,
    ) -> Result<(Tunnel, Driver<T>), TunnelError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let io = Gate::new(io, socket_state.clone(), self.budget.clone());
        let handshake = timeout(http2::HANDSHAKE_TIMEOUT, self.builder().handshake(io)).await;
        let (requests, mut connection) = http2::established(handshake)?;
        let pings = connection.ping_pong().expect("taken once");
        let round_trip = RoundTrip::default();
        let keepalive = Keepalive::unset(socket_state);
        let tunnel = Tunnel {
            far_end: self.far_end,
            requests,
            round_trip: round_trip.clone(),
            load: Arc::new(Load::new(keepalive.clone())),
            max_streams: self.max_streams,
            streams_in_life: self.streams_in_life,
            budget: self.budget.clone(),
        };
        Ok((
            tunnel,
            Driver {
                connection,
                pings,
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
            .max_frame_size(FRAME_SIZE)
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
    /// The connection failed, or its peer is silent. It is not an error that the agent drained it, or
    /// that all clones of its [`Tunnel`] were dropped.
    pub fn run(self) -> impl Future<Output = Result<(), TunnelError>> {
        let Self {
            mut connection,
            pings,
            round_trip,
            keepalive,
        } = self;
        // A block has one place for the connection. An async function and what it awaits would have
        // three, for each idle tunnel.
        async move {
            let death = http2::peer_death(pings, round_trip, keepalive.clone(), Role::Proxy);
            tokio::select! {
                ended = &mut connection => {
                    ended.map_err(|error| TunnelError::from(error).on(keepalive.socket_state()))
                }
                silent = death => Err(TunnelError::PeerSilent(silent)),
            }
        }
    }
}

impl Tunnel {
    /// Asks the agent for its version, its allow-list and how long the tunnel may be silent.
    ///
    /// # Errors
    /// The tunnel fails, the agent's answer is invalid or late, or the agent does not want this
    /// tunnel ([`TunnelError::Declined`]).
    pub async fn describe(
        &self,
        request: &DescribeRequest,
    ) -> Result<DescribeResponse, TunnelError> {
        let described: DescribeResponse = self
            .ask(grpc::DESCRIBE, frame::encode(request))
            .await
            .map_err(|refusal| match refusal {
                Refusal::Status(grpc::FAILED_PRECONDITION, _) => TunnelError::Declined,
                Refusal::Status(..) | Refusal::Tunnel(_) => refusal.into(),
            })?;
        self.load.keepalive.set(described.keepalive_seconds);
        self.load.moves.store(described.moves, Ordering::Relaxed);
        Ok(printable(described))
    }

    /// Sends the agent the list of all proxies. An older agent does not know this call, and keeps
    /// tunnels to all proxies that it was given: that is no error.
    ///
    /// # Errors
    /// The tunnel fails, or the agent answers late or with an error.
    pub async fn set_proxies(&self, request: &SetProxiesRequest) -> Result<(), TunnelError> {
        match self
            .ask::<SetProxiesResponse>(grpc::SET_PROXIES, frame::encode(request))
            .await
        {
            Ok(_) | Err(Refusal::Status(grpc::UNIMPLEMENTED, _)) => Ok(()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// A call with one message each way.
    async fn ask<R: Message + Default>(
        &self,
        path: &'static str,
        message: Bytes,
    ) -> Result<R, Refusal> {
        let answer = async {
            let (response, _) = self.call(path, message, true).await?;
            let response = response.await?;
            if let Some(error) = grpc::error_of(&response) {
                return Err(Refusal::Status(grpc::status_of(&response), error));
            }
            let (message, _) = first_message(&mut response.into_body(), frame::MESSAGE_MAX)
                .await
                .map_err(|error| TunnelError::Call(error.to_string()))?;
            Ok(R::decode(message).map_err(|error| TunnelError::Call(error.to_string()))?)
        };
        timeout(http2::HANDSHAKE_TIMEOUT, answer)
            .await
            .map_err(|_| TunnelError::HandshakeTimedOut)?
    }

    async fn call(
        &self,
        path: &'static str,
        message: Bytes,
        end: bool,
    ) -> Result<(h2::client::ResponseFuture, SendStream<Payload>), h2::Error> {
        self.load.keepalive.used();
        let mut requests = self.requests.clone().ready().await?;
        let (response, mut send) = requests.send_request(grpc::request(path), false)?;
        self.load.opened.fetch_add(1, Ordering::Relaxed);
        send.send_data(message.into(), end)?;
        Ok((response, send))
    }

    /// Streams of this tunnel that are open or being opened.
    #[must_use]
    pub fn streams(&self) -> u32 {
        self.load.active.load(Ordering::Relaxed)
    }

    /// Whether nothing has arrived from the agent for some seconds after a ping: the tunnel may be
    /// dead.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.load.is_silent()
    }

    /// Whether bulk data keeps the tunnel busy: a new stream would wait for it again and again.
    /// Without streams there is no more of it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.streams() > 0 && self.load.keepalive.is_busy()
    }

    /// Whether another tunnel should replace this one once it has no streams. It has carried as
    /// many as it may, or too many clients left while the link was cut: their late frames could end
    /// it.
    #[must_use]
    pub fn is_worn_out(&self) -> bool {
        let opened = &self.load.opened;
        let given_up = &self.load.given_up_in_silence;
        opened.load(Ordering::Relaxed) >= self.streams_in_life
            || given_up.load(Ordering::Relaxed) >= http2::GIVEN_UP_IN_SILENCE
    }

    /// Whether a stream can still be opened. A tunnel whose agent ends it takes no new ones, and
    /// lives on with those that it has.
    #[must_use]
    pub fn takes_streams(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        !matches!(
            self.requests.clone().poll_ready(&mut context),
            Poll::Ready(Err(_))
        )
    }

    /// Round-trip time to the agent, once measured.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip.last()
    }
}

/// Why a call of the agent has no answer.
enum Refusal {
    Tunnel(TunnelError),
    /// A gRPC status, and the whole error as text.
    Status(u8, String),
}

impl From<TunnelError> for Refusal {
    fn from(error: TunnelError) -> Self {
        Self::Tunnel(error)
    }
}

impl From<h2::Error> for Refusal {
    fn from(error: h2::Error) -> Self {
        Self::Tunnel(error.into())
    }
}

impl From<Refusal> for TunnelError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Tunnel(error) => error,
            Refusal::Status(_, error) => Self::Call(error),
        }
    }
}

/// An agent's description without control characters, which could command an operator's terminal.
fn printable(mut described: DescribeResponse) -> DescribeResponse {
    let DescribeResponse {
        version,
        instance,
        slot,
        addresses,
        allowed,
        keepalive_seconds: _,
        sequence: _,
        started: _,
        moves: _,
        last_end: _,
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

#[cfg(test)]
mod tests;
