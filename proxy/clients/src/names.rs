//! Name-routed listeners, for clients that nothing steers. The port that a client dials stands for a
//! port of every edge node. The node is the name that the client itself sends: in its TLS
//! ClientHello (SNI), or in the `Host` of each HTTP request.
//!
//! TLS is never ended here: the backend gets every byte, and the connection stays with its node.
//! Requests of HTTP are passed on one by one.

pub mod args;
mod bad_head;
pub(crate) mod head;
mod hello;
pub(crate) mod host;
mod refusal;
mod requests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use culvert_daemon::{Drain, Workers, chain};
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::error::RouteError;
use culvert_proxy_streams::limits::ClientKind;
use culvert_proxy_streams::live::Frontend;
use culvert_proxy_streams::route::Router;
use culvert_proxy_streams::routed::RoutedClient;
use culvert_proxy_streams::sockets::strangers::{HandshakePermit, Phase, Strangers};
use culvert_tunnel::{Close, Detached, Socket};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::admitted::Admitted;
use crate::http::HEAD_MAX;
use crate::refusals::Refusals;
use crate::{has_drained, resetting};
use bad_head::BadHead;
use head::{Head, HeadReader};
use host::MeantPorts;
use requests::Requests;

/// The time limit for a connection's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which a client takes its last answer and leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes after a client's last answer that are read and dropped.
const LEFT_MAX: usize = 256 << 10;

/// Serves clients that name their node. Clones share it.
#[derive(Clone)]
pub struct Names {
    /// What chooses a tunnel.
    pub router: Router,
    /// The threads that serve connections.
    pub workers: Arc<Workers>,
    /// Who may connect.
    pub admitted: Admitted,
    /// Limits the connections that have not named a node yet.
    pub strangers: Strangers,
    /// Begins when the program is about to end.
    pub drain: Drain,
    /// The refusals, to count and to log.
    pub refusals: Refusals,
}

