//! Clients without a proxy protocol: the port that they dialled determines their node, and all bytes
//! belong to the backend.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_daemon::Workers;
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::error::RouteError;
use culvert_proxy_streams::limits::ClientKind;
use culvert_proxy_streams::live::Frontend;
use culvert_proxy_streams::route::Router;
use culvert_proxy_streams::routed::RoutedClient;
use culvert_tunnel::{Detached, Socket};
use tokio_util::task::TaskTracker;

/// Serves such clients. Clones share it.
#[derive(Clone)]
pub struct RawClients {
    /// What chooses a tunnel.
    pub router: Router,
    /// The threads that serve connections.
    pub workers: Arc<Workers>,
}

/// A connected client.
pub(crate) struct RawClient {
    pub(crate) socket: Socket,
    pub(crate) address: SocketAddr,
    pub(crate) frontend: Frontend,
    pub(crate) kind: ClientKind,
}

impl RawClients {
    /// Starts to relay between a client and its node, on the thread of its stream.
    pub(crate) fn serve(
        &self,
        client: RawClient,
        destination: Destination,
        connections: &TaskTracker,
    ) {
        let RawClient {
            socket,
            address,
            frontend,
            kind,
        } = client;
        let mut record = self
            .router
            .start_record(frontend, address.to_string(), &destination);
        let route = match self.router.route(destination) {
            Ok(route) => route,
            Err(error) => return record.record_refusal(&RouteError::from(error)),
        };
        let routed = RoutedClient::new(self.router.clone(), route, kind, record);
        let worker = routed.worker().unwrap_or_else(|| self.workers.next());
        match socket.detach() {
            Ok(socket) => {
                connections.spawn_on(serve(routed, socket), worker.handle());
            }
            Err(error) => {
                tracing::warn!(client.addr = %address, %error, "reset: the socket cannot be moved")
            }
        }
    }
}

#[allow(
    clippy::manual_async_fn,
    reason = "the arguments of an async fn are stored twice in its future (rust-lang/rust#62958)"
)]
fn serve(mut routed: RoutedClient, socket: Detached) -> impl Future<Output = ()> {
    async move { open_and_relay(&mut routed, socket).await }
}

async fn open_and_relay(routed: &mut RoutedClient, socket: Detached) {
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
        // An eighth of it is for streams that move to another tunnel.
        assert!((256..=2048).contains(&size), "{size} bytes");
    }
}
