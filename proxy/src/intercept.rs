//! The intercept listener: connections that the kernel steered here, whose clients think they talk to an edge node.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use culvert_tunnel::{Close, Socket};
use tokio::net::TcpStream;

use crate::directory::Destination;
use crate::listen;
use crate::original_dst::{OriginalDsts, canonical};
use crate::route::{RouteError, Router};
use crate::streams::Streams;

/// Serves intercepted connections. Clones share it.
#[derive(Clone)]
pub(crate) struct Intercept {
    pub(crate) original_dsts: Arc<OriginalDsts>,
    pub(crate) router: Router,
    pub(crate) streams: Streams,
}

impl Intercept {
    /// Serves one connection. Whatever goes wrong ends it with RST, never FIN: the client must not take it for an empty answer.
    pub(crate) async fn serve(self, (accepted, client): (TcpStream, SocketAddr)) {
        let client = canonical(client);
        let original_dst = self.original_dsts.of(&accepted);
        if let Err(error) = listen::tune(&accepted) {
            tracing::debug!(client.addr = %client, %error, "tune a socket");
        }
        let socket = Socket::from(accepted);
        socket.on_close(Close::Reset);
        let Some((original_dst, frontend)) = original_dst else {
            tracing::warn!(client.addr = %client, "reset: a connection to an intercept port that nothing steered here");
            return;
        };
        let destination = Destination::Address(original_dst);
        let number = self.router.number();
        let record = self.streams.begin(number, frontend, client.to_string(), destination.clone());
        let target = match self.router.resolve(&destination) {
            Ok(target) => target,
            Err(error) => return record.not_routed(&RouteError::from(error)),
        };
        record.routed_to(&target.node);
        let opened = tokio::select! {
            opened = self.router.open(&target, &destination, number) => opened,
            // The client reset its connection. A mere FIN may be a client that has sent all and waits.
            _ = socket.failure() => return,
        };
        match opened {
            Ok(stream) => {
                let result = stream.relay(socket, Bytes::new(), record.transferred()).await;
                record.relayed(&result);
            }
            Err(error) => record.not_routed(&error),
        }
    }
}