/// Why a connection or a request was not served.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(
        "its address is in no range of --name-client: add the range if these clients may reach \
         edge nodes"
    )]
    Address,
    #[error("no edge port belongs to this port yet: see the Service of --name-service")]
    NoPort,
    #[error(transparent)]
    Full(#[from] culvert_proxy_streams::sockets::strangers::Full),
    #[error(transparent)]
    Head(#[from] BadHead),
    #[error("what follows a request is not an HTTP/1.1 request")]
    Later(#[source] hyper::Error),
}

impl Names {
    /// Starts to serve a connection that is for this port of a node. `None`: for no port.
    pub fn serve(
        &self,
        port: Option<u16>,
        (accepted, client): (TcpStream, SocketAddr),
        connections: &TaskTracker,
    ) {
        let local = accepted.local_addr().ok();
        let socket = resetting(accepted, client);
        if !self
            .admitted
            .has(client.ip(), local.map(|local| local.ip()))
        {
            return self.report_refusal(client, &Refused::Address);
        }
        let Some(port) = port else {
            return self.report_refusal(client, &Refused::NoPort);
        };
        match self.strangers.enter(client.ip(), Phase::Silent) {
            Ok(permit) => {
                let names = self.clone();
                let all = connections.clone();
                connections.spawn(async move {
                    names
                        .serve_stranger(socket, client, port, permit, &all)
                        .await;
                });
            }
            Err(full) => self.report_refusal(client, &full.into()),
        }
    }

    /// Reads the head of a connection, which keeps `permit` meanwhile, and passes it on.
    async fn serve_stranger(
        &self,
        socket: Socket,
        client: SocketAddr,
        port: u16,
        permit: HandshakePermit,
        connections: &TaskTracker,
    ) {
        let evicted = permit.evicted();
        let mut reader = HeadReader::default();
        let mut buffer = BytesMut::new();
        let head = tokio::select! {
            head = read_head(&socket, &mut reader, &mut buffer) => head,
            () = evicted.cancelled() => return,
            () = has_drained(&self.drain) => return,
        };
        match head {
            Ok(Head::Tls(name)) => {
                let destination = Destination::Name(name, port);
                self.route(socket, client, &destination, buffer, connections)
                    .await;
            }
            Ok(Head::Http) => self.serve_requests(socket, client, port, buffer, connections),
            Err(HeadError::Bad(bad)) => {
                if let Some(protocol) = reader.protocol() {
                    refuse(&socket, &refusal::bad_head(protocol, &bad)).await;
                }
                self.report_refusal(client, &bad.into());
            }
            Err(HeadError::Client(error)) => {
                tracing::debug!(client.addr = %client, %error, "left without a name");
            }
        }
    }

    /// Takes a client of TLS to its node, on the thread of its stream. The backend gets `hello`
    /// first.
    async fn route(
        &self,
        socket: Socket,
        client: SocketAddr,
        destination: &Destination,
        hello: BytesMut,
        connections: &TaskTracker,
    ) {
        let Ok(routed) = self.route_client(Frontend::NameTls, client, destination) else {
            return refuse(&socket, &refusal::unknown_server()).await;
        };
        let worker = routed.worker().unwrap_or_else(|| self.workers.next());
        match socket.detach() {
            Ok(socket) => {
                connections.spawn_on(connect(routed, socket, hello), worker.handle());
            }
            Err(error) => immovable(client, &error),
        }
    }

    /// Serves a client of HTTP, whose requests begin with `head`.
    fn serve_requests(
        &self,
        socket: Socket,
        client: SocketAddr,
        port: u16,
        head: BytesMut,
        connections: &TaskTracker,
    ) {
        match socket.detach() {
            Ok(Detached::Tcp(socket)) => {
                let own = socket.local_addr().map_or(port, |own| own.port());
                let of_nodes = port;
                let requests = Requests {
                    names: self.clone(),
                    client,
                    ports: MeantPorts { of_nodes, own },
                };
                let served = requests.serve(socket, head);
                connections.spawn_on(served, self.workers.next().handle());
            }
            Ok(Detached::Unix(_)) => {}
            Err(error) => immovable(client, &error),
        }
    }

    /// Decides the way of a client to its node. A failure is already recorded.
    fn route_client(
        &self,
        frontend: Frontend,
        client: SocketAddr,
        destination: &Destination,
    ) -> Result<RoutedClient, RouteError> {
        let mut record = self
            .router
            .start_record(frontend, client.to_string(), destination);
        match self.router.route(destination.clone()) {
            Ok(route) => {
                let kind = ClientKind::Address(client.ip().to_canonical());
                let router = self.router.clone();
                Ok(RoutedClient::new(router, route, kind, record))
            }
            Err(error) => {
                let error = RouteError::from(error);
                record.record_refusal(&error);
                Err(error)
            }
        }
    }

    /// Counts it, and logs one line, unless there were many recently.
    fn report_refusal(&self, client: SocketAddr, refused: &Refused) {
        if let Some(suppressed) = self.refusals.count() {
            tracing::warn!(
                client.addr = %client,
                reason = chain(refused),
                suppressed,
                "connection to a name-routed port refused"
            );
        }
    }
}

fn immovable(client: SocketAddr, error: &io::Error) {
    tracing::warn!(client.addr = %client, %error, "reset: the socket cannot be moved");
}

#[derive(Debug)]
enum HeadError {
    Client(io::Error),
    Bad(BadHead),
}

/// Reads into `buffer` until it has the whole head.
async fn read_head(
    socket: &Socket,
    reader: &mut HeadReader,
    buffer: &mut BytesMut,
) -> Result<Head, HeadError> {
    let head = async {
        loop {
            if let Some(head) = reader.read(buffer).map_err(HeadError::Bad)? {
                return Ok(head);
            }
            socket.readable().await.map_err(HeadError::Client)?;
            // The reader refuses a head that has one byte more than it may have.
            let room = HEAD_MAX + 1 - buffer.len();
            match socket.try_read(&mut (&mut *buffer).limit(room)) {
                Ok(0) => return Err(HeadError::Client(io::ErrorKind::UnexpectedEof.into())),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(HeadError::Client(error));
                }
                Ok(_) | Err(_) => {}
            }
        }
    };
    timeout(HEAD_TIMEOUT, head)
        .await
        .unwrap_or(Err(HeadError::Bad(BadHead::TimedOut)))
}

async fn connect(mut routed: RoutedClient, socket: Detached, hello: BytesMut) {
    let socket = match socket.attach() {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(%error, "reset: too many sockets"),
    };
    let opened = tokio::select! {
        opened = routed.open(None) => opened,
        // The client reset its connection. One that has only sent FIN may wait for the answer.
        _ = socket.failure() => return,
    };
    // `routed` records the end.
    match opened {
        Ok(mut stream) => {
            routed.send_first(&mut stream, &hello);
            // Not kept for the life of the connection.
            drop(hello);
            drop(routed.relay(&mut stream, &[], &socket).await);
        }
        Err(error) => {
            drop(routed);
            refuse(&socket, &refusal::not_connected(&error)).await;
        }
    }
}

/// Sends a refusal and ends the connection so that the refusal arrives.
async fn refuse(socket: &Socket, answer: &[u8]) {
    match timeout(LEAVE_TIMEOUT, socket.write_all(answer)).await {
        Ok(Ok(())) => leave(socket).await,
        Ok(Err(error)) => tracing::debug!(%error, "refuse a client"),
        Err(_) => {}
    }
}

/// Ends a connection so that what was sent arrives: bytes that stay unread would reset the
/// connection first.
async fn leave(socket: &Socket) {
    let left = async {
        socket.shutdown_write()?;
        socket.on_close(Close::Finish);
        let mut dropped = 0;
        let mut piece = BytesMut::new();
        while dropped < LEFT_MAX {
            socket.readable().await?;
            piece.clear();
            match socket.try_read(&mut (&mut piece).limit(HEAD_MAX)) {
                Ok(0) => break,
                Ok(count) => dropped += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        io::Result::Ok(())
    };
    if let Ok(Err(error)) = timeout(LEAVE_TIMEOUT, left).await {
        tracing::debug!(%error, "leave a client");
    }
}
