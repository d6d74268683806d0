//! HTTP/1.1 CONNECT, on a Unix socket or over mutual TLS.
//!
//! The destination is the request's target, never its Host header: kube-apiserver always sets that
//! to 127.0.0.1.

mod bridge;
pub(crate) mod request;
mod response;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use culvert_daemon::{Drain, LogBudget, Worker, chain};
use culvert_tunnel::{Close, Detached, RelayError, Socket};
use rustls::ServerConfig;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use crate::clients::direct::{self, Direct, DirectTarget, Reason};
use crate::directory::Destination;
use crate::sockets::strangers::{HandshakePermit, handshake};
use crate::streams::error::RouteError;
use crate::streams::limits::ClientKind;
use crate::streams::live::{Frontend, StreamRecord};
use crate::streams::route::Router;
use crate::streams::routed::RoutedClient;
use request::{BadRequest, HEAD_MAX};

/// The time limit for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a TLS client that takes none of the last bytes is given up.
const STALLED: Duration = Duration::from_secs(300);
/// Bytes that are read from a client before its backend has answered. Further bytes wait in its
/// socket.
const PIPELINED_MAX: usize = 64 << 10;

/// Serves CONNECT requests, one for each connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Connect {
    pub(crate) router: Router,
    /// Destinations without a tunnel.
    pub(crate) direct: Direct,
    pub(crate) drain: Drain,
    /// Limits the log lines that clients can cause.
    pub(crate) refusals: Arc<LogBudget>,
}

impl Connect {
    /// Serves a client of the Unix socket. A stream to a node gets its own task among
    /// `connections`.
    pub(crate) async fn serve_unix(self, client: UnixStream, connections: TaskTracker) {
        let name = peer_name(&client);
        let socket = Socket::from(client);
        let served = match self.plan(&socket, Frontend::ConnectSocket, name).await {
            Ok(Plan::Node(mut request)) => socket
                .detach()
                .map(|socket| {
                    let worker = request.worker();
                    connections
                        .spawn_on(async move { request.serve(socket).await }, worker.handle());
                })
                .map_err(RelayError::Socket),
            Ok(Plan::Direct(request)) => Box::pin(self.serve_direct(socket, request)).await,
            Ok(Plan::Answer(response)) => answer(&socket, &response).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "CONNECT on the Unix socket");
        }
    }

    /// Serves a client of the mutual TLS port. The client takes `permit` until it has shown its
    /// certificate.
    pub(crate) async fn serve_tls(
        self,
        tls: Arc<ServerConfig>,
        client: TcpStream,
        address: SocketAddr,
        mut permit: HandshakePermit,
    ) {
        if let Err(error) = culvert_tunnel::tune_relayed(&client) {
            tracing::debug!(%error, "tune a socket");
        }
        let watch = match watch(&client) {
            Ok(watch) => watch,
            Err(error) => return self.refused(&address, &error),
        };
        let evicted = permit.evicted();
        let accepted = tokio::select! {
            accepted = handshake(client, tls, &mut permit) => accepted,
            () = evicted.cancelled() => return,
            () = self.drain.begun() => return,
        };
        drop(permit);
        match accepted {
            // Boxed, because few clients take this path, and every other client would need the
            // memory too.
            Ok(tls) => Box::pin(self.bridge(tls, watch, address)).await,
            Err(error) => self.refused(&address, &error),
        }
    }

    /// Logs one line, unless there were many recently.
    pub(crate) fn refused(&self, client: &dyn std::fmt::Display, error: &dyn std::error::Error) {
        if let Some(suppressed) = self.refusals.spend() {
            tracing::warn!(
                client.addr = %client,
                reason = chain(error),
                suppressed,
                "CONNECT refused"
            );
        }
    }

    /// Serves the content of a TLS connection through a pair of Unix sockets. `watch` is the socket
    /// below TLS.
    async fn bridge(&self, tls: TlsStream<TcpStream>, watch: Socket, address: SocketAddr) {
        // If the connection ends before all bytes are sent, it is reset, without close_notify.
        watch.on_close(Close::Reset);
        let (near, far) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => return self.refused(&address, &error),
        };
        let served = self.serve_inside(near.into(), address.to_string());
        match bridge::bridge(served, tls, far, &watch, STALLED).await {
            Ok(()) => watch.on_close(Close::Finish),
            Err(error) => {
                tracing::debug!(
                    client.addr = %address,
                    reason = chain(&error),
                    "CONNECT over TLS was cut"
                )
            }
        }
    }

    /// Serves the content of a TLS connection until its end.
    async fn serve_inside(&self, socket: Socket, name: String) -> Result<(), RelayError> {
        match self.plan(&socket, Frontend::ConnectTls, name).await? {
            Plan::Node(mut request) => {
                let socket = socket.detach().map_err(RelayError::Socket)?;
                let worker = request.worker();
                // The thread ends with the process; only then is there an error.
                let served = worker.run(async move { request.serve(socket).await }).await;
                served.unwrap_or_else(|ended| Err(RelayError::Socket(io::Error::other(ended))))
            }
            // Boxed, because few destinations need no tunnel, and every other client would need the
            // memory too.
            Plan::Direct(request) => Box::pin(self.serve_direct(socket, request)).await,
            Plan::Answer(response) => answer(&socket, &response).await,
        }
    }

    /// Reads a client's request and decides what to do with it. `name` identifies the client in the
    /// log.
    ///
    /// # Errors
    ///
    /// The client left before its request was complete, or the proxy drains.
    async fn plan(
        &self,
        socket: &Socket,
        frontend: Frontend,
        name: String,
    ) -> Result<Plan, RelayError> {
        let request = tokio::select! {
            request = self.request(socket) => request,
            () = self.drain.begun() => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
        };
        match request {
            Ok((destination, pipelined)) => Ok(self.decide(destination, pipelined, frontend, name)),
            Err(RequestError::Bad(bad)) => {
                self.refused(&name, &bad);
                Ok(Plan::Answer(response::bad_request(&bad)))
            }
            Err(RequestError::Client(error)) => Err(RelayError::Socket(error)),
        }
    }

    fn decide(
        &self,
        destination: Destination,
        pipelined: BytesMut,
        frontend: Frontend,
        name: String,
    ) -> Plan {
        let mut record = self.router.begin(frontend, name, &destination);
        let error = match self.router.route(destination.clone()) {
            Ok(route) => {
                let client = ClientKind::Connect;
                let routed = RoutedClient::new(self.router.clone(), route, client, record);
                return Plan::Node(NodeRequest { routed, pipelined });
            }
            Err(error) => error,
        };
        if let Some(target) = self.direct.target(&destination, &error) {
            return Plan::Direct(DirectRequest {
                target,
                pipelined,
                record,
            });
        }
        let error = RouteError::from(error);
        record.not_routed(&error);
        Plan::Answer(response::refusal(&error))
    }

    /// Serves a client whose destination needs no tunnel.
    async fn serve_direct(
        &self,
        socket: Socket,
        mut request: DirectRequest,
    ) -> Result<(), RelayError> {
        let DirectRequest {
            target,
            pipelined,
            record,
        } = &mut request;
        record.direct();
        if let Reason::CloudNode(node) = &target.reason {
            record.routed_to(node);
        }
        let dialled = tokio::select! {
            dialled = self.direct.dial(target) => dialled,
            () = client_left(&socket, pipelined) => return Ok(()),
        };
        match dialled {
            Ok(backend) => {
                answer(&socket, response::ESTABLISHED).await?;
                let pipelined = std::mem::take(pipelined).freeze();
                let result = direct::relay(socket, backend, pipelined, record.transferred()).await;
                record.relayed(&result);
                result
            }
            Err(error) => {
                record.not_routed(&error);
                answer(&socket, &response::refusal(&error)).await
            }
        }
    }

    /// Reads a request's head: the destination, and the bytes that the client sent after it.
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
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                        return Err(error.into());
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        };
        timeout(HEAD_TIMEOUT, head)
            .await
            .unwrap_or(Err(RequestError::Bad(BadRequest::TimedOut)))
    }
}

