//! `culvert.peer.v1`: tells other proxies which tunnels end here, and that this proxy drains.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::peer as proto;
use culvert_api::proto::peer::peer_server::Peer;
use futures_util::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::Peers;
use crate::streams::elsewhere::PeerInfo;
use crate::streams::registry::Registered;

/// Changes of this time go out together: a thousand agents may come back at once.
const GATHER: Duration = Duration::from_millis(100);

/// The service on the peer port.
pub(super) struct PeerService(pub(super) Arc<Peers>);

#[tonic::async_trait]
impl Peer for PeerService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::Update, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<proto::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let proxy = request.into_inner().proxy.unwrap_or_default();
        let PeerInfo {
            instance,
            host,
            version,
            ..
        } = proxy.into();
        if instance != self.0.own.instance {
            tracing::debug!(peer = %instance, host, version, "a peer watches");
        }
        let watcher = Watcher {
            peers: self.0.clone(),
            changes: self.0.registry.changes(),
            told: None,
        };
        let updates = futures_util::stream::unfold(watcher, async |mut watcher| {
            let update = watcher.next().await;
            Some((Ok(update), watcher))
        });
        Ok(Response::new(Box::pin(updates)))
    }
}

/// What one peer was told.
struct Watcher {
    peers: Arc<Peers>,
    changes: watch::Receiver<()>,
    told: Option<Told>,
}

#[derive(Default)]
struct Told {
    /// The node of each tunnel, by generation.
    tunnels: BTreeMap<u64, Arc<Registered>>,
    draining: bool,
}

impl Watcher {
    async fn next(&mut self) -> proto::Update {
        loop {
            if let Some(told) = &self.told {
                tokio::select! {
                    // The sender lives as long as the registry.
                    _ = self.changes.changed() => tokio::time::sleep(GATHER).await,
                    () = self.peers.drain.begun(), if !told.draining => {}
                }
            }
            self.changes.mark_unchanged();
            if let Some(update) = self.update() {
                return update;
            }
        }
    }

    /// What the peer does not know yet.
    fn update(&mut self) -> Option<proto::Update> {
        let present = Told {
            tunnels: self
                .peers
                .registry
                .all()
                .into_iter()
                .map(|tunnel| (tunnel.generation, tunnel))
                .collect(),
            draining: self.peers.drain.has_begun(),
        };
        let proxy = self.told.is_none().then(|| (&self.peers.own).into());
        let before = self.told.take().unwrap_or_default();
        let opened: Vec<_> = present
            .tunnels
            .values()
            .filter(|tunnel| !before.tunnels.contains_key(&tunnel.generation))
            .map(|tunnel| as_proto(tunnel))
            .collect();
        let closed: Vec<_> = before
            .tunnels
            .into_keys()
            .filter(|generation| !present.tunnels.contains_key(generation))
            .collect();
        let draining = present.draining;
        let news = proxy.is_some()
            || !opened.is_empty()
            || !closed.is_empty()
            || draining != before.draining;
        self.told = Some(present);
        news.then_some(proto::Update {
            proxy,
            opened,
            closed,
            draining,
        })
    }
}

fn as_proto(tunnel: &Registered) -> proto::Tunnel {
    proto::Tunnel {
        generation: tunnel.generation,
        node: tunnel.node.to_string(),
        instance: tunnel.rank.instance.clone(),
        slot: tunnel.rank.slot.clone(),
        sequence: tunnel.rank.sequence,
        started: tunnel.rank.started,
    }
}
