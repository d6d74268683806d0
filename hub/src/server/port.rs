//! The ports of programs of the node and of its pods: TLS, HTTP/1.1 with upgrades, and HTTP/2.
//!
//! On the kubelet port a client may show a certificate. On a pod port none is asked for, so none can
//! be believed: a bearer token is the only proof there.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::{Drain, Permit, Quota};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::server::{Acceptor, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};
use tokio_util::sync::CancellationToken;

use super::Peer;
use super::control_frames::ControlFrames;
use super::open_streams::OpenStreams;
use super::read_turns::ReadTurns;
use super::unread::Reading;
use crate::crypto::provider;
use crate::guests::Guest;
use crate::hub::Hub;
use crate::identity::NodeCertificates;
use crate::upstream::Body;

/// From an accepted connection to the end of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// What a connection of HTTP/2 without a stream has to end after it was told to.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for a request's head, between two requests of HTTP/1.1, and without a stream of
/// HTTP/2. The node itself may be silent for longer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_HEAD_OF_NODE: usize = 64 << 10;
/// Of others: a token has some 1 KiB.
pub(crate) const MAX_HEAD: usize = 16 << 10;
/// Connections of one port. Kubelet, kube-proxy, the CNI and pods of the host's network have some
/// ten each, and a node has some 110 pods.
const MAX_CONNECTIONS: usize = 1024;
/// Connections of one pod, those in their handshake included.
const MAX_CONNECTIONS_OF_POD: usize = 64;
/// Connections that wait for the accept loop.
const BACKLOG: i32 = 256;
/// Pause after a failed accept, as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A client that vanished is noticed after three times as long.
const PING: Duration = Duration::from_secs(30);
/// Kubelet has a watch for each secret and config map of its pods, on one connection.
const MAX_STREAMS_OF_NODE: u32 = 2000;
/// Streams of other clients: as many as an API server allows. For more they open another
/// connection.
const MAX_STREAMS: u32 = 100;
/// How much of a request a client other than the node may send before it is read, and of all
/// requests of its connection: HTTP/2 lets no connection begin with less than 64 KiB.
pub(crate) const UPLOAD_WINDOW: u32 = 16 << 10;
pub(crate) const UPLOADS_WINDOW: u32 = 64 << 10;
/// How much of one answer waits in the connection for a client that does not read.
pub(crate) const SEND_BUFFER: usize = 64 << 10;
/// How much of all answers waits encrypted for a client other than the node.
pub(crate) const TLS_BUFFER: usize = 8 << 10;

/// A bound port.
pub(crate) struct Port {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    /// Which certificates make a client the node. `None`: no client is the node on this port.
    certificates: Option<Arc<NodeCertificates>>,
    connections: Quota<IpAddr>,
}

impl Port {
    /// Binds the kubelet port.
    ///
    /// # Errors
    /// The address is taken, or the certificate cannot be used.
    pub(crate) async fn bind_for_kubelet(
        address: SocketAddr,
        serving: Arc<CertifiedKey>,
        certificates: Arc<NodeCertificates>,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("bind the kubelet port {address}"))?;
        let tls = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(certificates.clone())
            .with_cert_resolver(resolver(serving));
        Ok(Self {
            listener,
            acceptor: acceptor(tls),
            certificates: Some(certificates),
            connections: Quota::new(MAX_CONNECTIONS, MAX_CONNECTIONS),
        })
    }

    /// Binds a pod port. Its address may appear on the host later: an address that is missing must
    /// not keep kubelet from its API.
    ///
    /// # Errors
    /// The address is taken, or the certificate cannot be used.
    pub(crate) fn bind_for_pods(address: SocketAddr, serving: Arc<CertifiedKey>) -> Result<Self> {
        let listener = listen_before_address_exists(address)
            .with_context(|| format!("bind the pod port {address}"))?;
        let tls = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(resolver(serving));
        Ok(Self {
            listener,
            acceptor: acceptor(tls),
            certificates: None,
            connections: Quota::new(MAX_CONNECTIONS_OF_POD, MAX_CONNECTIONS),
        })
    }

    /// The bound address; tests bind port 0.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr> {
        self.listener
            .local_addr()
            .context("read the address of a port")
    }

    /// Serves until the drain has begun and the last request has ended.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub(crate) async fn serve(self, hub: Arc<Hub>, drain: Drain) -> Result<()> {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => accepted,
                Some(_) = connections.join_next(), if connections.len() >= MAX_CONNECTIONS => continue,
                () = drain.begun() => break,
            };
            match accepted {
                Ok((stream, client)) => {
                    let address = client.ip().to_canonical();
                    let Some(permit) = self.connections.acquire(address) else {
                        tracing::debug!(client.addr = %client, "a client has enough connections");
                        continue;
                    };
                    let connection = Connection {
                        hub: hub.clone(),
                        certificates: self.certificates.clone(),
                        address,
                        guest: Arc::new(hub.guests.enter(address)),
                        drain: drain.clone(),
                        permit: ConnectionPermit {
                            _permit: Arc::new(permit),
                        },
                    };
                    connections.spawn(connection.serve_while_placed(self.acceptor.clone(), stream));
                    // It begins before the next one comes, which might take its place.
                    yield_now().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        while connections.join_next().await.is_some() {}
        Ok(())
    }
}

fn resolver(serving: Arc<CertifiedKey>) -> Arc<dyn ResolvesServerCert> {
    Arc::new(SingleCertAndKey::from(serving))
}

