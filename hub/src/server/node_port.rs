//! The node port: TLS with an optional client certificate, HTTP/1.1 with upgrades, and HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::Drain;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::Hub;
use super::identity::NodeCertificates;
use crate::crypto::provider;
use crate::upstream::Body;

/// From an accepted connection to the end of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Of a request's head, and between two requests of HTTP/1.1.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_HEAD: usize = 64 << 10;
/// Kubelet, kube-proxy, the CNI and pods of the host's network have some ten each.
const MAX_CONNECTIONS: usize = 1024;
/// Pause after a failed accept, as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A client that vanished is noticed after three times as long.
const PING: Duration = Duration::from_secs(30);
/// Kubelet has a watch for each secret and config map of its pods, on one connection.
const MAX_STREAMS: u32 = 2000;

/// The bound port.
pub(crate) struct NodePort {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    certificates: Arc<NodeCertificates>,
}

impl NodePort {
    /// Takes the port.
    ///
    /// # Errors
    /// The address is taken, or the certificate cannot be used.
    pub(crate) async fn bind(
        address: SocketAddr,
        serving: Arc<CertifiedKey>,
        certificates: Arc<NodeCertificates>,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("bind the node port {address}"))?;
        let serving: Arc<dyn ResolvesServerCert> = Arc::new(SingleCertAndKey::from(serving));
        let mut tls = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(certificates.clone())
            .with_cert_resolver(serving);
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            listener,
            acceptor: TlsAcceptor::from(Arc::new(tls)),
            certificates,
        })
    }

    /// The bound address; tests bind port 0.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr> {
        self.listener
            .local_addr()
            .context("read the node port's address")
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
                Ok((stream, _)) => {
                    let connection = Connection {
                        hub: hub.clone(),
                        certificates: self.certificates.clone(),
                        drain: drain.clone(),
                    };
                    connections.spawn(connection.serve(self.acceptor.clone(), stream));
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

struct Connection {
    hub: Arc<Hub>,
    certificates: Arc<NodeCertificates>,
    drain: Drain,
}

impl Connection {
    async fn serve(self, acceptor: TlsAcceptor, stream: TcpStream) {
        // Without it, small answers would only be later.
        stream.set_nodelay(true).ok();
        let stream = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "handshake of a client"),
            Err(_) => return tracing::debug!("a client did not complete its handshake"),
        };
        let (_, session) = stream.get_ref();
        let is_node = session
            .peer_certificates()
            .and_then(|chain| chain.first())
            .is_some_and(|leaf| self.certificates.is_node(leaf));
        let http2 = session.alpn_protocol() == Some(b"h2");
        let ended = if http2 {
            self.serve_http2(stream, is_node).await
        } else {
            self.serve_http1(stream, is_node).await
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a client's connection ended");
        }
    }

    async fn serve_http1(
        &self,
        stream: TlsStream<TcpStream>,
        is_node: bool,
    ) -> Result<(), hyper::Error> {
        let hub = self.hub.clone();
        let service = service_fn(move |request| answer(hub.clone(), is_node, request));
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD);
        let mut served = std::pin::pin!(
            server
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
        );
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = self.drain.begun() => served.as_mut().graceful_shutdown(),
        }
        served.await
    }

    async fn serve_http2(
        &self,
        stream: TlsStream<TcpStream>,
        is_node: bool,
    ) -> Result<(), hyper::Error> {
        let hub = self.hub.clone();
        let service = service_fn(move |request| answer(hub.clone(), is_node, request));
        let ended = CancellationToken::new();
        let _streams_end_with_their_connection = ended.clone().drop_guard();
        let mut server = http2::Builder::new(Streams { ended });
        server
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(2 * PING)
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX));
        let mut served = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = self.drain.begun() => served.as_mut().graceful_shutdown(),
        }
        served.await
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

fn answer(hub: Arc<Hub>, is_node: bool, request: Request<Incoming>) -> Answering {
    Box::pin(async move { Ok(hub.answer(is_node, request).await) })
}

/// Runs the streams of one HTTP/2 connection.
#[derive(Clone)]
struct Streams {
    ended: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let ended = self.ended.clone();
        hyper::rt::Executor::execute(&TokioExecutor::new(), async move {
            ended.run_until_cancelled(stream).await;
        });
    }
}
