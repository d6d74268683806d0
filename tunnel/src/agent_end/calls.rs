//! The calls of the proxy: `Open` relays a stream, `Describe` and `SetProxies` answer at once.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::forward::forward;
use super::proxies::{self, PROXIES_MAX_BYTES};
use super::respond::{answer, answer_whole, opened, refuse, reject};
use super::state::StreamPermit;
use super::{AgentTunnel, AgentTunnelState, Backend, Backends, Declined, LiveStream, StreamError};
use crate::budget::outbox::Payload;
use crate::dial_failure::DialFailure;
use crate::error::TunnelError;
use crate::frame;
use crate::grpc;
use crate::proto::tunnel::{DialCode, Open, SetProxiesResponse, frame::Kind};
use crate::relay::{self, Incoming, RelayError};
use crate::role::Role;
use crate::socket::Socket;

/// A stream whose first message does not arrive in this time is reset.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest first message: a version in `Describe`, an address and the original destination in
/// `Open`.
const FIRST_MAX: usize = 4096;
/// Streams may take this long to end after their tunnel.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The calls under way in a tunnel, each in a task.
pub(super) struct Calls<B> {
    tunnel: Arc<AgentTunnel>,
    state: AgentTunnelState,
    backends: Arc<B>,
    tasks: JoinSet<()>,
    /// Calls in the whole life of the tunnel.
    started: u32,
}

impl<B: Backends> Calls<B> {
    pub(super) fn new(tunnel: AgentTunnel, state: AgentTunnelState, backends: Arc<B>) -> Self {
        let tunnel = Arc::new(tunnel);
        let tasks = JoinSet::new();
        Self {
            tunnel,
            state,
            backends,
            tasks,
            started: 0,
        }
    }

    pub(super) fn start(&mut self, request: Request<RecvStream>, respond: SendResponse<Payload>) {
        let method = Method::of(&request);
        let mut call = Call {
            tunnel: self.tunnel.clone(),
            state: self.state.clone(),
            backends: self.backends.clone(),
            incoming: Incoming::new(request.into_body(), self.tunnel.budget.share()),
            respond,
        };
        self.tasks.spawn(async move { call.serve(method).await });
        self.started = self.started.saturating_add(1);
        if self.started == self.tunnel.streams_in_life {
            self.state.wear_out();
        }
    }

    /// Waits until a call has ended.
    pub(super) async fn one_ends(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending().await
        }
    }

    /// Waits until all calls have ended. A call that takes too long is dropped, which resets its
    /// stream.
    pub(super) async fn end(mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        timeout(END_TIMEOUT, all).await.ok();
    }
}

#[derive(Clone, Copy, Debug)]
enum Method {
    Open,
    Describe,
    SetProxies,
    Unknown,
}

impl Method {
    fn of(request: &Request<RecvStream>) -> Self {
        match request.uri().path() {
            grpc::OPEN => Self::Open,
            grpc::DESCRIBE => Self::Describe,
            grpc::SET_PROXIES => Self::SetProxies,
            _ => Self::Unknown,
        }
    }
}

