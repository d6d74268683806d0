//! The agent port: tunnels and enrolment, distinguished by ALPN.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::enroll::enroll_server::EnrollServer;
use culvert_api::{ALPN_ENROLL, ALPN_TUNNEL, NodeName, REFUSED};
use culvert_daemon::{Drain, LogBudget, VERSION, Worker, chain};
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::metrics::{AgentOutcome, Metrics};
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::registry::{Registration, Registry};
use culvert_proxy_streams::sockets::proxy_protocol::{self, Balancers, HeaderError};
use culvert_proxy_streams::sockets::strangers::{
    Full, HandshakeError, HandshakePermit, Phase, Strangers, handshake,
};
use culvert_proxy_trust::Trust;
use culvert_proxy_trust::identity::{Credential, IdentityError, Purpose};
use culvert_tunnel::proto::tunnel::DescribeRequest;
use culvert_tunnel::{
    Congestion, Driver, ProxyTunnel, ReadAhead, SocketState, Tunnel, TunnelError,
};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::admissions::Admissions;
use crate::enroll::{ClientAddr, Enroll, PeerChain};
use crate::proxy_list::ProxyList;

/// The time in which a refused agent can read the reason.
const TELL_TIMEOUT: Duration = Duration::from_secs(10);
/// When the proxy drains: the time for an enrolment in progress, and for a tunnel's last bytes.
const PARTING: Duration = Duration::from_secs(1);
/// An enrolment is one short call.
const ENROLL_TIMEOUT: Duration = Duration::from_secs(30);
/// gRPC's own headers fit.
const ENROLL_HEADER_LIST: u32 = 8 << 10;
/// Capacity for TLS records that wait to be written: several HTTP/2 frames go out in one write.
const TLS_BUFFER: usize = 256 << 10;

/// Boxed, because it is large and moves through several futures.
type Tls = Box<TlsStream<ReadAhead<TcpStream>>>;

/// Serves the agent port. Clones share it.
#[derive(Clone)]
pub struct Agents {
    parts: Arc<Parts>,
    refusals: Arc<LogBudget>,
}

/// What the agent port needs.
pub struct Parts {
    /// Who is who.
    pub trust: Trust,
    /// The tunnels.
    pub registry: Registry,
    /// Who has a tunnel, and by which certificate.
    pub admissions: Admissions,
    /// What makes certificates.
    pub enroll: EnrollServer<Enroll>,
    /// The near end of tunnels.
    pub tunnel: ProxyTunnel,
    /// Of tunnels' TCP connections.
    pub congestion: Congestion,
    /// What is counted.
    pub metrics: Metrics,
    /// The permits of those who have not said who they are.
    pub strangers: Strangers,
    /// Whose connections begin with a PROXY header.
    pub balancers: Balancers,
    /// Of this run of the proxy.
    pub instance: Instance,
    /// The addresses that agents receive.
    pub proxies: ProxyList,
    /// Begins when the program is about to end.
    pub drain: Drain,
    /// Everything that clients still need tunnels for.
    pub clients: TaskTracker,
    /// All streams, also those of other proxies' clients.
    pub streams: Streams,
}

