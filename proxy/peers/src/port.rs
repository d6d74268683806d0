//! The peer port: other proxies watch this proxy's tunnels there, and open streams in them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::{ALPN_PEER, ALPN_TUNNEL};
use culvert_daemon::{LogBudget, VERSION, Worker, chain};
use culvert_proxy_streams::sockets::strangers::{
    DEFAULT_HANDSHAKES, Full, HandshakeError, Phase, Strangers, handshake, say_busy,
};
use culvert_proxy_trust::TrustError;
use culvert_tunnel::proto::tunnel::DescribeResponse;
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, MovableStreams, PEER_KEEPALIVE, ReadAhead, STREAMS_IN_LIFE,
    SocketState, TunnelError,
};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::backends::PeerBackends;
use super::calls::{Calls, Services};
use super::{Peers, STREAMS_PER_LINK};

/// A peer that watches is pinged after this time of silence, and given up after as long again.
const PING_AFTER: Duration = Duration::from_secs(4);
/// Capacity for TLS records that wait to be written: several HTTP/2 frames go out in one write.
const TLS_BUFFER: usize = 256 << 10;
/// Calls of one peer at once: it watches, and passes on what its operators and agents ask.
const MAX_CALLS: u32 = 32;
/// When the proxy drains: the time for a peer's last bytes.
const PARTING: Duration = Duration::from_secs(1);

type Tls = TlsStream<ReadAhead<TcpStream>>;

/// Serves the peer port. Clones share it.
#[derive(Clone)]
pub struct PeerPort {
    peers: Arc<Peers>,
    services: Services,
    strangers: Strangers,
    refusals: Arc<LogBudget>,
}

#[derive(Debug, thiserror::Error)]
enum PeerError {
    #[error(transparent)]
    Busy(#[from] Full),
    #[error("its place went to a newer connection before it had shown who it is")]
    Evicted,
    #[error("prepare the socket")]
    Socket(#[source] io::Error),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("its certificate is not a proxy's of this installation, or it is no proxy")]
    NoProtocol,
    #[error("streams of a peer")]
    Streams(#[source] TunnelError),
    #[error("a peer that watches")]
    Watch(#[source] hyper::Error),
}

impl PeerPort {
    /// `calls` are what peers may ask of this proxy.
    pub fn new(peers: Arc<Peers>, calls: Calls) -> Self {
        Self {
            services: Services::new(peers.clone(), calls),
            peers,
            strangers: Strangers::new(DEFAULT_HANDSHAKES),
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
                connections.spawn_on(self.clone().serve_logged(socket, client), worker.handle());
            }
            Err(error) => {
                tracing::warn!(peer.addr = %client, %error, "the socket cannot be moved")
            }
        }
    }

    async fn serve_logged(self, socket: std::net::TcpStream, client: SocketAddr) {
        match self.serve_one(socket, client).await {
            Ok(()) => {}
            Err(error @ (PeerError::Streams(_) | PeerError::Watch(_))) => {
                tracing::debug!(peer.addr = %client, reason = chain(&error), "peer connection ended");
            }
            Err(error) => {
                if let Some(suppressed) = self.refusals.spend() {
                    let reason = chain(&error);
                    tracing::warn!(peer.addr = %client, reason, suppressed, "peer refused");
                }
            }
        }
    }

    async fn serve_one(
        &self,
        socket: std::net::TcpStream,
        client: SocketAddr,
    ) -> Result<(), PeerError> {
        let socket = TcpStream::from_std(socket).map_err(PeerError::Socket)?;
        let mut permit = self
            .strangers
            .enter(client.ip(), Phase::Silent)
            .inspect_err(|_| say_busy(&socket))?;
        culvert_tunnel::tune(&socket).map_err(PeerError::Socket)?;
        let io = ReadAhead::new(socket);
        let socket_state = io.socket_state();
        let config = self.peers.trust.peer_server_config()?;
        let evicted = permit.evicted();
        let mut tls = tokio::select! {
            tls = handshake(io, config, &mut permit) => tls?,
            () = evicted.cancelled() => return Err(PeerError::Evicted),
            () = self.peers.drain.begun() => return Ok(()),
        };
        drop(permit);
        tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        match tls.get_ref().1.alpn_protocol() {
            Some(ALPN_TUNNEL) => self.streams(tls, socket_state, client).await,
            Some(ALPN_PEER) => self.watch(tls).await,
            _ => Err(PeerError::NoProtocol),
        }
    }

    /// Serves the streams of a link.
    async fn streams(
        &self,
        tls: Tls,
        socket_state: SocketState,
        client: SocketAddr,
    ) -> Result<(), PeerError> {
        let peers = &self.peers;
        let tunnel = AgentTunnel {
            stream_window: peers.stream_window,
            max_streams: STREAMS_PER_LINK,
            streams_in_life: STREAMS_IN_LIFE,
            budget: peers.budget.of(&client.ip().to_string()),
            movable: MovableStreams::default(),
            describe: DescribeResponse {
                version: VERSION.to_owned(),
                instance: peers.own.instance.to_string(),
                keepalive_seconds: PEER_KEEPALIVE,
                ..DescribeResponse::default()
            },
        };
        let backends = Arc::new(PeerBackends::new(peers.clone(), client));
        let state = AgentTunnelState::default();
        let served = tunnel.serve(tls, socket_state, state, backends, self.drained());
        Box::pin(served).await.map_err(PeerError::Streams)
    }

    /// Serves a peer that watches and calls.
    async fn watch(&self, tls: Tls) -> Result<(), PeerError> {
        let mut server = http2::Builder::new(TokioExecutor::new());
        server
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_AFTER)
            .max_concurrent_streams(MAX_CALLS);
        let service = self.services.clone();
        let served = server.serve_connection(TokioIo::new(tls), TowerToHyperService::new(service));
        let mut served = std::pin::pin!(served);
        tokio::select! {
            ended = &mut served => ended,
            () = self.drained() => {
                served.as_mut().graceful_shutdown();
                timeout(PARTING, served).await.unwrap_or(Ok(()))
            }
        }
        .map_err(PeerError::Watch)
    }

    /// When the proxy drains, peers use it until no client needs it.
    async fn drained(&self) {
        self.peers.drain.begun().await;
        self.peers.streams.idle().await;
    }
}
