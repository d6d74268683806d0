//! The intercept listener: connections that the kernel steered here. Their clients dialled an edge
//! node.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_api::ports::CHECK_PORT;
use culvert_daemon::LogBudget;
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::limits::ClientKind;
use culvert_proxy_streams::live::Frontend;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use crate::original_dst::OriginalDsts;
use crate::raw::{RawClient, RawClients};
use crate::resetting;

/// Serves intercepted connections. Clones share it.
#[derive(Clone)]
pub struct Intercept {
    /// What knows where they were going.
    pub original_dsts: Arc<OriginalDsts>,
    /// What relays their bytes.
    pub raw: RawClients,
    /// Limits the log lines that everyone who reaches the ports can cause.
    pub foreign: Arc<LogBudget>,
}

impl Intercept {
    /// Starts to serve a connection that is for a node, on the thread of its stream. Every failure
    /// ends it with RST, never with FIN: the client must not take it for an empty answer.
    pub fn serve(&self, (accepted, client): (TcpStream, SocketAddr), connections: &TaskTracker) {
        let original_dst = self.original_dsts.of(&accepted);
        if let Some((dialled, frontend)) = original_dst
            && self.is_check(dialled)
        {
            return answer_check(&accepted, client, dialled, frontend);
        }
        let local = accepted.local_addr().ok();
        let socket = resetting(accepted, client);
        let Some((original_dst, frontend)) = original_dst else {
            if let Some(suppressed) = self.foreign.spend() {
                tracing::warn!(
                    client.addr = %client,
                    intercept.addr = local.map(tracing::field::display),
                    suppressed,
                    "reset: a connection to an intercept port that nothing steered here; a \
                     rootless container or a sidecar may pass on what --hooks all steered in it: \
                     --hooks host on the redirector"
                );
            }
            return;
        };
        let kind = ClientKind::steered(client.ip(), local.map(|local| local.ip()), original_dst);
        let client = RawClient {
            socket,
            address: client,
            frontend,
            kind,
        };
        self.raw
            .serve(client, Destination::Address(original_dst), connections);
    }

    /// Whether a check dialled a node's VIP to find out how connections come here. Only a VIP
    /// resolves to an address other than the one that was dialled.
    fn is_check(&self, dialled: SocketAddr) -> bool {
        if dialled.port() != CHECK_PORT {
            return false;
        }
        match self.raw.router.resolve(&Destination::Address(dialled)) {
            Ok(target) => target.address != Some(dialled.ip()),
            Err(_) => false,
        }
    }
}

/// Answers a check with the mechanism that steered its connection here.
fn answer_check(accepted: &TcpStream, client: SocketAddr, dialled: SocketAddr, frontend: Frontend) {
    // The send buffer of a new socket takes these few bytes, so this does not block.
    if let Err(error) = SockRef::from(accepted).send(frontend.label().as_bytes()) {
        tracing::debug!(
            client.addr = %client,
            original_dst = %dialled,
            %error,
            "answer a check"
        );
    }
}
