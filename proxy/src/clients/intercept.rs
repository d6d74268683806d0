//! The intercept listener: connections that the kernel steered here, whose clients think they talk
//! to an edge node.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_api::ports::CHECK_PORT;
use culvert_daemon::Workers;
use culvert_tunnel::{Close, Detached, Early, Socket};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use crate::clients::original_dst::OriginalDsts;
use crate::clock::UnixTime;
use crate::directory::{Destination, Target};
use crate::sockets::listen;
use crate::sockets::log_budget::LogBudget;
use crate::streams::live::{StreamRecord, Streams};
use crate::streams::route::{Client, RouteError, Router};

/// Serves intercepted connections. Clones share it.
#[derive(Clone)]
pub(crate) struct Intercept {
    pub(crate) original_dsts: Arc<OriginalDsts>,
    pub(crate) router: Router,
    pub(crate) streams: Streams,
    pub(crate) workers: Arc<Workers>,
    /// For lines that anybody who reaches the ports can cause.
    pub(crate) foreign: Arc<LogBudget>,
}

impl Intercept {
    /// Starts to serve a connection on the thread that its stream will be on, if it is for a node.
    /// Whatever goes wrong ends it with RST, never FIN: the client must not take it for an empty
    /// answer.
    pub(crate) fn serve(
        &self,
        (accepted, client): (TcpStream, SocketAddr),
        connections: &TaskTracker,
    ) {
        let original_dst = self.original_dsts.of(&accepted);
        if let Some((vip, frontend)) = original_dst.filter(|(dialled, _)| self.is_check(*dialled)) {
            // A new socket takes a word at once.
            if let Err(error) = SockRef::from(&accepted).send(frontend.label().as_bytes()) {
                tracing::debug!(
                    client.addr = %client,
                    original_dst = %vip,
                    %error,
                    "answer a check"
                );
            }
            return;
        }
        let local = accepted.local_addr().ok().map(|local| local.ip());
        if let Err(error) = listen::tune(&accepted) {
            tracing::debug!(client.addr = %client, %error, "tune a socket");
        }
        let socket = Socket::from(accepted);
        socket.on_close(Close::Reset);
        let Some((original_dst, frontend)) = original_dst else {
            if let Some(suppressed) = self.foreign.spend(UnixTime::now()) {
                tracing::warn!(
                    client.addr = %client,
                    suppressed,
                    "reset: a connection to an intercept port that nothing steered here"
                );
            }
            return;
        };
        let destination = Destination::Address(original_dst);
        let number = self.router.number();
        let mut record =
            self.streams
                .begin(number, frontend, client.to_string(), destination.clone());
        let target = match self.router.resolve(&destination) {
            Ok(target) => target,
            Err(error) => return record.not_routed(&RouteError::from(error)),
        };
        record.routed_to(&target.node);
        let worker = self
            .router
            .worker(&target.node)
            .unwrap_or_else(|| self.workers.next());
        match socket.detach() {
            Ok(socket) => {
                let client = Client::steered(client.ip(), local, original_dst);
                let router = self.router.clone();
                let mut connection = Connection {
                    router,
                    client,
                    destination,
                    target,
                    number,
                    record,
                };
                connections.spawn_on(
                    async move { connection.serve(socket).await },
                    worker.handle(),
                );
            }
            Err(error) => {
                tracing::warn!(client.addr = %client, %error, "reset: the socket cannot be moved")
            }
        }
    }
}

impl Intercept {
    /// Whether a check dialled a node's VIP to learn how connections come here.
    fn is_check(&self, dialled: SocketAddr) -> bool {
        let by_vip = |target: Target| target.address != Some(dialled.ip());
        dialled.port() == CHECK_PORT
            && self
                .router
                .resolve(&Destination::Address(dialled))
                .is_ok_and(by_vip)
    }
}

/// A client that has been told nothing yet.
struct Connection {
    router: Router,
    client: Client,
    destination: Destination,
    target: Target,
    number: u64,
    record: StreamRecord,
}

impl Connection {
    /// By reference: a task that moved what it has in here would keep room for it twice.
    async fn serve(&mut self, socket: Detached) {
        let socket = match socket.attach() {
            Ok(socket) => socket,
            Err(error) => return tracing::warn!(%error, "reset: no room for another socket"),
        };
        let _share = match self.router.share(&self.target, self.client) {
            Ok(share) => share,
            Err(error) => return self.record.not_routed(&error),
        };
        let early = Early {
            client: &socket,
            transferred: self.record.transferred(),
        };
        let mut opened = tokio::select! {
            opened = self.router.open(&self.target, &self.destination, self.number, Some(early)) => opened,
            // The client reset its connection. A mere FIN may be a client that has sent all and
            // waits.
            _ = socket.failure() => return,
        };
        match &mut opened {
            Ok(stream) => {
                let result = stream.relay(&socket, self.record.transferred()).await;
                self.record.relayed(&result);
            }
            Err(error) => self.record.not_routed(error),
        }
    }
}
