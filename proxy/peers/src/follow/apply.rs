//! Applies what another proxy reports: its tunnels, its revocations and, from the primary, the
//! directory.

use std::sync::Arc;
use std::time::Duration;

use culvert_api::NodeName;
use culvert_api::proto::peer as proto;
use culvert_daemon::chain;
use culvert_proxy_streams::peers::PeerChange;

use crate::Peers;
use crate::connected::Role;
use crate::primary::{DirectoryUpdate, Primary};
use crate::wire::revoked;

/// The pause before a state directory that may not be changed now is tried again.
const FROZEN_PAUSE: Duration = Duration::from_millis(500);
/// Tunnels of one peer that are used.
const MAX_TUNNELS: usize = 200_000;

/// Applies the revocations of an update and, from the primary, the directory: in this order, so
/// that a node that was removed and added again is there with its revocation.
pub(super) async fn apply_update(peers: &Arc<Peers>, update: &mut proto::Update, role: Role) {
    apply_revocations(peers, std::mem::take(&mut update.revoked)).await;
    if let Some(directory) = update.directory.take()
        && let Some(primary) = &peers.primary
        && role == Role::Primary
    {
        apply_directory(primary, directory).await;
    }
}

async fn apply_revocations(peers: &Arc<Peers>, revocations: Vec<proto::Revocation>) {
    let revoked = revoked(revocations);
    let trust = peers.trust.clone();
    let applied = tokio::task::spawn_blocking(move || {
        if let Err(error) = trust.apply_revocations(&revoked) {
            let reason = chain(&error);
            tracing::error!(
                reason,
                "revocations of another proxy hold, but are not on disk yet"
            );
        }
    });
    if let Err(error) = applied.await {
        tracing::error!(%error, "revocations of another proxy were not applied");
    }
}

/// Applies the primary's directory, as soon as this proxy may change its state directory.
async fn apply_directory(primary: &Arc<Primary>, directory: proto::Directory) {
    let directory = Arc::new(directory);
    loop {
        let primary = primary.clone();
        let directory = directory.clone();
        match tokio::task::spawn_blocking(move || primary.apply_directory(&directory)).await {
            Ok(DirectoryUpdate::Done) => return,
            Ok(DirectoryUpdate::StateFrozen) => tokio::time::sleep(FROZEN_PAUSE).await,
            Err(error) => {
                tracing::error!(%error, "the primary's directory was not applied");
                return;
            }
        }
    }
}

/// The tunnels of an update. What is not a node's name is left out.
pub(super) fn tunnel_change(update: proto::Update) -> PeerChange {
    let mut change = PeerChange {
        opened: Vec::new(),
        closed: update.closed,
        draining: update.draining,
    };
    for tunnel in update.opened.into_iter().take(MAX_TUNNELS) {
        if let Ok(node) = tunnel.node.parse::<NodeName>() {
            change.opened.push((tunnel.generation, node, tunnel.into()));
        }
    }
    change
}
