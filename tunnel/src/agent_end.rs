//! The agent's end of a tunnel: the gRPC server of `culvert.tunnel.v1.Agent` on a connection that
//! the agent dialled.

mod call;
mod state;

use std::sync::Arc;
use std::time::Duration;

use h2::PingPong;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use call::{Call, Method};
pub use state::{AgentTunnelState, LiveStream};

use crate::budget::Budget;
use crate::dial_failure::DialFailure;
use crate::error::TunnelError;
use crate::http2::{self, Keepalive, Pings};
use crate::io::LastRead;
use crate::outbox::Payload;
use crate::proto::tunnel::{DescribeResponse, Open};
use crate::relay::{Incoming, RelayError};

/// How long streams may take to end after their tunnel has.
const LAST_STREAMS: Duration = Duration::from_secs(1);

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

#[cfg(test)]
mod tests;
