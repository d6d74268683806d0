//! The agent port: tunnels and enrolment, distinguished by ALPN.

mod tunnel;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::enroll::enroll_server::EnrollServer;
use culvert_api::{ALPN_ENROLL, ALPN_TUNNEL};
use culvert_daemon::{Drain, LogBudget, Worker, chain};
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::metrics::{AgentOutcome, Metrics};
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::sockets::proxy_protocol::{self, Balancers, HeaderError};
use culvert_proxy_streams::sockets::strangers::{
    Full, HandshakeError, HandshakePermit, Phase, Strangers, handshake,
};
use culvert_proxy_trust::Trust;
use culvert_proxy_trust::identity::IdentityError;
use culvert_tunnel::{Congestion, ProxyTunnel, ReadAhead, TunnelError};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::admissions::Admissions;
use crate::enroll::{ClientAddr, Enroll, PeerChain};
use crate::proxy_list::ProxyList;

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
    /// Decides which node a certificate belongs to.
    pub trust: Trust,
    /// The tunnels.
    pub registry: Registry,
    /// Nodes with a tunnel, and the certificate of each.
    pub admissions: Admissions,
    /// What makes certificates.
    pub enroll: EnrollServer<Enroll>,
    /// Settings of the proxy's end of tunnels.
    pub tunnel: ProxyTunnel,
    /// TCP congestion control of tunnels.
    pub congestion: Congestion,
    /// What is counted.
    pub metrics: Metrics,
    /// Permits of connections that have not shown an identity yet.
    pub strangers: Strangers,
    /// Load balancers, whose connections begin with a PROXY header.
    pub balancers: Balancers,
    /// Identifies this run of the proxy.
    pub instance: Instance,
    /// The addresses that agents receive.
    pub proxies: ProxyList,
    /// Starts when the program is about to end.
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
        let outcome = match self.serve_agent(socket, &mut client).await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.report(client, &error);
                error.outcome()
            }
        };
        self.parts.metrics.agent_connection(outcome);
    }

    /// Logs why a connection ended.
    fn report(&self, client: SocketAddr, error: &AgentError) {
        let reason = chain(error);
        // The service has already reported the outcome of the enrolment. The end of its connection
        // does not matter.
        if matches!(error, AgentError::Enroll(_)) {
            tracing::debug!(client.addr = %client, reason, "enrolment ended");
            return;
        }
        // The agent looked for another proxy behind this address.
        if matches!(error, AgentError::Tunnel(TunnelError::Declined)) {
            tracing::debug!(client.addr = %client, reason, "agent connection");
            return;
        }
        if let Some(suppressed) = self.refusals.spend() {
            let outcome: &str = error.outcome().into();
            tracing::warn!(client.addr = %client, outcome, reason, suppressed, "agent connection");
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
        let (socket, permit) = entered?;
        self.serve_entered(socket, *client, permit).await
    }

    async fn serve_entered(
        &self,
        socket: TcpStream,
        client: SocketAddr,
        mut permit: HandshakePermit,
    ) -> Result<AgentOutcome, AgentError> {
        let evicted = permit.evicted();
        // Boxed: an idle tunnel would keep the space that it takes.
        let handshake = tokio::select! {
            handshake = Box::pin(self.handshake(socket, &mut permit)) => handshake,
            () = evicted.cancelled() => return Err(AgentError::Evicted),
            () = self.parts.drain.leaving() => return Ok(AgentOutcome::Drained),
        };
        let tls = handshake?;
        let chain = client_certificates(&tls);
        match tls.get_ref().1.alpn_protocol() {
            Some(ALPN_TUNNEL) => {
                self.serve_tunnel(tls, chain, client, permit).await?;
                Ok(AgentOutcome::TunnelEnded)
            }
            Some(ALPN_ENROLL) => {
                permit.start_call().await?;
                tokio::select! {
                    enrolled = self.serve_enrolment(tls, chain, client) => enrolled?,
                    () = evicted.cancelled() => return Err(AgentError::Evicted),
                }
                Ok(AgentOutcome::Enrolled)
            }
            _ => Err(AgentError::NoProtocol),
        }
    }

    /// Enters a new connection among those that have not shown who they are.
    async fn enter(
        &self,
        socket: std::net::TcpStream,
        client: &mut SocketAddr,
    ) -> Result<(TcpStream, HandshakePermit), AgentError> {
        if self.parts.balancers.contain(client.ip()) {
            let socket = TcpStream::from_std(socket).map_err(AgentError::Socket)?;
            return self.enter_balanced(socket, client).await;
        }
        let has_spoken = matches!(socket.peek(&mut [0]), Ok(1..));
        let socket = TcpStream::from_std(socket).map_err(AgentError::Socket)?;
        // A connection that has already sent bytes does not wait for a permit behind the silent
        // ones.
        if has_spoken && let Ok(permit) = self.parts.strangers.enter(client.ip(), Phase::Handshake)
        {
            return Ok((socket, permit));
        }
        let permit = self.permit(&socket, client.ip())?;
        Ok((socket, permit))
    }

    /// Behind a balancer the permit is first one of the balancer's address, for the short time of
    /// the header, and then one of the client's.
    async fn enter_balanced(
        &self,
        mut socket: TcpStream,
        client: &mut SocketAddr,
    ) -> Result<(TcpStream, HandshakePermit), AgentError> {
        let permit = self.permit(&socket, client.ip())?;
        let evicted = permit.evicted();
        let header = tokio::select! {
            header = proxy_protocol::client(&mut socket) => header?,
            () = evicted.cancelled() => return Err(AgentError::Evicted),
        };
        let Some(real) = header else {
            return Ok((socket, permit));
        };
        *client = real;
        let permit = self.permit(&socket, real.ip())?;
        Ok((socket, permit))
    }

    /// A permit for a connection that has sent nothing. Without one the client learns to try later.
    fn permit(&self, socket: &TcpStream, client: IpAddr) -> Result<HandshakePermit, AgentError> {
        match self.parts.strangers.enter(client, Phase::Silent) {
            Ok(permit) => Ok(permit),
            Err(full) => {
                self.parts.strangers.turn_away(socket, client);
                Err(full.into())
            }
        }
    }

    async fn handshake(
        &self,
        socket: TcpStream,
        permit: &mut HandshakePermit,
    ) -> Result<Tls, AgentError> {
        culvert_tunnel::tune(&socket).map_err(AgentError::Socket)?;
        self.parts.congestion.set(&socket);
        let io = ReadAhead::new(socket);
        let mut tls = handshake(io, self.parts.trust.server_config(), permit).await?;
        tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        Ok(Box::new(tls))
    }

    async fn serve_enrolment(
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
            () = self.leaving() => return Ok(()),
        };
        match ended {
            Ok(ended) => ended.map_err(AgentError::Enroll),
            Err(_) => Err(AgentError::EnrollTimedOut),
        }
    }

    /// When the proxy leaves, an enrolment in progress has a moment more.
    async fn leaving(&self) {
        self.parts.drain.leaving().await;
        tokio::time::sleep(PARTING).await;
    }
}

/// The certificates that the client showed, its own first.
fn client_certificates(tls: &Tls) -> Vec<CertificateDer<'static>> {
    let mut chain = Vec::new();
    for certificate in tls.get_ref().1.peer_certificates().unwrap_or_default() {
        chain.push(certificate.clone().into_owned());
    }
    chain
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
