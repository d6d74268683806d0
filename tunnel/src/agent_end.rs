//! The agent's end of a tunnel: the gRPC server of `culvert.tunnel.v1.Agent` on a connection that
//! the agent dialled.

mod calls;
mod forward;
mod movable;
mod proxies;
mod respond;
mod state;

use std::sync::Arc;
use std::time::Duration;

use h2::PingPong;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use calls::Calls;
pub use movable::MovableStreams;
pub use proxies::Declined;
pub use state::{AgentTunnelState, LiveStream};

use crate::budget::Budget;
use crate::budget::outbox::Payload;
use crate::dial_failure::DialFailure;
use crate::error::TunnelError;
use crate::gate::Gate;
use crate::http2::{self, Keepalive};
use crate::io::SocketState;
use crate::proto::tunnel::{DescribeRequest, DescribeResponse, DialProxyRequest, Open, Proxy};
use crate::proxy_end::Tunnel;
use crate::relay::RelayError;
use crate::role::Role;
use crate::send_queue::FRAME_SIZE;

/// What an agent does for its tunnels: for their streams, and when a proxy calls it. A
/// proxy that serves other proxies does the same for their streams.
pub trait Backends: Send + Sync + 'static {
    /// Connects to the backend that `open` asks for, if that is allowed. The implementation limits
    /// the time. The future is dropped when the client leaves.
    fn dial(&self, open: &Open) -> impl Future<Output = Result<Backend, DialFailure>> + Send;

    /// The stream that `open` requested has ended, perhaps before its backend was connected.
    fn stream_ended(&self, open: &Open, end: &StreamEnd);

    /// The proxy says who it is, before it uses the tunnel. `Describe` is answered only if the agent
    /// wants this tunnel; otherwise the proxy ends it.
    ///
    /// # Errors
    /// The agent does not want it.
    fn admit_proxy(&self, _proxy: &DescribeRequest) -> Result<(), Declined> {
        Ok(())
    }

    /// The answer to `Describe`: what was `known` when the tunnel was set up, and what changes.
    fn describe(&self, known: &DescribeResponse) -> DescribeResponse {
        known.clone()
    }

    /// The proxy reports which proxies there are, itself included. Their number and texts are
    /// bounded.
    fn set_proxies(&self, _proxies: Vec<Proxy>) {}

    /// The proxy asks for so many further tunnels, at once, for bulk data.
    fn request_tunnels(&self, _count: u32) {}

    /// The proxy asks for tunnels to another proxy, at once, for bulk data that comes by way of it. A
    /// proxy asks the agent of the node that is named.
    fn request_tunnels_to(&self, _request: DialProxyRequest) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Where a stream goes.
#[derive(Debug)]
pub enum Backend {
    /// To a socket of this host. The text says what was tried before; empty: nothing.
    Socket(TcpStream, String),
    /// At a proxy: to the node's agent, through a tunnel that ends here.
    Agent(Box<ThroughTunnel>),
}

/// A stream that a proxy forwards to a node's agent.
#[derive(Debug)]
pub struct ThroughTunnel {
    /// The tunnel of the node.
    pub tunnel: Tunnel,
    /// What the agent is asked for.
    pub open: Open,
}

impl From<TcpStream> for Backend {
    fn from(socket: TcpStream) -> Self {
        Self::Socket(socket, String::new())
    }
}

/// The result of a stream that has ended.
#[derive(Debug)]
pub struct StreamEnd {
    /// Payload bytes from the backend into the tunnel.
    pub into_tunnel: u64,
    /// Payload bytes from the tunnel to the backend.
    pub out_of_tunnel: u64,
    /// The time from the request to the end.
    pub duration: Duration,
    /// Ok if both directions ended, otherwise the first failure.
    pub result: Result<(), StreamError>,
}

/// Why a stream failed.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The backend could not be reached, or is not allowed.
    #[error("{}", .0.message)]
    Dial(DialFailure),
    /// The relay failed.
    #[error("relay")]
    Relay(#[source] RelayError),
}

/// Settings of the agent's end of a tunnel.
#[derive(Clone, Debug)]
pub struct AgentTunnel {
    /// Bytes that one stream may have in flight from the proxy.
    pub stream_window: u32,
    /// Streams relayed at once in this tunnel; more are answered with `TOO_MANY_STREAMS`.
    pub max_streams: u32,
    /// Streams that this tunnel carries in all before it is [worn
    /// out](AgentTunnelState::worn_out), usually [`crate::STREAMS_IN_LIFE`].
    pub streams_in_life: u32,
    /// The memory for data that waits for backends, [of](Budget::of) this tunnel's proxy.
    pub budget: Budget,
    /// The streams of all tunnels of this agent that a proxy may move between them, if `describe`
    /// says that it `moves`.
    pub movable: MovableStreams,
    /// The answer to `Describe`, which also sets how long the tunnel may be silent.
    pub describe: DescribeResponse,
}

impl AgentTunnel {
    /// Serves the proxy at the other end of `io` until the connection ends. When `drain` completes,
    /// a GOAWAY tells the proxy to open no more streams, and open streams may end.
    ///
    /// # Errors
    /// The connection ended without a drain.
    pub async fn serve<T, B>(
        &self,
        io: T,
        socket_state: SocketState,
        state: AgentTunnelState,
        backends: Arc<B>,
        drain: impl Future<Output = ()>,
    ) -> Result<(), TunnelError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
        B: Backends,
    {
        let io = Gate::new(io, socket_state.clone(), self.budget.clone());
        let handshake = self.builder().handshake::<_, Payload>(io);
        let handshake = timeout(http2::HANDSHAKE_TIMEOUT, handshake).await;
        let mut connection = http2::established(handshake)?;
        let pings = connection.ping_pong().expect("taken once");
        let mut death = std::pin::pin!(self.peer_death(pings, socket_state.clone(), &state));
        let mut drain = std::pin::pin!(drain);
        let mut draining = false;
        let mut calls = Calls::new(self.clone(), state, backends);
        let ended = loop {
            tokio::select! {
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => calls.start(request, respond),
                    Some(Err(error)) => break Err(error.into()),
                    None if draining => break Ok(()),
                    None => break Err(TunnelError::Closed),
                },
                () = calls.one_ends() => {}
                silent = &mut death => break Err(TunnelError::PeerSilent(silent)),
                () = &mut drain, if !draining => {
                    draining = true;
                    connection.graceful_shutdown();
                }
            }
        };
        // Without its connection every stream fails by itself and reports its end.
        drop(connection);
        calls.end().await;
        ended.map_err(|error: TunnelError| error.on(&socket_state))
    }

    fn peer_death(
        &self,
        pings: PingPong,
        socket_state: SocketState,
        state: &AgentTunnelState,
    ) -> impl Future<Output = Duration> + use<> {
        let keepalive = Keepalive::of(self.describe.keepalive_seconds, socket_state);
        http2::peer_death(pings, state.round_trip_handle(), keepalive, Role::Agent)
    }

    fn builder(&self) -> h2::server::Builder {
        let mut builder = h2::server::Builder::new();
        builder
            .initial_connection_window_size(http2::CONNECTION_WINDOW)
            .initial_window_size(http2::initial_window(self.stream_window))
            .max_frame_size(FRAME_SIZE)
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