fn acceptor(mut tls: ServerConfig) -> TlsAcceptor {
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(tls))
}

/// A packet to any address of a host ends there, whichever interface has it. So the unit adds the
/// address to `lo`, and no device is needed.
fn listen_before_address_exists(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        socket.set_freebind_v6(true)?;
    } else {
        socket.set_freebind_v4(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

struct Connection {
    hub: Arc<Hub>,
    certificates: Option<Arc<NodeCertificates>>,
    address: IpAddr,
    guest: Arc<Guest>,
    drain: Drain,
    permit: ConnectionPermit,
}

/// Counts a connection until it ends. An upgraded one goes on without its server.
#[derive(Clone)]
pub(crate) struct ConnectionPermit {
    _permit: Arc<Permit<IpAddr>>,
}

impl Connection {
    async fn serve_while_placed(self, acceptor: TlsAcceptor, stream: TcpStream) {
        let guest = self.guest.clone();
        tokio::select! {
            () = self.serve(acceptor, stream) => {}
            () = guest.displaced() => tracing::debug!("a newer connection displaced this one"),
        }
    }

    async fn serve(self, acceptor: TlsAcceptor, stream: TcpStream) {
        // If it fails, small answers only come later.
        stream.set_nodelay(true).ok();
        let handshake = handshake(&acceptor, stream, &self.guest);
        let mut stream = match timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "handshake of a client"),
            Err(_) => return tracing::debug!("a client did not complete its handshake"),
        };
        let (_, session) = stream.get_mut();
        let shown = session.peer_certificates().and_then(|chain| chain.first());
        let guest = self.guest.clone();
        let is_node = match (&self.certificates, shown) {
            (Some(certificates), Some(leaf)) => certificates.is_node(leaf),
            (Some(_) | None, Some(_) | None) => false,
        };
        if is_node {
            guest.is_node();
        } else {
            session.set_buffer_limit(Some(TLS_BUFFER));
        }
        let peer = Peer {
            is_node,
            address: self.address,
            guest,
        };
        let http2 = session.alpn_protocol() == Some(b"h2");
        let frames = (http2 && !is_node).then(ControlFrames::default);
        let stream = ReadTurns::new(stream, frames);
        let ended = if http2 {
            self.serve_http2(stream, peer).await
        } else {
            self.serve_http1(stream, peer).await
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a client's connection ended");
        }
    }

    async fn serve_http1(
        &self,
        stream: ReadTurns<TlsStream<TcpStream>>,
        peer: Peer,
    ) -> Result<(), hyper::Error> {
        let hub = self.hub.clone();
        let permit = self.permit.clone();
        let max_head = if peer.is_node {
            MAX_HEAD_OF_NODE
        } else {
            MAX_HEAD
        };
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(permit.clone());
            answer(hub.clone(), peer.clone(), request)
        });
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(max_head);
        let mut served = std::pin::pin!(
            server
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
        );
        let served = async {
            tokio::select! {
                ended = served.as_mut() => return ended,
                () = self.drain.begun() => served.as_mut().graceful_shutdown(),
            }
            served.await
        };
        Reading::default().serve(served).await.unwrap_or(Ok(()))
    }

    async fn serve_http2(
        &self,
        stream: ReadTurns<TlsStream<TcpStream>>,
        peer: Peer,
    ) -> Result<(), hyper::Error> {
        let hub = self.hub.clone();
        let is_node = peer.is_node;
        let service = service_fn(move |request| answer(hub.clone(), peer.clone(), request));
        let ended = CancellationToken::new();
        let _streams_end_with_their_connection = ended.clone().drop_guard();
        let open = OpenStreams::default();
        let streams = Streams {
            ended,
            open: open.clone(),
        };
        let server = if is_node {
            http2_server(streams, MAX_STREAMS_OF_NODE)
        } else {
            let mut server = http2_server(streams, MAX_STREAMS);
            server
                .initial_stream_window_size(UPLOAD_WINDOW)
                .initial_connection_window_size(UPLOADS_WINDOW)
                .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX));
            server
        };
        let mut served = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = open.none_for(HEAD_TIMEOUT), if !is_node => {}
            () = self.drain.begun() => {}
        }
        served.as_mut().graceful_shutdown();
        tokio::select! {
            ended = served => ended,
            // Its client has not finished the preface, does not read, or does not answer.
            () = open.none_for(END_TIMEOUT) => Ok(()),
        }
    }
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    guest: &Guest,
) -> io::Result<TlsStream<TcpStream>> {
    let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    guest.has_begun();
    begun.into_stream(acceptor.config().clone()).await
}

fn http2_server(streams: Streams, max_streams: u32) -> http2::Builder<Streams> {
    let mut server = http2::Builder::new(streams);
    server
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(2 * PING)
        .max_concurrent_streams(max_streams)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(MAX_HEAD_OF_NODE).unwrap_or(u32::MAX));
    server
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

fn answer(hub: Arc<Hub>, peer: Peer, request: Request<Incoming>) -> Answering {
    Box::pin(async move { Ok(hub.answer(peer, request).await) })
}

/// Runs the streams of one HTTP/2 connection.
#[derive(Clone)]
struct Streams {
    ended: CancellationToken,
    open: OpenStreams,
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let ended = self.ended.clone();
        let open = self.open.enter();
        hyper::rt::Executor::execute(&TokioExecutor::new(), async move {
            let _open = open;
            ended
                .run_until_cancelled(Reading::default().serve(stream))
                .await;
        });
    }
}
