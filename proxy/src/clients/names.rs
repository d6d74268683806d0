//! Name-routed listeners, for clients that nothing steers. The port that a client dials stands for a
//! port of every edge node. The node is the name that the client itself sends: in its TLS
//! ClientHello (SNI), or in the `Host` of its first HTTP request. TLS is never ended here, and no
//! request is changed: the backend gets every byte.
//!
//! A connection stays with its node. A later request with another `Host` goes to the same node.

pub(crate) mod args;
pub(crate) mod head;
mod hello;
mod host;
mod refusal;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use culvert_daemon::{Drain, Workers, chain};
use culvert_tunnel::{Close, Detached, Socket};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::clients::admitted::Admitted;
use crate::clients::refusals::Refusals;
use crate::clients::{has_drained, resetting};
use crate::directory::Destination;
use crate::sockets::strangers::{HandshakePermit, Phase, Strangers};
use crate::streams::error::RouteError;
use crate::streams::limits::ClientKind;
use crate::streams::live::Frontend;
use crate::streams::route::Router;
use crate::streams::routed::RoutedClient;
use head::{BadHead, HEAD_MAX, HeadReader, Protocol};

/// The time limit for a connection's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which a refused client takes its answer and leaves.
const REFUSED_TIME: Duration = Duration::from_secs(1);
/// Bytes of a refused client that are read and dropped.
const REFUSED_MAX: usize = 256 << 10;

/// Serves clients that name their node. Clones share it.
#[derive(Clone)]
pub(crate) struct Names {
    pub(crate) router: Router,
    pub(crate) workers: Arc<Workers>,
    pub(crate) admitted: Admitted,
    /// Limits the connections that have not named a node yet.
    pub(crate) strangers: Strangers,
    pub(crate) drain: Drain,
    pub(crate) refusals: Refusals,
}

/// Why a connection was not served before its head was read.
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
    Full(#[from] crate::sockets::strangers::Full),
    #[error(transparent)]
    Head(#[from] BadHead),
}

impl Names {
    /// Starts to serve a connection that is for this port of a node. `None`: for no port.
    pub(crate) fn serve(
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
            return self.refused(client, &Refused::Address);
        }
        let Some(port) = port else {
            return self.refused(client, &Refused::NoPort);
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
            Err(full) => self.refused(client, &full.into()),
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
        let (mut reader, mut buffer) = (HeadReader::default(), BytesMut::new());
        let name = tokio::select! {
            name = read_head(&socket, &mut reader, &mut buffer) => name,
            () = evicted.cancelled() => return,
            () = has_drained(&self.drain) => return,
        };
        match name {
            Ok(name) => {
                let named = Named {
                    protocol: reader.protocol().unwrap_or(Protocol::Http),
                    destination: Destination::Name(name, port),
                    head: buffer,
                };
                self.route(socket, client, named, connections).await;
            }
            Err(HeadError::Bad(bad)) => {
                if let Some(protocol) = reader.protocol() {
                    refuse(&socket, &refusal::bad_head(protocol, &bad)).await;
                }
                self.refused(client, &bad.into());
            }
            Err(HeadError::Client(error)) => {
                tracing::debug!(client.addr = %client, %error, "left without a name");
            }
        }
    }

    /// Takes a client to its node, on the thread of its stream.
    async fn route(
        &self,
        socket: Socket,
        client: SocketAddr,
        named: Named,
        connections: &TaskTracker,
    ) {
        let Named {
            protocol,
            destination,
            head,
        } = named;
        let frontend = match protocol {
            Protocol::Tls => Frontend::NameTls,
            Protocol::Http => Frontend::NameHttp,
        };
        let mut record = self
            .router
            .begin(frontend, client.to_string(), &destination);
        let route = match self.router.route(destination.clone()) {
            Ok(route) => route,
            Err(error) => {
                let answer =
                    refusal::unknown(protocol, &error, self.router.directory(), &destination);
                record.not_routed(&RouteError::from(error));
                drop(record);
                return refuse(&socket, &answer).await;
            }
        };
        let kind = ClientKind::Address(client.ip().to_canonical());
        let routed = RoutedClient::new(self.router.clone(), route, kind, record);
        let worker = routed.worker().unwrap_or_else(|| self.workers.next());
        match socket.detach() {
            Ok(socket) => {
                let served = connect(routed, socket, protocol, head);
                connections.spawn_on(served, worker.handle());
            }
            Err(error) => {
                tracing::warn!(client.addr = %client, %error, "reset: the socket cannot be moved")
            }
        }
    }

    /// Counts it, and logs one line, unless there were many recently.
    fn refused(&self, client: SocketAddr, refused: &Refused) {
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

/// A client that has named its node.
struct Named {
    protocol: Protocol,
    destination: Destination,
    /// Its bytes so far. The backend gets them first.
    head: BytesMut,
}

#[derive(Debug)]
enum HeadError {
    Client(io::Error),
    Bad(BadHead),
}

/// Reads into `buffer` until it has the whole head, and returns the name in it.
async fn read_head(
    socket: &Socket,
    reader: &mut HeadReader,
    buffer: &mut BytesMut,
) -> Result<String, HeadError> {
    let name = async {
        loop {
            if let Some(name) = reader.read(buffer).map_err(HeadError::Bad)? {
                return Ok(name);
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
    timeout(HEAD_TIMEOUT, name)
        .await
        .unwrap_or(Err(HeadError::Bad(BadHead::TimedOut)))
}

async fn connect(mut routed: RoutedClient, socket: Detached, protocol: Protocol, head: BytesMut) {
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
            routed.send_first(&mut stream, &head);
            // Not kept for the life of the connection.
            drop(head);
            drop(routed.relay(&mut stream, &[], &socket).await);
        }
        Err(error) => {
            drop(routed);
            refuse(&socket, &refusal::not_connected(protocol, &error)).await;
        }
    }
}

/// Sends a refusal and ends the connection so that the refusal arrives: bytes that stay unread
/// would reset the connection first.
async fn refuse(socket: &Socket, answer: &[u8]) {
    let ended = async {
        socket.write_all(answer).await?;
        socket.shutdown_write()?;
        socket.on_close(Close::Finish);
        let (mut dropped, mut piece) = (0, BytesMut::new());
        while dropped < REFUSED_MAX {
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
    if let Ok(Err(error)) = timeout(REFUSED_TIME, ended).await {
        tracing::debug!(%error, "refuse a client");
    }
}
