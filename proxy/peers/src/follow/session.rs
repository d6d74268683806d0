//! One connection to a registered peer, from its snapshot to its end, with the links that carry
//! streams to it.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_api::proto::peer as proto;
use culvert_daemon::chain;
use culvert_proxy_streams::registry::PeerRegistration;
use tokio::task::JoinSet;

use super::apply::{apply_update, tunnel_change};
use super::watch::{FollowError, Updates};
use crate::Peers;
use crate::connected::{ConnectedPeer, Role};
use crate::links::spawn_links;

/// A peer whose connection is up.
pub(super) struct Session {
    peers: Arc<Peers>,
    address: SocketAddr,
    role: Role,
    registration: PeerRegistration,
    is_draining: bool,
    updates: Updates,
    _links: JoinSet<()>,
    _connected: ConnectedPeer,
}

/// How a session went on.
pub(super) enum SessionEnd {
    /// The peer drains: the session goes on, and its successor may be at the same address.
    Draining(Box<Session>),
    /// The connection was lost.
    Lost(PeerRegistration, FollowError),
}

impl Session {
    /// Starts with the snapshot, whose revocations and directory have been applied.
    pub(super) fn start(
        peers: &Arc<Peers>,
        (address, role): (SocketAddr, Role),
        registration: PeerRegistration,
        snapshot: proto::Update,
        updates: Updates,
        connected: ConnectedPeer,
    ) -> Self {
        let is_draining = snapshot.draining;
        registration.replace(tunnel_change(snapshot));
        let peer = registration.info();
        tracing::info!(
            peer.addr = %address,
            peer = %peer.instance,
            host = peer.host,
            version = peer.version,
            "peer up"
        );
        Self {
            peers: peers.clone(),
            address,
            role,
            is_draining,
            updates,
            _links: spawn_links(peers, address, peer),
            _connected: connected,
            registration,
        }
    }

    /// Applies what the peer reports, until it drains or its connection ends.
    pub(super) async fn run(mut self) -> SessionEnd {
        while !self.is_draining {
            if let Err(error) = self.apply_next().await {
                return SessionEnd::Lost(self.registration, error);
            }
        }
        SessionEnd::Draining(Box::new(self))
    }

    /// Applies what the peer reports until its connection ends.
    pub(super) async fn run_to_end(mut self) {
        while self.apply_next().await.is_ok() {}
    }

    async fn apply_next(&mut self) -> Result<(), FollowError> {
        let mut update = match self.updates.next().await {
            Ok(update) => update,
            Err(error) => {
                tracing::warn!(
                    peer.addr = %self.address,
                    peer = %self.registration.info().instance,
                    reason = chain(&error),
                    "peer down"
                );
                return Err(error);
            }
        };
        apply_update(&self.peers, &mut update, self.role).await;
        self.is_draining = update.draining;
        self.registration.change(tunnel_change(update));
        Ok(())
    }
}
