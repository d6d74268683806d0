//! HTTP CONNECT: here HTTP/1.1 on a Unix socket, in `tls_port` what clients with a certificate get,
//! and in `user` what users of a cluster get.
//!
//! The destination is the request's target, never its Host header: kube-apiserver always sets that
//! to 127.0.0.1.

mod caller;
mod discovery;
mod framed;
mod http1;
mod http2;
mod open;
pub(crate) mod request;
mod tls_port;
mod user;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use culvert_api::ClaimedUser;
use culvert_daemon::{Drain, LogBudget, Worker, Workers, chain};
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::direct::{self, Direct, DirectTarget, Reason};
use culvert_proxy_streams::error::RouteError;
use culvert_proxy_streams::limits::ClientKind;
use culvert_proxy_streams::live::{Frontend, StreamRecord};
use culvert_proxy_streams::route::Router;
use culvert_proxy_streams::routed::RoutedClient;
use culvert_tunnel::{Detached, RelayError, Socket};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::has_drained;
use crate::http::HEAD_MAX;
use crate::http::response::Refusal;
use request::{BadRequest, Framing};
pub use user::{NotConnected, UserConnection};

/// The time limit for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read from a client before its backend has answered. Further bytes wait in its
/// socket.
const PIPELINED_MAX: usize = 64 << 10;

/// The backend has answered. All following bytes are its own.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// Serves CONNECT requests, one for each connection. Clones share it.
#[derive(Clone)]
pub struct Connect {
    /// What chooses a tunnel.
    pub router: Router,
    /// Destinations without a tunnel.
    pub direct: Direct,
    /// Begins when the program is about to end.
    pub drain: Drain,
    /// The threads of connections that take no tunnel, and of TLS.
    pub workers: Arc<Workers>,
    /// Limits the log lines that clients can cause.
    pub refusals: Arc<LogBudget>,
}

impl Connect {
    /// Serves a client of the Unix socket. What is relayed gets its own task among `connections`, on
    /// another thread.
    pub fn serve_unix(self, client: UnixStream, connections: &TaskTracker) {
        connections.spawn(self.unix_client(client, connections.clone()));
    }