/// The decision about a request.
enum Plan {
    Node(NodeRequest),
    Direct(DirectRequest),
    /// The client gets this answer, and no connection.
    Answer(Vec<u8>),
}

/// A request for a connection that the proxy dials itself.
struct DirectRequest {
    target: DirectTarget,
    /// The bytes that the client sent after the request.
    pipelined: BytesMut,
    record: StreamRecord,
}

/// A request for a node. It is served on the thread of the tunnel that its stream will take.
struct NodeRequest {
    routed: RoutedClient,
    /// The bytes that the client sent after the request.
    pipelined: BytesMut,
}

impl NodeRequest {
    fn worker(&self) -> Worker {
        self.routed.worker().unwrap_or_else(Worker::current)
    }

    async fn serve(&mut self, socket: Detached) -> Result<(), RelayError> {
        let socket = socket.attach().map_err(|error| {
            tracing::warn!(%error, "CONNECT: too many sockets");
            RelayError::Socket(error)
        })?;
        let opened = tokio::select! {
            opened = self.routed.open(None) => opened,
            () = client_left(&socket, &mut self.pipelined) => return Ok(()),
        };
        match opened {
            Ok(mut stream) => {
                answer(&socket, response::ESTABLISHED).await?;
                let pipelined = std::mem::take(&mut self.pipelined);
                self.routed.relay(&mut stream, &pipelined, &socket).await
            }
            Err(error) => answer(&socket, &response::refusal(&error)).await,
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

/// Keeps the bytes that a client sends before its backend has answered. Completes when the client
/// leaves. A client that has sent bytes and then ended its direction still waits for an answer.
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

/// A second handle of a socket that TLS owns. It shows the socket's failure while TLS waits for
/// something else.
fn watch(client: &TcpStream) -> io::Result<Socket> {
    let second = std::net::TcpStream::from(client.as_fd().try_clone_to_owned()?);
    Ok(TcpStream::from_std(second)?.into())
}

/// The process at the other end of a Unix socket.
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
        let left = timeout(
            Duration::from_millis(200),
            client_left(&near, &mut pipelined),
        )
        .await;
        assert!(left.is_err(), "it has sent bytes: it waits for its answer");
        assert_eq!(&pipelined[..], b"GET /");

        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        timeout(
            Duration::from_secs(5),
            client_left(&near.into(), &mut BytesMut::new()),
        )
        .await
        .expect("has left");
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
