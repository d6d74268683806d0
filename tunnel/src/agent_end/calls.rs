//! The calls of the proxy: `Open` relays a stream, `Resume` relays one of another tunnel, and the
//! others answer at once.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::Request;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::forward::forward;
use super::movable::{ResumableStream, Running};
use super::proxies::{self, PROXIES_MAX_BYTES};
use super::respond::{answer, answer_whole, opened, refuse, reject};
use super::state::StreamPermit;
use super::{AgentTunnel, AgentTunnelState, Backend, Backends, Declined, StreamError};
use crate::budget::outbox::Payload;
use crate::dial_failure::DialFailure;
use crate::error::TunnelError;
use crate::frame;
use crate::grpc;
use crate::proto::tunnel::{
    DialCode, DialRequest, DialResponse, Open, SetProxiesResponse, frame::Kind,
};
use crate::relay::{Incoming, RelayError, SendHalf};

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
    /// Calls since the tunnel began.
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
        let call = Call {
            tunnel: self.tunnel.clone(),
            state: self.state.clone(),
            backends: self.backends.clone(),
            incoming: Incoming::new(request.into_body(), self.tunnel.budget.share()),
            respond,
        };
        self.tasks.spawn(async move {
            // Boxed: a stream that is relayed needs none of it.
            if let Some(relayed) = Box::pin(call.serve(method)).await {
                relayed.run().await;
            }
        });
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
    Resume,
    Describe,
    SetProxies,
    Dial,
    DialProxy,
    Unknown,
}

