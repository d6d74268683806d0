//! HTTP/1.1 CONNECT: clients that know of the proxy, on a Unix socket or over mutual TLS.
//!
//! The destination is the request's target, never its Host header, which kube-apiserver sets to 127.0.0.1 whatever it dials.

pub(crate) mod request;
mod response;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use culvert_daemon::{Drain, Worker};
use culvert_tunnel::{Close, Detached, RelayError, Socket};
use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use crate::direct::{self, Direct, DirectTarget, Reason};
use crate::directory::{Destination, Target};
use crate::listen;
use crate::route::{RouteError, Router};
use crate::strangers::Place;
use crate::streams::{Frontend, StreamRecord, Streams};
use request::{BadRequest, HEAD_MAX};

/// A request whose head takes longer is given up.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A TLS handshake that takes longer is given up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last bytes may take to get out of TLS.
const PARTING: Duration = Duration::from_secs(10);
/// Bytes taken from a client before its backend has answered; more wait in its socket.
const PIPELINED_MAX: usize = 64 << 10;

/// Serves CONNECT requests, one a connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Connect {
    pub(crate) router: Router,
    /// What needs no tunnel.
    pub(crate) direct: Direct,
    pub(crate) streams: Streams,
    pub(crate) drain: Drain,
}

impl Connect {
    /// Serves a client of the Unix socket; a stream to a node gets a task of its own among `connections`.
    pub(crate) async fn serve_unix(self, client: UnixStream, connections: TaskTracker) {
        let name = peer_name(&client);
        match self.route(client.into(), Frontend::ConnectSocket, name).await {
            // How that ends is told by its record.
            Ok(Some((worker, mut request, socket))) => {
                connections.spawn_on(async move { request.serve(socket).await }, worker.handle());
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "CONNECT on the Unix socket"),
        }
    }

