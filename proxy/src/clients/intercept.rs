//! The intercept listener: connections that the kernel steered here. Their clients dialled an edge
//! node.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_api::ports::CHECK_PORT;
use culvert_daemon::{LogBudget, Workers};
use culvert_tunnel::{Close, Detached, Socket};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use crate::clients::original_dst::OriginalDsts;
use crate::directory::{Destination, Target};
use crate::streams::error::RouteError;
use crate::streams::limits::ClientKind;
use crate::streams::route::Router;
use crate::streams::routed::RoutedClient;

/// Serves intercepted connections. Clones share it.
#[derive(Clone)]
pub(crate) struct Intercept {
    pub(crate) original_dsts: Arc<OriginalDsts>,
    pub(crate) router: Router,
    pub(crate) workers: Arc<Workers>,
    /// Limits the log lines that everyone who reaches the ports can cause.
    pub(crate) foreign: Arc<LogBudget>,
}

impl Intercept {
    /// Starts to serve a connection that is for a node, on the thread of its stream. Every failure
    /// ends it with RST, never with FIN: the client must not take it for an empty answer.
    pub(crate) fn serve(
        &self,
        (accepted, client): (TcpStream, SocketAddr),
        connections: &TaskTracker,
    ) {
        let original_dst = self.original_dsts.of(&accepted);
        if let Some((vip, frontend)) = original_dst.filter(|(dialled, _)| self.is_check(*dialled)) {
            // A new socket has space for a word.
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
        let local = accepted.local_addr().ok();
        if let Err(error) = culvert_tunnel::tune_relayed(&accepted) {
            tracing::debug!(client.addr = %client, %error, "tune a socket");
        }
        let socket = Socket::from(accepted);
        socket.on_close(Close::Reset);
        let Some((original_dst, frontend)) = original_dst else {
            if let Some(suppressed) = self.foreign.spend() {
                tracing::warn!(
                    client.addr = %client,
                    intercept.addr = local.map(tracing::field::display),
                    suppressed,
                    "reset: a connection to an intercept port that nothing steered here"
                );
            }
            return;
        };
        let destination = Destination::Address(original_dst);
        let mut record = self
            .router
            .begin(frontend, client.to_string(), &destination);
        let route = match self.router.route(destination) {
            Ok(route) => route,
            Err(error) => return record.not_routed(&RouteError::from(error)),
        };
        let kind = ClientKind::steered(client.ip(), local.map(|local| local.ip()), original_dst);
        let routed = RoutedClient::new(self.router.clone(), route, kind, record);
        let worker = routed.worker().unwrap_or_else(|| self.workers.next());
        match socket.detach() {
            Ok(socket) => {
                connections.spawn_on(serve(routed, socket), worker.handle());
            }
            Err(error) => {
                tracing::warn!(client.addr = %client, %error, "reset: the socket cannot be moved")
            }
        }
    }

    /// Whether a check dialled a node's VIP to find out how connections come here.
    fn is_check(&self, dialled: SocketAddr) -> bool {
        let by_vip = |target: Target| target.address != Some(dialled.ip());
        dialled.port() == CHECK_PORT
            && self
                .router
                .resolve(&Destination::Address(dialled))
                .is_ok_and(by_vip)
    }
}

#[allow(
    clippy::manual_async_fn,
    reason = "the arguments of an async fn are stored twice in its future (rust-lang/rust#62958)"
)]
fn serve(mut routed: RoutedClient, socket: Detached) -> impl Future<Output = ()> {
    async move { connect(&mut routed, socket).await }
}

async fn connect(routed: &mut RoutedClient, socket: Detached) {
    let socket = match socket.attach() {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(%error, "reset: too many sockets"),
    };
    let opened = tokio::select! {
        opened = routed.open(Some(&socket)) => opened,
        // The client reset its connection. A client that has only sent FIN may be waiting for the
        // answer.
        _ = socket.failure() => return,
    };
    // `routed` records the end.
    if let Ok(mut stream) = opened {
        drop(routed.relay(&mut stream, &[], &socket).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// A thousand pods that keep a connection each should cost a few MiB, not hundreds.
    #[test]
    fn the_task_of_a_steered_client_is_small() {
        let size = size_of_future(serve);
        assert!((256..=1792).contains(&size), "{size} bytes");
    }
}
