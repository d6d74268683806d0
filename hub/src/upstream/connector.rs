//! Connections to the API server: TCP, then TLS end to end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(test)]
use http::Uri;
use http::uri::Authority;
#[cfg(test)]
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::link::Observation;
use super::servers::{Server, Servers, first_server};
use super::watcher::{HeardStream, LinkWatch};

/// A satellite link needs some 0.6 s a round trip.
const TLS_TIMEOUT: Duration = Duration::from_secs(3);
/// Sent bytes that are not acknowledged for this long end a connection, as silence does.
const UNACKNOWLEDGED: Duration = Duration::from_secs(18);
const KEEPALIVE: Duration = Duration::from_secs(6);
/// Two TLS records. rustls itself reads 4 KiB at a time, which a long list notices.
const READ_BUFFER: usize = 32 << 10;

/// Which HTTP a connection may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocols {
    Http2OrHttp1,
    /// Upgrades exist only there.
    Http1,
}

impl Protocols {
    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http2OrHttp1 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Self::Http1 => vec![b"http/1.1".to_vec()],
        }
    }
}

/// Makes connections with one credential.
#[derive(Clone)]
pub(crate) struct Connector {
    servers: Arc<Servers>,
    tls: TlsConnector,
    link: LinkWatch,
}

impl Connector {
    pub(crate) fn new(
        servers: Arc<Servers>,
        tls: &ClientConfig,
        protocols: Protocols,
        link: LinkWatch,
    ) -> Self {
        let mut tls = tls.clone();
        tls.alpn_protocols = protocols.alpn();
        Self {
            servers,
            tls: TlsConnector::from(Arc::new(tls)),
            link,
        }
    }

    /// Connects. A failure counts against the link.
    pub(crate) async fn connect(self) -> io::Result<CloudStream> {
        self.dial().await.inspect_err(|error| {
            let link = &self.link;
            link.observe(Observation::TryFailed, &format!("connect: {error}"));
        })
    }

    /// Connects to the first server that answers; the caller reports a failure to the link.
    pub(crate) async fn dial(&self) -> io::Result<CloudStream> {
        let servers = self.servers.in_order();
        let mut attempts = Vec::new();
        for server in &servers {
            attempts.push(self.dial_server(server));
        }
        let stream = first_server(attempts).await?;
        for server in servers {
            let is_reached = server.authority == stream.authority;
            if is_reached {
                server.record_answer();
            } else {
                server.record_failure();
            }
            if is_reached {
                break;
            }
        }
        Ok(stream)
    }

    /// Connects to this server.
    pub(crate) async fn dial_server(&self, server: &Server) -> io::Result<CloudStream> {
        let mut addresses = server.addresses().await?;
        loop {
            let tcp = server.connect(&addresses).await?;
            let address = tcp.peer_addr()?;
            match self.secure(server, tcp).await {
                Ok(stream) => {
                    server.worked(address);
                    return Ok(stream);
                }
                Err(error) => {
                    addresses.retain(|it| *it != address);
                    if addresses.is_empty() {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn secure(&self, server: &Server, mut tcp: TcpStream) -> io::Result<CloudStream> {
        server.go_through(&mut tcp).await?;
        tcp.set_nodelay(true)?;
        let socket = SockRef::from(&tcp);
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE),
        )?;
        let heard = BufReader::with_capacity(READ_BUFFER, self.link.listen_on(tcp));
        let tls = self.tls.connect(server.name.clone(), heard);
        let tls = timeout(TLS_TIMEOUT, tls)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no TLS within 3 s"))??;
        Ok(CloudStream {
            stream: TokioIo::new(tls),
            authority: server.authority.clone(),
        })
    }

    /// The link that its failures count against.
    pub(crate) fn link(&self) -> &LinkWatch {
        &self.link
    }
}

#[cfg(test)]
impl tower_service::Service<Uri> for Connector {
    type Response = CloudStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<CloudStream>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _server: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await })
    }
}

/// A connection to the API server.
pub(crate) struct CloudStream {
    stream: TokioIo<TlsStream<BufReader<HeardStream<TcpStream>>>>,
    authority: Authority,
}

impl CloudStream {
    /// Host and port of the API server that was reached.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Whether both ends have chosen HTTP/2.
    pub(crate) fn speaks_http2(&self) -> bool {
        let (_, session) = self.stream.inner().get_ref();
        session.alpn_protocol() == Some(b"h2")
    }
}

#[cfg(test)]
impl Connection for CloudStream {
    fn connected(&self) -> Connected {
        if self.speaks_http2() {
            Connected::new().negotiated_h2()
        } else {
            Connected::new()
        }
    }
}

impl hyper::rt::Read for CloudStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for CloudStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        hyper::rt::Write::is_write_vectored(&self.stream)
    }
}
