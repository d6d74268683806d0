//! Peers in the registry: their tunnels count as ways to their nodes for as long as they are
//! registered.

use std::collections::BTreeSet;
use std::sync::Arc;

use culvert_api::NodeName;
use culvert_proxy_core::instance::Instance;
use culvert_tunnel::Tunnel;

use super::{Registry, State};
use crate::peers::{PeerChange, PeerInfo, PeerView};

/// Keeps a peer registered. Dropping it forgets the peer and its tunnels.
pub struct PeerRegistration {
    registry: Registry,
    info: Arc<PeerInfo>,
}

/// Keeps a link to a peer registered.
pub struct LinkRegistration {
    registry: Registry,
    peer: Instance,
    number: u64,
}

impl Registry {
    /// Adds a peer, without tunnels at first. `None`: it is registered already, by another address.
    pub fn register_peer(&self, info: PeerInfo) -> Option<PeerRegistration> {
        let info = Arc::new(info);
        self.lock().peers.add(info.clone())?;
        self.0.peers_tx.send_replace(());
        Some(PeerRegistration {
            registry: self.clone(),
            info,
        })
    }

    /// Adds a link to a registered peer. The calling thread drives it.
    pub fn register_link(&self, peer: &Instance, tunnel: Tunnel) -> Option<LinkRegistration> {
        let number = self.lock().peers.add_link(peer, tunnel)?;
        Some(LinkRegistration {
            registry: self.clone(),
            peer: peer.clone(),
            number,
        })
    }

    /// Every registered peer.
    pub fn peers(&self) -> Vec<PeerView> {
        self.lock().peers.views()
    }

    /// The peers that have a tunnel of the node.
    pub fn holders(&self, node: &NodeName) -> Vec<PeerView> {
        self.lock().peers.holders(node)
    }

    /// Sees a change each time a peer comes, goes or begins to drain.
    pub fn peer_changes(&self) -> tokio::sync::watch::Receiver<()> {
        self.0.peers_tx.subscribe()
    }

    /// Tells the directory which of these nodes are online. The lock is held, so that it gets all
    /// changes of a node in their order.
    fn set_online(&self, state: &State, nodes: impl IntoIterator<Item = NodeName>) {
        for node in nodes {
            self.0.directory.set_presence(&node, state.presence(&node));
        }
    }
}

impl PeerRegistration {
    /// The peer.
    pub fn info(&self) -> &PeerInfo {
        &self.info
    }

    /// Applies a change of the peer's tunnels.
    pub fn change(&self, change: PeerChange) {
        let mut state = self.registry.lock();
        let drained = change.draining;
        let concerned = state.peers.change(&self.info.instance, change);
        self.registry.set_online(&state, concerned);
        drop(state);
        if drained {
            self.registry.0.peers_tx.send_replace(());
        }
    }

    /// Takes a snapshot: `all` are the peer's tunnels.
    pub fn replace(&self, all: PeerChange) {
        let present: BTreeSet<u64> = all.opened.iter().map(|(number, ..)| *number).collect();
        let mut closed = self.registry.lock().peers.numbers(&self.info.instance);
        closed.retain(|number| !present.contains(number));
        self.change(PeerChange { closed, ..all });
    }
}

impl Drop for PeerRegistration {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        let nodes = state.peers.remove(&self.info.instance);
        self.registry.set_online(&state, nodes);
        drop(state);
        self.registry.0.peers_tx.send_replace(());
    }
}

impl Drop for LinkRegistration {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        state.peers.remove_link(&self.peer, self.number);
    }
}