    /// Serves a client of the mutual TLS port, which takes `place` until it has shown its certificate.
    pub(crate) async fn serve_tls(self, tls: Arc<ServerConfig>, client: TcpStream, address: SocketAddr, place: Place) {
        if let Err(error) = listen::tune(&client) {
            tracing::debug!(%error, "tune a socket");
        }
        let watch = match watch(&client) {
            Ok(watch) => watch,
            Err(error) => return tracing::warn!(%error, "CONNECT: no descriptors left"),
        };
        let accepted = tokio::select! {
            accepted = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(client)) => accepted,
            () = self.drain.begun() => return,
        };
        drop(place);
        match accepted {
            // Boxed: few clients come this way, and all others would pay for the size.
            Ok(Ok(tls)) => Box::pin(self.bridge(tls, watch, address)).await,
            Ok(Err(error)) => tracing::warn!(client.addr = %address, %error, "CONNECT: TLS handshake failed"),
            Err(_) => tracing::warn!(client.addr = %address, "CONNECT: TLS handshake timed out"),
        }
    }

    /// Serves the inside of a TLS connection through a pair of Unix sockets. `watch` is the socket below TLS.
    async fn bridge(&self, mut tls: TlsStream<TcpStream>, watch: Socket, address: SocketAddr) {
        let (near, mut far) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => return tracing::warn!(%error, "CONNECT: no descriptors left"),
        };
        let served = async {
            let copied =
                async { tokio::io::copy_bidirectional(&mut tls, &mut far).await.map(drop).map_err(RelayError::Socket) };
            let mut copied = std::pin::pin!(copied);
            tokio::select! {
                biased;
                served = self.serve_whole(near.into(), address.to_string()) => served?,
                copied = &mut copied => return copied,
                failed = watch.failure() => return Err(RelayError::Socket(failed)),
            }
            // What was said last still has to get out.
            timeout(PARTING, copied).await.unwrap_or(Ok(()))
        };
        let served = served.await;
        if served.is_err() {
            // What came through may not be all: no close_notify, and RST.
            watch.on_close(Close::Reset);
        } else if let Ok(Err(error)) | Err(error) = timeout(PARTING, tls.shutdown()).await.map_err(io::Error::from) {
            tracing::debug!(%error, "close TLS");
        }
    }

    /// Serves the inside of a TLS connection to its end.
    async fn serve_whole(&self, socket: Socket, name: String) -> Result<(), RelayError> {
        let routed = self.route(socket, Frontend::ConnectTls, name).await?;
        let Some((worker, mut request, socket)) = routed else { return Ok(()) };
        let served = worker.run(async move { request.serve(socket).await });
        // An error here means that the thread ends, with the process.
        served.await.unwrap_or_else(|ended| Err(RelayError::Socket(io::Error::other(ended))))
    }

    /// Finds where the request of a client leads whose name for the log is `name`. To a node: then it is to be served on that thread.
    /// Otherwise it is served here, or its refusal answered. An error is a connection cut short.
    async fn route(
        &self,
        socket: Socket,
        frontend: Frontend,
        name: String,
    ) -> Result<Option<(Worker, Request, Detached)>, RelayError> {
        let request = tokio::select! {
            request = self.request(&socket) => request,
            () = self.drain.begun() => return Ok(None),
        };
        let (destination, pipelined) = match request {
            Ok(request) => request,
            Err(RequestError::Client(error)) => return Err(RelayError::Socket(error)),
            Err(RequestError::Bad(bad)) => {
                tracing::warn!(client.addr = name, %bad, "CONNECT refused");
                return answer(&socket, &response::bad_request(&bad)).await.map(|()| None);
            }
        };
        let number = self.router.number();
        let mut record = self.streams.begin(number, frontend, name, destination.clone());
        let target = match self.router.resolve(&destination) {
            Ok(target) => target,
            Err(error) => {
                if let Some(target) = self.direct.target(&destination, &error) {
                    // Boxed, as clients of TLS are.
                    return Box::pin(self.serve_direct(socket, pipelined, &target, record)).await.map(|()| None);
                }
                let error = RouteError::from(error);
                record.not_routed(&error);
                return answer(&socket, &response::refusal(&error)).await.map(|()| None);
            }
        };
        record.routed_to(&target.node);
        let worker = self.router.worker(&target.node).unwrap_or_else(Worker::current);
        let socket = socket.detach().map_err(RelayError::Socket)?;
        let router = self.router.clone();
        Ok(Some((worker, Request { router, destination, target, number, pipelined, record }, socket)))
    }

    /// Serves a client whose destination needs no tunnel.
    async fn serve_direct(
        &self,
        socket: Socket,
        mut pipelined: BytesMut,
        target: &DirectTarget,
        mut record: StreamRecord,
    ) -> Result<(), RelayError> {
        record.direct();
        if let Reason::CloudNode(node) = &target.reason {
            record.routed_to(node);
        }
        let dialled = tokio::select! {
            dialled = self.direct.dial(target) => dialled,
            () = client_left(&socket, &mut pipelined) => return Ok(()),
        };
        match dialled {
            Ok(backend) => {
                answer(&socket, response::ESTABLISHED).await?;
                let result = direct::relay(socket, backend, pipelined.freeze(), record.transferred()).await;
                record.relayed(&result);
                result
            }
            Err(error) => {
                record.not_routed(&error);
                answer(&socket, &response::refusal(&error)).await
            }
        }
    }

    /// Reads a request's head: where the client wants to go, and the bytes that it sent behind it.
    async fn request(&self, socket: &Socket) -> Result<(Destination, BytesMut), RequestError> {
        let mut buffer = BytesMut::new();
        let head = async {
            loop {
                if let Some((destination, length)) = request::parse(&buffer)? {
                    return Ok((destination, buffer.split_off(length)));
                }
                socket.readable().await?;
                match socket.try_read(&mut (&mut buffer).limit(HEAD_MAX + 1)) {
                    Ok(0) => return Err(RequestError::Client(io::ErrorKind::UnexpectedEof.into())),
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                    Ok(_) | Err(_) => {}
                }
            }
        };
        timeout(HEAD_TIMEOUT, head).await.unwrap_or(Err(RequestError::Bad(BadRequest::TimedOut)))
    }
}

