//! Forwarded ports, the TCP map: a port of this host stands for one port of one node. The bytes of
//! clients pass unchanged.

pub mod args;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use culvert_api::NodeName;
use culvert_proxy_core::directory::Destination;
use culvert_proxy_core::forward::{Forward, ForwardTo};
use culvert_proxy_streams::limits::ClientKind;
use culvert_proxy_streams::live::Frontend;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::admitted::Admitted;
use crate::raw::{RawClient, RawClients};
use crate::refusals::Refusals;
use crate::resetting;

/// Serves forwarded ports. Clones share it.
#[derive(Clone)]
pub struct Forwarder {
    /// What relays their bytes.
    pub raw: RawClients,
    /// Who may connect.
    pub admitted: Admitted,
    /// The refusals, to count and to log.
    pub refusals: Refusals,
}

/// A forwarded port, and the nodes that its selector selects now.
#[derive(Clone)]
pub struct ForwardedPort {
    /// Its entry.
    pub forward: Forward,
    /// `None`: it names a node.
    pub selected: Option<watch::Receiver<BTreeSet<NodeName>>>,
}

impl Forwarder {
    /// Starts to serve a connection. Every failure resets it.
    pub fn serve(
        &self,
        port: &ForwardedPort,
        (accepted, client): (TcpStream, SocketAddr),
        connections: &TaskTracker,
    ) {
        let local = accepted.local_addr().ok();
        let socket = resetting(accepted, client);
        if !self
            .admitted
            .has(client.ip(), local.map(|local| local.ip()))
        {
            if let Some(suppressed) = self.refusals.count() {
                tracing::warn!(
                    client.addr = %client,
                    forward = %port.forward,
                    reason = "its address is in no range of --forward-client: add the range if \
                              these clients may reach the node",
                    suppressed,
                    "connection to a forwarded port refused"
                );
            }
            return;
        }
        let client = RawClient {
            socket,
            address: client,
            frontend: Frontend::Forward,
            kind: ClientKind::Address(client.ip().to_canonical()),
        };
        self.raw.serve(client, self.destination(port), connections);
    }

    /// The node that the entry names, or a random connected one of those that it selects. Without
    /// a connected one: a selected node that is offline. Without a selected one: the selector, which
    /// is the name of no node, so that the log shows it.
    fn destination(&self, port: &ForwardedPort) -> Destination {
        let Forward {
            to, port: of_node, ..
        } = &port.forward;
        let node = match (to, &port.selected) {
            (ForwardTo::Node(node), _) => Some(node.clone()),
            (ForwardTo::Selected(_), Some(selected)) => self.some_of(&selected.borrow()),
            (ForwardTo::Selected(_), None) => None,
        };
        match node {
            Some(node) => Destination::Node(node, of_node.get()),
            None => Destination::Name(to.to_string(), of_node.get()),
        }
    }

    fn some_of(&self, nodes: &BTreeSet<NodeName>) -> Option<NodeName> {
        let first = rand::random_range(0..nodes.len().max(1));
        for node in nodes.iter().cycle().skip(first).take(nodes.len()) {
            if self.raw.router.is_connected(node) {
                return Some(node.clone());
            }
        }
        nodes.iter().nth(first).cloned()
    }
}