/// One call of the proxy.
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
            Method::SetProxies => self.set_proxies().await,
            Method::Unknown => reject(&mut self.respond, grpc::UNIMPLEMENTED, "no such method"),
        };
        if let Err(error) = served {
            tracing::debug!(?method, %error, "call failed");
        }
    }

    /// The first message of the proxy, of at most `max` bytes; `None` if it is invalid.
    async fn first_message(&mut self, max: usize) -> Result<Option<Bytes>, TunnelError> {
        let first = timeout(OPEN_TIMEOUT, self.incoming.first_message(max)).await;
        Ok(first.map_err(|_| TunnelError::HandshakeTimedOut)?.ok())
    }

    async fn describe(&mut self) -> Result<(), TunnelError> {
        let request = self.first_message(FIRST_MAX).await?;
        let Some(request) = request.and_then(proxies::introduction) else {
            return reject(
                &mut self.respond,
                grpc::INVALID_ARGUMENT,
                "not a DescribeRequest",
            );
        };
        tracing::debug!(
            proxy.version = request.version,
            proxy.instance = request.instance,
            "described"
        );
        match self.backends.introduced(&request) {
            Ok(()) => {
                let described = self.backends.described(&self.tunnel.describe);
                answer_whole(&mut self.respond, &described)
            }
            Err(Declined) => reject(
                &mut self.respond,
                grpc::FAILED_PRECONDITION,
                "the agent has tunnels enough to this proxy, or to others",
            ),
        }
    }

    async fn set_proxies(&mut self) -> Result<(), TunnelError> {
        let request = self.first_message(PROXIES_MAX_BYTES).await?;
        let Some(proxies) = request.and_then(proxies::proxies) else {
            return reject(
                &mut self.respond,
                grpc::INVALID_ARGUMENT,
                "not a SetProxiesRequest, or more than an agent takes",
            );
        };
        self.backends.proxies_told(proxies);
        answer_whole(&mut self.respond, &SetProxiesResponse {})
    }

    async fn open(&mut self) -> Result<(), TunnelError> {
        let Some(open) = self.first_message(FIRST_MAX).await?.and_then(as_open) else {
            return refuse(
                &mut self.respond,
                &invalid("the first message is not `open`"),
            );
        };
        let Some(permit) = StreamPermit::acquire(&self.state, self.tunnel.max_streams, open) else {
            refuse(
                &mut self.respond,
                &too_many_streams(self.tunnel.max_streams),
            )?;
            discard(&mut self.incoming).await;
            return Ok(());
        };
        let result = self.dial_and_relay(&permit.stream).await;
        let was_refused = matches!(result, Err(StreamError::Dial(_)));
        self.backends
            .stream_ended(&permit.stream.open, &permit.stream.end(result));
        drop(permit);
        if was_refused {
            discard(&mut self.incoming).await;
        }
        Ok(())
    }

    async fn dial_and_relay(&mut self, stream: &LiveStream) -> Result<(), StreamError> {
        // Boxed: this future is as large as a relay's, and its result would take space beside it.
        let (socket, tried) = match Box::pin(self.dial(&stream.open)).await? {
            Backend::Socket(socket, tried) => (Socket::from(socket), tried),
            Backend::Agent(through) => {
                let incoming = &mut self.incoming;
                let respond = &mut self.respond;
                let forwarded = forward(through, incoming, respond, &stream.transferred);
                return Box::pin(forwarded).await;
            }
        };
        let mut send = answer(&mut self.respond, &opened(DialCode::Ok, tried))
            .map_err(|error| StreamError::Relay(error.into()))?;
        let relayed = relay::relay(
            &socket,
            &mut send,
            &mut self.incoming,
            Role::Agent,
            &stream.transferred,
        );
        relayed.await.map_err(StreamError::Relay)
    }

    /// Dials the backend, unless the client leaves first. A failure is answered.
    async fn dial(&mut self, open: &Open) -> Result<Backend, StreamError> {
        let dialled = tokio::select! {
            dialled = self.backends.dial(open) => dialled,
            left = std::future::poll_fn(|context| self.respond.poll_reset(context)) => {
                let left = match left {
                    Ok(reason) => RelayError::Reset(reason),
                    Err(error) => RelayError::from(error),
                };
                return Err(StreamError::Relay(left));
            }
            ended = self.incoming.gather() => return Err(StreamError::Relay(ended)),
        };
        dialled.map_err(|failure| {
            // The dial has failed, whether or not the answer can be sent.
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

/// Reads what follows a refusal, because the client may send until the proxy has received it. On a
/// dropped stream that data would count as an error of the proxy ([`crate::http2::LOCAL_ERRORS`]).
///
/// Boxed: few streams get here, and the future of every stream would be larger.
fn discard(incoming: &mut Incoming) -> Pin<Box<impl Future<Output = ()>>> {
    Box::pin(async {
        timeout(OPEN_TIMEOUT, incoming.discard())
            .await
            .unwrap_or_default()
    })
}

#[cfg(test)]
mod tests;