impl Method {
    fn of(request: &Request<RecvStream>) -> Self {
        match request.uri().path() {
            grpc::OPEN => Self::Open,
            grpc::RESUME => Self::Resume,
            grpc::DIAL => Self::Dial,
            grpc::DIAL_PROXY => Self::DialProxy,
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

/// A stream that is relayed in this tunnel.
struct RelayedStream<B> {
    running: Running,
    permit: StreamPermit,
    backends: Arc<B>,
}

impl<B: Backends> RelayedStream<B> {
    /// Relays to the end, or until another tunnel takes the relay over.
    async fn run(self) {
        let Self {
            running,
            permit,
            backends,
        } = self;
        if let Some(result) = running.run().await {
            let stream = &permit.stream;
            let end = stream.end(result.map_err(StreamError::Relay));
            backends.stream_ended(&stream.open, &end);
        }
    }
}

impl<B: Backends> Call<B> {
    /// Answers the call. Returns the relay if it begins one.
    async fn serve(mut self, method: Method) -> Option<RelayedStream<B>> {
        let served = match method {
            Method::Open => self.open().await,
            Method::Resume => self.resume().await,
            Method::Dial => self.dial_tunnels().await.map(|()| None),
            Method::DialProxy => self.dial_proxy().await.map(|()| None),
            Method::Describe => self.describe().await.map(|()| None),
            Method::SetProxies => self.set_proxies().await.map(|()| None),
            Method::Unknown => {
                let message = "no such method";
                reject(&mut self.respond, grpc::UNIMPLEMENTED, message).map(|()| None)
            }
        };
        match served {
            Ok(relayed) => relayed,
            Err(error) => {
                tracing::debug!(?method, %error, "call failed");
                None
            }
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
        match self.backends.admit_proxy(&request) {
            Ok(()) => {
                let described = self.backends.describe(&self.tunnel.describe);
                answer_whole(&mut self.respond, &described)
            }
            Err(Declined) => reject(
                &mut self.respond,
                grpc::FAILED_PRECONDITION,
                "the agent has enough tunnels to this proxy, or to others",
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
        self.backends.set_proxies(proxies);
        answer_whole(&mut self.respond, &SetProxiesResponse {})
    }

    async fn dial_tunnels(&mut self) -> Result<(), TunnelError> {
        let request = self.first_message(FIRST_MAX).await?;
        let Some(request) = request.and_then(|message| DialRequest::decode(message).ok()) else {
            let message = "not a DialRequest";
            return reject(&mut self.respond, grpc::INVALID_ARGUMENT, message);
        };
        self.backends.request_tunnels(request.count);
        answer_whole(&mut self.respond, &DialResponse {})
    }

    async fn dial_proxy(&mut self) -> Result<(), TunnelError> {
        let request = self.first_message(FIRST_MAX).await?;
        let Some(request) = request.and_then(proxies::dial_request) else {
            let message = "not a DialProxyRequest";
            return reject(&mut self.respond, grpc::INVALID_ARGUMENT, message);
        };
        self.backends.request_tunnels_to(request).await;
        answer_whole(&mut self.respond, &DialResponse {})
    }

    async fn open(mut self) -> Result<Option<RelayedStream<B>>, TunnelError> {
        let Some(open) = self.first_message(FIRST_MAX).await?.and_then(as_open) else {
            let failure = invalid("the first message is not `open`");
            refuse(&mut self.respond, &failure)?;
            return Ok(None);
        };
        let Some(permit) = StreamPermit::acquire(&self.state, self.tunnel.max_streams, open) else {
            let failure = too_many_streams(self.tunnel.max_streams);
            refuse(&mut self.respond, &failure)?;
            discard(&mut self.incoming).await;
            return Ok(None);
        };
        let result = match self.dial(&permit.stream.open).await {
            Ok(Backend::Socket(socket, tried)) => {
                match answer(&mut self.respond, &opened(DialCode::Ok, tried)) {
                    Ok(send) => return Ok(Some(self.relay(socket, send, permit))),
                    Err(error) => Err(StreamError::Relay(error.into())),
                }
            }
            Ok(Backend::Agent(through)) => {
                let incoming = &mut self.incoming;
                let respond = &mut self.respond;
                let forwarded = forward(through, incoming, respond, &permit.stream.transferred);
                Box::pin(forwarded).await
            }
            Err(error) => Err(error),
        };
        let was_refused = matches!(result, Err(StreamError::Dial(_)));
        self.backends
            .stream_ended(&permit.stream.open, &permit.stream.end(result));
        drop(permit);
        if was_refused {
            discard(&mut self.incoming).await;
        }
        Ok(None)
    }

    /// Relays a stream whose backend is connected.
    fn relay(
        self,
        socket: TcpStream,
        send: SendStream<Payload>,
        permit: StreamPermit,
    ) -> RelayedStream<B> {
        let stream = permit.stream.clone();
        let movable = &self.tunnel.movable;
        RelayedStream {
            running: Running::start(stream, socket.into(), send, self.incoming, movable),
            permit,
            backends: self.backends,
        }
    }

    /// Moves a stream of another tunnel into this one.
    async fn resume(mut self) -> Result<Option<RelayedStream<B>>, TunnelError> {
        let first = self.first_message(FIRST_MAX).await?;
        let (status, message) = match self.claim(first) {
            Ok((claimed, permit)) => return self.take_over(claimed, permit).await,
            Err(refused) => refused,
        };
        reject(&mut self.respond, status, message)?;
        Ok(None)
    }

    /// Claims the stream that a first message names, with a permit of this tunnel. The error is the
    /// status and message of the refusal.
    fn claim(
        &self,
        first: Option<Bytes>,
    ) -> Result<(ResumableStream, StreamPermit), (u8, &'static str)> {
        let Some(key) = first.and_then(as_resume) else {
            return Err((grpc::INVALID_ARGUMENT, "the first message is not `resume`"));
        };
        let Some(found) = self.tunnel.movable.find(&key) else {
            return Err((grpc::NOT_FOUND, "no stream has this key"));
        };
        let limit = self.tunnel.max_streams;
        let stream = found.stream().clone();
        let Some(permit) = StreamPermit::acquire_for(&self.state, limit, stream) else {
            let message = "this tunnel has as many streams as it may";
            return Err((grpc::RESOURCE_EXHAUSTED, message));
        };
        if found.relocation().claim().is_err() {
            let message = "the stream moves already, or is about to end";
            return Err((grpc::FAILED_PRECONDITION, message));
        }
        Ok((found, permit))
    }

    /// Continues a stream whose move has begun.
    async fn take_over(
        mut self,
        claimed: ResumableStream,
        permit: StreamPermit,
    ) -> Result<Option<RelayedStream<B>>, TunnelError> {
        let relocation = claimed.relocation();
        let abandoned = scopeguard::guard((), |()| relocation.abandon());
        let stream = self.respond.send_response(grpc::response(), false)?;
        let Some(running) = claimed.take_over().await else {
            return Ok(None);
        };
        scopeguard::ScopeGuard::into_inner(abandoned);
        let budget = self.tunnel.budget.clone();
        relocation.offer(SendHalf { stream, budget }, self.incoming);
        Ok(Some(RelayedStream {
            running,
            permit,
            backends: self.backends,
        }))
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

fn as_resume(message: Bytes) -> Option<Bytes> {
    match frame::first_kind(message) {
        Ok(Kind::Resume(resume)) => Some(resume.key),
        Ok(_) | Err(_) => None,
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
