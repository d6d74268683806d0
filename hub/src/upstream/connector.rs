//! Connections to the API server: TCP, then TLS end to end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Authority;
#[cfg(test)]
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::link::Observation;
use super::watcher::{HeardStream, LinkWatch};

/// For TCP and TLS each. A satellite link needs some 0.6 s a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Sent bytes that nobody acknowledges for this long end a connection, as silence does.
const UNACKNOWLEDGED: Duration = Duration::from_secs(18);
const KEEPALIVE: Duration = Duration::from_secs(6);
/// Two TLS records. rustls itself reads 4 KiB at a time, which a long list notices.
const READ_BUFFER: usize = 32 << 10;
/// Of an https address without one.
const HTTPS_PORT: u16 = 443;

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
    host: Arc<str>,
    port: u16,
    authority: Authority,
    name: ServerName<'static>,
    tls: TlsConnector,
    link: LinkWatch,
}

impl Connector {
    /// `server` is an https address with a host.
    pub(crate) fn new(
        server: &Uri,
        tls: &ClientConfig,
        protocols: Protocols,
        link: LinkWatch,
    ) -> io::Result<Self> {
        let authority = server.authority().ok_or(io::ErrorKind::InvalidInput)?;
        let host = authority.host();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut tls = tls.clone();
        tls.alpn_protocols = protocols.alpn();
        Ok(Self {
            host: host.into(),
            port: authority.port_u16().unwrap_or(HTTPS_PORT),
            authority: authority.clone(),
            name: ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
            tls: TlsConnector::from(Arc::new(tls)),
            link,
        })
    }

    /// Connects. A failure counts against the link.
    pub(crate) async fn connect(self) -> io::Result<CloudStream> {
        let link = self.link.clone();
        self.dial().await.inspect_err(|error| {
            link.observe(Observation::TryFailed, &format!("connect: {error}"));
        })
    }

    /// Connects; the caller reports a failure to the link.
    pub(crate) async fn dial(self) -> io::Result<CloudStream> {
        let tcp = TcpStream::connect((&*self.host, self.port));
        let tcp = timeout(CONNECT_TIMEOUT, tcp).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, "no TCP connection within 3 s")
        })??;
        tcp.set_nodelay(true)?;
        let socket = SockRef::from(&tcp);
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE),
        )?;
        let heard = BufReader::with_capacity(READ_BUFFER, self.link.listen_on(tcp));
        let tls = self.tls.connect(self.name, heard);
        let tls = timeout(CONNECT_TIMEOUT, tls)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no TLS within 3 s"))??;
        Ok(CloudStream {
            stream: TokioIo::new(tls),
            authority: self.authority,
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
        Box::pin(self.clone().connect())
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