    async fn unix_client(self, client: UnixStream, connections: TaskTracker) {
        let name = peer_name(&client);
        let served = match self.plan(&client, name).await {
            Ok(planned) => self.spawn_planned(client, planned, &connections).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "CONNECT on the Unix socket");
        }
    }

    async fn spawn_planned(
        self,
        client: UnixStream,
        planned: Planned,
        connections: &TaskTracker,
    ) -> Result<(), RelayError> {
        let Planned {
            plan,
            framing,
            pipelined,
        } = planned;
        let plan = match plan {
            Ok(plan) => plan,
            Err(refusal) => return answer(&client.into(), &refusal.render()).await,
        };
        match (plan, framing) {
            (plan, Framing::Http2) => {
                let spawned = self.spawn_framed(client, plan, connections);
                spawned.map_err(RelayError::Socket)
            }
            (Plan::Node(routed), Framing::Raw) => {
                let request = NodeRequest { routed, pipelined };
                request.spawn(client.into(), connections)
            }
            (Plan::Direct(request), Framing::Raw) => {
                self.spawn_direct(client.into(), request, pipelined, connections)
            }
        }
    }

    /// Logs one line, unless there were many recently.
    pub fn report_refusal(&self, client: &dyn std::fmt::Display, error: &dyn std::error::Error) {
        if let Some(suppressed) = self.refusals.spend() {
            tracing::warn!(
                client.addr = %client,
                reason = chain(error),
                suppressed,
                "CONNECT refused"
            );
        }
    }

    /// Reads a client's request and decides what to do with it. `name` identifies the client in the
    /// log.
    ///
    /// # Errors
    ///
    /// The client left before its request was complete, or the proxy drains.
    async fn plan(&self, client: &UnixStream, name: String) -> Result<Planned, RelayError> {
        let request = tokio::select! {
            request = self.request(client) => request,
            () = has_drained(&self.drain) => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
        };
        match request {
            Ok(ParsedRequest {
                destination,
                claimed_user,
                framing,
                pipelined,
            }) => {
                let frontend = Frontend::ConnectSocket;
                let record = self.router.start_record(frontend, name, &destination);
                if let Some(user) = claimed_user {
                    record.set_claimed_user(user);
                }
                let plan = self.decide(destination, record);
                let plan = plan.map_err(|error| Refusal::from(&error));
                Ok(Planned {
                    plan,
                    framing,
                    pipelined,
                })
            }
            Err(RequestError::Bad(bad)) => {
                self.report_refusal(&name, &bad);
                Ok(Planned {
                    plan: Err(Refusal::from(&bad)),
                    framing: Framing::Raw,
                    pipelined: BytesMut::new(),
                })
            }
            Err(RequestError::Client(error)) => Err(RelayError::Socket(error)),
        }
    }

    /// The way to a destination. A failure is already recorded.
    fn decide(
        &self,
        destination: Destination,
        mut record: StreamRecord,
    ) -> Result<Plan, RouteError> {
        let error = match self.router.route(destination.clone()) {
            Ok(route) => {
                let client = ClientKind::Connect;
                let routed = RoutedClient::new(self.router.clone(), route, client, record);
                return Ok(Plan::Node(routed));
            }
            Err(error) => error,
        };
        if let Some(target) = self.direct.target(&destination, &error) {
            return Ok(Plan::Direct(DirectRequest { target, record }));
        }
        let error = RouteError::from(error);
        record.record_refusal(&error);
        Err(error)
    }

    /// Serves a client whose destination needs no tunnel, on a thread of its own choice.
    fn spawn_direct(
        self,
        socket: Socket,
        request: DirectRequest,
        pipelined: BytesMut,
        connections: &TaskTracker,
    ) -> Result<(), RelayError> {
        let socket = socket.detach().map_err(RelayError::Socket)?;
        let worker = self.workers.next();
        let served = self.serve_direct(socket, request, pipelined);
        connections.spawn_on(served, worker.handle());
        Ok(())
    }

    /// Serves a client whose destination needs no tunnel.
    async fn serve_direct(
        self,
        socket: Detached,
        mut request: DirectRequest,
        mut pipelined: BytesMut,
    ) -> Result<(), RelayError> {
        let socket = attach(socket)?;
        let dialled = tokio::select! {
            dialled = request.dial(&self.direct) => dialled,
            () = client_left(&socket, &mut pipelined) => return Ok(()),
        };
        match dialled {
            Ok(backend) => {
                answer(&socket, ESTABLISHED).await?;
                request.relay(socket, backend, pipelined.freeze()).await
            }
            Err(error) => answer(&socket, &Refusal::from(&error).render()).await,
        }
    }

    /// Reads a request's head.
    async fn request(&self, client: &UnixStream) -> Result<ParsedRequest, RequestError> {
        match timeout(HEAD_TIMEOUT, self.whole_request(client)).await {
            Ok(request) => request,
            Err(_elapsed) => Err(RequestError::Bad(BadRequest::TimedOut)),
        }
    }

    async fn whole_request(&self, client: &UnixStream) -> Result<ParsedRequest, RequestError> {
        let mut buffer = BytesMut::new();
        loop {
            if let Some((head, length)) = request::parse(&buffer)? {
                let claimed_user = head.claimed_user().cloned();
                let framing = head.framing();
                let destination = head.destination(self.router.directory())?;
                return Ok(ParsedRequest {
                    destination,
                    claimed_user,
                    framing,
                    pipelined: buffer.split_off(length),
                });
            }
            client.readable().await?;
            match client.try_read_buf(&mut (&mut buffer).limit(HEAD_MAX + 1)) {
                Ok(0) => return Err(RequestError::Client(io::ErrorKind::UnexpectedEof.into())),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(error.into());
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// A request, and the bytes that the client sent after it.
struct ParsedRequest {
    destination: Destination,
    /// Who the client says it is.
    claimed_user: Option<ClaimedUser>,
    framing: Framing,
    pipelined: BytesMut,
}

/// What is to be done, and the bytes that the client sent after its request.
struct Planned {
    plan: Result<Plan, Refusal>,
    framing: Framing,
    pipelined: BytesMut,
}

/// The way to a destination.
enum Plan {
    Node(RoutedClient),
    Direct(DirectRequest),
}

/// A connection that the proxy dials itself.
struct DirectRequest {
    target: DirectTarget,
    record: StreamRecord,
}

impl DirectRequest {
    /// Dials it. A failure is already recorded.
    async fn dial(&mut self, direct: &Direct) -> Result<Socket, RouteError> {
        self.record.mark_direct();
        if let Reason::CloudNode(node) = &self.target.reason {
            self.record.set_node(node);
        }
        let started = Instant::now();
        let dialled = direct.dial(&self.target).await;
        self.record.set_dial_time(started.elapsed());
        if let Err(error) = &dialled {
            self.record.record_refusal(error);
        }
        dialled
    }

    /// Relays until the end. A failure is already recorded.
    async fn relay(
        &mut self,
        client: Socket,
        backend: Socket,
        pipelined: Bytes,
    ) -> Result<(), RelayError> {
        let transferred = self.record.transferred();
        let relayed = direct::relay(client, backend, pipelined, transferred).await;
        self.record.record_end(&relayed);
        relayed
    }
}

/// A request for a node. It is served on the thread of the tunnel that its stream will take.
struct NodeRequest {
    routed: RoutedClient,
    /// The bytes that the client sent after the request.
    pipelined: BytesMut,
}

impl NodeRequest {
    /// Serves the client in a task among `connections`.
    fn spawn(mut self, socket: Socket, connections: &TaskTracker) -> Result<(), RelayError> {
        let socket = socket.detach().map_err(RelayError::Socket)?;
        let worker = self.routed.worker().unwrap_or_else(Worker::current);
        let served = async move { self.serve(socket).await };
        connections.spawn_on(served, worker.handle());
        Ok(())
    }

    async fn serve(&mut self, socket: Detached) -> Result<(), RelayError> {
        let socket = attach(socket)?;
        let opened = tokio::select! {
            opened = self.routed.open(None) => opened,
            () = client_left(&socket, &mut self.pipelined) => return Ok(()),
        };
        match opened {
            Ok(mut stream) => {
                answer(&socket, ESTABLISHED).await?;
                let pipelined = std::mem::take(&mut self.pipelined);
                self.routed.relay(&mut stream, &pipelined, &socket).await
            }
            Err(error) => answer(&socket, &Refusal::from(&error).render()).await,
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

fn attach(socket: Detached) -> Result<Socket, RelayError> {
    socket.attach().map_err(|error| {
        tracing::warn!(%error, "CONNECT: too many sockets");
        RelayError::Socket(error)
    })
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
        answer(&near.into(), ESTABLISHED).await.unwrap();
        let mut received = String::new();
        far.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "HTTP/1.1 200 Connection Established\r\n\r\n");
    }
}