#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error("too many connections have not shown who they are yet")]
    Busy,
    #[error("its place went to a newer connection before it had shown who it is")]
    Evicted,
    #[error("prepare the socket")]
    Socket(#[source] io::Error),
    #[error("the balancer's connection is not one of a client")]
    Balancer(#[from] HeaderError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("neither a tunnel nor an enrolment: the ALPN protocol is missing")]
    NoProtocol,
    #[error("identity refused")]
    Identity(#[source] IdentityError),
    #[error("the tunnel's certificate ended")]
    Void(#[source] IdentityError),
    #[error("tunnel")]
    Tunnel(#[source] TunnelError),
    #[error("enrolment")]
    Enroll(#[source] hyper::Error),
    #[error("enrolment took too long")]
    EnrollTimedOut,
}

impl From<Full> for AgentError {
    fn from(_: Full) -> Self {
        Self::Busy
    }
}

impl AgentError {
    fn outcome(&self) -> AgentOutcome {
        match self {
            Self::Busy | Self::Handshake(HandshakeError::Busy) => AgentOutcome::Busy,
            Self::Evicted => AgentOutcome::Evicted,
            Self::Balancer(_) => AgentOutcome::HeaderRefused,
            Self::Socket(_) | Self::Handshake(_) | Self::NoProtocol => {
                AgentOutcome::HandshakeFailed
            }
            Self::Identity(_) => AgentOutcome::IdentityRefused,
            Self::Void(_) => AgentOutcome::CertificateEnded,
            Self::Tunnel(TunnelError::Declined) => AgentOutcome::Declined,
            Self::Tunnel(_) => AgentOutcome::TunnelFailed,
            Self::Enroll(_) | Self::EnrollTimedOut => AgentOutcome::EnrollFailed,
        }
    }
}

impl Agents {
    /// The port, which serves what [`Self::serve`] is given.
    pub fn new(parts: Parts) -> Self {
        Self {
            parts: Arc::new(parts),
            refusals: Arc::default(),
        }
    }

    /// Starts to serve one connection on `worker`, where it stays.
    pub fn serve(
        &self,
        worker: &Worker,
        (socket, client): (TcpStream, SocketAddr),
        connections: &TaskTracker,
    ) {
        match socket.into_std() {
            Ok(socket) => {
                connections.spawn_on(self.clone().serve_detached(socket, client), worker.handle());
            }
            Err(error) => {
                tracing::warn!(client.addr = %client, %error, "the socket cannot be moved")
            }
        }
    }

    /// Serves one connection to its end.
    async fn serve_detached(self, socket: std::net::TcpStream, peer: SocketAddr) {
        let mut client = peer;
        match self.serve_agent(socket, &mut client).await {
            Ok(outcome) => self.parts.metrics.agent_connection(outcome),
            // The service has already reported the outcome of the enrolment. The end of its
            // connection does not matter.
            Err(error @ AgentError::Enroll(_)) => {
                tracing::debug!(client.addr = %client, reason = chain(&error), "enrolment ended");
                self.parts.metrics.agent_connection(error.outcome());
            }
            // The agent looked for another proxy behind this address.
            Err(error @ AgentError::Tunnel(TunnelError::Declined)) => {
                tracing::debug!(client.addr = %client, reason = chain(&error), "agent connection");
                self.parts.metrics.agent_connection(error.outcome());
            }
            Err(error) => {
                if let Some(suppressed) = self.refusals.spend() {
                    let outcome: &str = error.outcome().into();
                    tracing::warn!(
                        client.addr = %client,
                        outcome,
                        reason = chain(&error),
                        suppressed,
                        "agent connection"
                    );
                }
                self.parts.metrics.agent_connection(error.outcome());
            }
        }
    }

    /// `client` is the balancer's address until the client's own is known.
    async fn serve_agent(
        &self,
        socket: std::net::TcpStream,
        client: &mut SocketAddr,
    ) -> Result<AgentOutcome, AgentError> {
        let entered = tokio::select! {
            entered = self.enter(socket, client) => entered,
            () = self.parts.drain.begun() => return Ok(AgentOutcome::Drained),
        };
        let (socket, mut permit) = entered?;
        let client = *client;
        let evicted = permit.evicted();
        // Boxed: an idle tunnel would keep the space that it takes.
        let handshake = tokio::select! {
            handshake = Box::pin(self.handshake(socket, &mut permit)) => handshake,
            () = evicted.cancelled() => return Err(AgentError::Evicted),
            () = self.parts.drain.leaving() => return Ok(AgentOutcome::Drained),
        };
        let (tls, socket_state) = handshake?;
        let (_, session) = tls.get_ref();
        let certificates = session.peer_certificates().unwrap_or_default();
        let chain: Vec<_> = certificates
            .iter()
            .map(|der| der.clone().into_owned())
            .collect();
        match session.alpn_protocol() {
            Some(ALPN_TUNNEL) => self
                .tunnel(tls, socket_state, chain, client, permit)
                .await
                .map(|()| AgentOutcome::TunnelEnded),
            Some(ALPN_ENROLL) => {
                permit.call().await?;
                tokio::select! {
                    enrolled = self.enroll(tls, chain, client) => enrolled.map(|()| AgentOutcome::Enrolled),
                    () = evicted.cancelled() => Err(AgentError::Evicted),
                }
            }
            _ => Err(AgentError::NoProtocol),
        }
    }

    /// Takes a permit for a new connection. Behind a balancer it is first one of the balancer's
    /// address, for the short time of the header, and then one of the client's.
    async fn enter(
        &self,
        socket: std::net::TcpStream,
        client: &mut SocketAddr,
    ) -> Result<(TcpStream, HandshakePermit), AgentError> {
        let is_balanced = self.parts.balancers.contain(client.ip());
        // A connection that has already sent bytes does not wait for a permit behind the silent
        // ones.
        let has_spoken = !is_balanced && socket.peek(&mut [0]).is_ok_and(|count| count > 0);
        let mut socket = TcpStream::from_std(socket).map_err(AgentError::Socket)?;
        let strangers = &self.parts.strangers;
        let enter = |phase| strangers.enter(client.ip(), phase);
        let entered = if has_spoken {
            enter(Phase::Handshake).or_else(|_| enter(Phase::Silent))
        } else {
            enter(Phase::Silent)
        };
        let permit = entered.inspect_err(|_| strangers.turn_away(&socket, client.ip()))?;
        if !is_balanced {
            return Ok((socket, permit));
        }
        let evicted = permit.evicted();
        let read = tokio::select! {
            read = proxy_protocol::client(&mut socket) => read?,
            () = evicted.cancelled() => return Err(AgentError::Evicted),
        };
        let Some(real) = read else {
            return Ok((socket, permit));
        };
        *client = real;
        let permit = strangers
            .enter(real.ip(), Phase::Silent)
            .inspect_err(|_| strangers.turn_away(&socket, real.ip()))?;
        Ok((socket, permit))
    }

    async fn handshake(
        &self,
        socket: TcpStream,
        permit: &mut HandshakePermit,
    ) -> Result<(Tls, SocketState), AgentError> {
        culvert_tunnel::tune(&socket).map_err(AgentError::Socket)?;
        self.parts.congestion.set(&socket);
        let io = ReadAhead::new(socket);
        let socket_state = io.socket_state();
        let mut tls = handshake(io, self.parts.trust.server_config(), permit).await?;
        tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        Ok((Box::new(tls), socket_state))
    }

    /// The roles are reversed here: the proxy becomes the client of the agent.
    async fn tunnel(
        &self,
        tls: Tls,
        socket_state: SocketState,
        chain: Vec<CertificateDer<'static>>,
        client: SocketAddr,
        mut permit: HandshakePermit,
    ) -> Result<(), AgentError> {
        let node = match self.identify(&chain) {
            Ok(credential) => credential.node,
            Err(refused) => {
                self.note_refusal(&refused);
                return Err(tell(tls, refused).await);
            }
        };
        permit.call().await?;
        let evicted = permit.evicted();
        let established = tokio::select! {
            established = self.establish(&node, tls, socket_state) => established,
            () = evicted.cancelled() => return Err(AgentError::Evicted),
        };
        let (tunnel, driver) = established.map_err(AgentError::Tunnel)?;
        let mut driven = std::pin::pin!(driver.run());
        let request = DescribeRequest {
            version: VERSION.to_owned(),
            instance: self.parts.instance.to_string(),
        };
        let described = tokio::select! {
            described = tunnel.describe(&request) => described.map_err(AgentError::Tunnel)?,
            ended = &mut driven => return ended.map_err(AgentError::Tunnel),
            () = evicted.cancelled() => return Err(AgentError::Evicted),
        };
        drop(permit);
        self.parts.strangers.proven(client.ip());
        let registration = self
            .parts
            .registry
            .register(node.clone(), tunnel, described, client);
        self.keep(&node, chain, registration, client, driven).await
    }

    /// Drives a registered tunnel of `node` until it ends or must be closed.
    async fn keep(
        &self,
        node: &NodeName,
        chain: Vec<CertificateDer<'static>>,
        registration: Registration,
        client: SocketAddr,
        mut driven: Pin<&mut impl Future<Output = Result<(), TunnelError>>>,
    ) -> Result<(), AgentError> {
        let told = self.parts.proxies.clone();
        let told = told.tell(registration.tunnel().clone());
        // The node may have been removed since, when this tunnel was not yet registered and could
        // not be closed.
        let mut admission = self.parts.admissions.add(self.identify(&chain)?);
        // An idle tunnel holds what it needs and no more.
        drop(chain);
        let generation = registration.generation();
        tracing::info!(
            %node,
            tunnel = generation,
            client.addr = %client,
            agent_version = registration.agent_version(),
            "tunnel up"
        );
        let ended = tokio::select! {
            ended = &mut driven => ended.map_err(AgentError::Tunnel),
            () = registration.closed() => Ok(()),
            void = admission.void() => Err(AgentError::Void(void)),
            never = told => match never {},
            () = self.drained() => {
                // The tunnel has no users left. It closes after all pending data is sent.
                drop(registration);
                timeout(PARTING, &mut driven).await.unwrap_or(Ok(())).map_err(AgentError::Tunnel)
            }
        };
        let reason = why_down(&ended, &self.parts.drain);
        tracing::info!(%node, tunnel = generation, reason, "tunnel down");
        self.parts.registry.history().ended(node, reason);
        ended
    }

    /// Pending data for the node's clients, and for the node itself, counts against the node's
    /// share of the budget.
    async fn establish(
        &self,
        node: &NodeName,
        tls: Tls,
        socket_state: SocketState,
    ) -> Result<(Tunnel, Driver<Tls>), TunnelError> {
        let tunnel = ProxyTunnel {
            budget: self.parts.tunnel.budget.of(node.as_str()),
            ..self.parts.tunnel.clone()
        };
        tunnel.establish(tls, socket_state).await
    }

    /// Records the refusal, so that operators see why the node is offline. A client with a forged
    /// certificate does not get this far.
    fn note_refusal(&self, refused: &AgentError) {
        if let AgentError::Identity(error) = refused
            && let Some(node) = error.node()
        {
            self.parts
                .registry
                .history()
                .refused(node, error.to_string());
        }
    }

    fn identify(&self, chain: &[CertificateDer<'static>]) -> Result<Credential, AgentError> {
        self.parts
            .trust
            .identify(chain, Purpose::Tunnel)
            .map_err(AgentError::Identity)
    }

    /// When the proxy drains, its tunnels stay open until no client needs them.
    async fn drained(&self) {
        self.parts.drain.begun().await;
        self.parts.clients.close();
        self.parts.clients.wait().await;
        self.parts.streams.idle().await;
    }

    async fn enroll(
        &self,
        tls: Tls,
        chain: Vec<CertificateDer<'static>>,
        client: SocketAddr,
    ) -> Result<(), AgentError> {
        let enroll = self.parts.enroll.clone().map_request(
            move |mut request: http::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(PeerChain(chain.clone()));
                request.extensions_mut().insert(ClientAddr(client));
                request
            },
        );
        let mut server = http2::Builder::new(TokioExecutor::new());
        server
            .timer(TokioTimer::new())
            .max_concurrent_streams(1)
            .max_header_list_size(ENROLL_HEADER_LIST);
        let served = server.serve_connection(TokioIo::new(tls), TowerToHyperService::new(enroll));
        let ended = tokio::select! {
            ended = timeout(ENROLL_TIMEOUT, served) => ended,
            () = async { self.parts.drain.leaving().await; tokio::time::sleep(PARTING).await } => return Ok(()),
        };
        ended
            .map_err(|_| AgentError::EnrollTimedOut)?
            .map_err(AgentError::Enroll)
    }
}

/// The reason why a tunnel ended, for the log and the history.
fn why_down(ended: &Result<(), AgentError>, drain: &Drain) -> String {
    match ended {
        Ok(()) if drain.has_begun() => "the proxy drained".to_owned(),
        Ok(()) => "its agent left, or the proxy closed it: the node was removed or had too many \
            tunnels"
            .to_owned(),
        Err(AgentError::Tunnel(error)) if is_cut(error) => {
            "its connection was cut without a word: the agent was killed, or something on the way \
             gave up; the log of the agent says which"
                .to_owned()
        }
        Err(AgentError::Tunnel(error)) => chain(error),
        Err(error) => chain(error),
    }
}

fn is_cut(error: &TunnelError) -> bool {
    match error {
        TunnelError::Http2(error) => error.get_io().map(io::Error::kind).is_some_and(|kind| {
            // The kind depends on whether the last operation was a read or a write.
            matches!(
                kind,
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
            )
        }),
        TunnelError::HandshakeTimedOut
        | TunnelError::Unacknowledged
        | TunnelError::LargePacketsLost
        | TunnelError::Closed
        | TunnelError::Declined
        | TunnelError::PeerSilent(_)
        | TunnelError::Call(_) => false,
    }
}

/// Sends the reason of a refusal in place of the first line of HTTP/2. Without it the agent could
/// not report what to fix.
async fn tell(mut tls: Tls, refused: AgentError) -> AgentError {
    let line = format!("{REFUSED}{}\n", chain(&refused));
    let told = async {
        tls.write_all(line.as_bytes()).await?;
        tls.shutdown().await
    };
    if !matches!(timeout(TELL_TIMEOUT, told).await, Ok(Ok(()))) {
        tracing::debug!("a refused agent was gone before it was told");
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// Thousands of idle tunnels end at a proxy, and each keeps its task.
    #[test]
    fn the_task_of_a_tunnel_is_small() {
        let size = size_of_future(Agents::serve_detached);
        assert!((1024..=4352).contains(&size), "{size} bytes");
    }
}