/// A request that leads to a node, to be served on the thread of the tunnel that its stream will take.
struct Request {
    router: Router,
    destination: Destination,
    target: Target,
    number: u64,
    /// What the client sent behind it.
    pipelined: BytesMut,
    record: StreamRecord,
}

impl Request {
    /// By reference: a task that moved what it has in here would keep room for it twice.
    async fn serve(&mut self, socket: Detached) -> Result<(), RelayError> {
        let socket = socket.attach().map_err(|error| {
            tracing::warn!(%error, "CONNECT: no room for another socket");
            RelayError::Socket(error)
        })?;
        let mut opened = tokio::select! {
            opened = self.router.open(&self.target, &self.destination, self.number, None) => opened,
            () = client_left(&socket, &mut self.pipelined) => return Ok(()),
        };
        match &mut opened {
            Ok(stream) => {
                answer(&socket, response::ESTABLISHED).await?;
                let transferred = self.record.transferred();
                stream.send_pipelined(&std::mem::take(&mut self.pipelined), transferred);
                let result = stream.relay(&socket, transferred).await;
                self.record.relayed(&result);
                result
            }
            Err(error) => {
                self.record.not_routed(error);
                answer(&socket, &response::refusal(error)).await
            }
        }
    }
}

#[derive(Debug)]
enum RequestError {
    Client(io::Error),
    Bad(BadRequest),
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        Self::Client(error)
    }
}

impl From<BadRequest> for RequestError {
    fn from(bad: BadRequest) -> Self {
        Self::Bad(bad)
    }
}

async fn answer(socket: &Socket, response: &[u8]) -> Result<(), RelayError> {
    socket.write_all(response).await.map_err(RelayError::Socket)
}

/// Keeps what a client sends before its backend has answered, and completes when the client leaves. One that has sent bytes and
/// then ended its direction waits for an answer.
async fn client_left(socket: &Socket, pipelined: &mut BytesMut) {
    loop {
        if pipelined.len() >= PIPELINED_MAX {
            socket.failure().await;
            return;
        }
        if socket.readable().await.is_err() {
            return;
        }
        let room = PIPELINED_MAX - pipelined.len();
        match socket.try_read(&mut (&mut *pipelined).limit(room)) {
            Ok(0) if pipelined.is_empty() => return,
            Ok(0) => {
                socket.failure().await;
                return;
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            Ok(_) | Err(_) => {}
        }
    }
}

/// A second handle of a socket that TLS owns, to notice its failure while TLS waits for something else.
fn watch(client: &TcpStream) -> io::Result<Socket> {
    let second = std::net::TcpStream::from(client.as_fd().try_clone_to_owned()?);
    Ok(TcpStream::from_std(second)?.into())
}

/// Whose process is at the other end of a Unix socket.
fn peer_name(client: &UnixStream) -> String {
    match client.peer_cred() {
        Ok(peer) => format!("uid {} pid {}", peer.uid(), peer.pid().unwrap_or_default()),
        Err(_) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_behind_the_request_are_kept_and_a_bare_end_is_a_leave() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = Socket::from(near);
        let mut pipelined = BytesMut::from("GET ");
        far.write_all(b"/").await.unwrap();
        far.shutdown().await.unwrap();
        let left = timeout(Duration::from_millis(200), client_left(&near, &mut pipelined)).await;
        assert!(left.is_err(), "it has sent bytes: it waits for its answer");
        assert_eq!(&pipelined[..], b"GET /");

        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        timeout(Duration::from_secs(5), client_left(&near.into(), &mut BytesMut::new())).await.expect("has left");
    }

    #[tokio::test]
    async fn an_answer_arrives_whole() {
        let (near, mut far) = UnixStream::pair().unwrap();
        answer(&near.into(), response::ESTABLISHED).await.unwrap();
        let mut received = String::new();
        far.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "HTTP/1.1 200 Connection Established\r\n\r\n");
    }
}
