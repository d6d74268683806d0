//! `culvert.peer.v1`: reports to other proxies which tunnels end here, what was revoked, that this
//! proxy drains, and if they follow it, its directory.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::peer as proto;
use culvert_api::proto::peer::peer_server::Peer;
use culvert_proxy_core::directory::{Directory, Facts};
use culvert_proxy_streams::peers::PeerInfo;
use culvert_proxy_streams::registry::{Registered, TunnelFeed};
use culvert_proxy_streams::sockets::listen::AgentTarget;
use culvert_proxy_trust::Revoked;
use futures_util::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::Peers;
use super::wire::{directory_message, peer_info, proxy_message, revocation_message};

/// Changes of this time go out together: a thousand agents may come back at once.
const GATHER: Duration = Duration::from_millis(100);

/// The service on the peer port. Clones share it.
#[derive(Clone)]
pub(super) struct PeerService(pub(super) Arc<Peers>);

#[tonic::async_trait]
impl Peer for PeerService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::Update, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<proto::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let proto::WatchRequest { proxy, directory } = request.into_inner();
        let proxy = proxy.unwrap_or_default();
        let PeerInfo {
            instance,
            host,
            version,
            ..
        } = peer_info(&proxy);
        if instance != self.0.own.instance {
            tracing::debug!(peer = %instance, host, version, "a peer watches");
        }
        let watcher = Watcher {
            peers: self.0.clone(),
            tunnels: self.0.registry.feed(),
            signals: Signals {
                tunnels: self.0.registry.changes(),
                revoked: self.0.trust.revocation_changes(),
                directory: if directory {
                    Some(self.0.allocates()?.changes())
                } else {
                    None
                },
            },
            reported: None,
        };
        let updates = futures_util::stream::unfold(watcher, async |mut watcher| {
            let update = watcher.next().await;
            Some((Ok(update), watcher))
        });
        Ok(Response::new(Box::pin(updates)))
    }
}

/// Reports to one peer.
struct Watcher {
    peers: Arc<Peers>,
    tunnels: TunnelFeed,
    signals: Signals,
    /// What the peer has; `None`: nothing yet.
    reported: Option<Report>,
}

/// The signals of what is reported.
struct Signals {
    tunnels: watch::Receiver<()>,
    revoked: watch::Receiver<()>,
    /// Set if the peer follows this proxy.
    directory: Option<watch::Receiver<()>>,
}

/// What may have changed besides the tunnels.
#[derive(Clone, Copy, Default)]
struct Changed {
    revoked: bool,
    directory: bool,
}

/// All that a peer is to know at one time.
#[derive(Default)]
struct Report {
    draining: bool,
    revoked: BTreeSet<Revoked>,
    facts: Option<Arc<Facts>>,
}

impl Peers {
    /// The directory, if this proxy has made its nodes itself.
    fn allocates(&self) -> Result<&Directory, Status> {
        let directory = self.trust.directory();
        let reason = match &self.primary {
            Some(primary) => format!(
                "proxy {} follows {} itself: follow that one",
                self.own.host,
                primary.host()
            ),
            None if directory.is_cluster() => format!(
                "proxy {} has its nodes from its cluster and cannot be followed: use --peer",
                self.own.host
            ),
            None => return Ok(directory),
        };
        Err(Status::failed_precondition(reason))
    }
}

impl Signals {
    /// Waits for a change, and for a moment more.
    async fn next(&mut self) -> Changed {
        let mut changed = Changed::default();
        // The senders live as long as the peers.
        tokio::select! {
            _ = self.tunnels.changed() => {}
            _ = self.revoked.changed() => changed.revoked = true,
            () = signalled(&mut self.directory) => changed.directory = true,
        }
        tokio::time::sleep(GATHER).await;
        reset(&mut self.tunnels);
        changed.revoked |= reset(&mut self.revoked);
        if let Some(directory) = &mut self.directory {
            changed.directory |= reset(directory);
        }
        changed
    }

    /// As if everything that is reported had changed.
    fn all(&self) -> Changed {
        Changed {
            revoked: true,
            directory: self.directory.is_some(),
        }
    }
}

/// Waits for a signal; without one, forever.
async fn signalled(signal: &mut Option<watch::Receiver<()>>) {
    match signal {
        Some(signal) => drop(signal.changed().await),
        None => std::future::pending().await,
    }
}

/// Whether there was a signal. It is not seen again.
fn reset(signal: &mut watch::Receiver<()>) -> bool {
    let has_changed = signal.has_changed().unwrap_or(true);
    signal.mark_unchanged();
    has_changed
}

impl Watcher {
    /// The snapshot at first, then the next change.
    async fn next(&mut self) -> proto::Update {
        loop {
            let changed = match &self.reported {
                None => self.signals.all(),
                Some(reported) => {
                    let mut agents = self.peers.agents.clone();
                    tokio::select! {
                        changed = self.signals.next() => changed,
                        () = draining_differs(&mut agents, reported.draining) => self.signals.all(),
                    }
                }
            };
            if let Some(update) = self.update(changed).await {
                return update;
            }
        }
    }

    /// What the peer does not have yet; `None`: it has everything.
    async fn update(&mut self, changed: Changed) -> Option<proto::Update> {
        let is_first = self.reported.is_none();
        let before = self.reported.take().unwrap_or_default();
        let present = self.present(changed, &before).await;
        let mut update = present.since(&before);
        let tunnels = self.tunnels.unseen_changes();
        update.closed = tunnels.closed;
        for tunnel in tunnels.opened.values() {
            update.opened.push(tunnel_message(tunnel));
        }
        let differs = update != proto::Update::default() || present.draining != before.draining;
        update.draining = present.draining;
        if is_first {
            update.proxy = Some(proxy_message(&self.peers.own));
        }
        self.reported = Some(present);
        if is_first || differs {
            Some(update)
        } else {
            None
        }
    }

    /// What is to be known now. What has not changed is that of `before`.
    async fn present(&self, changed: Changed, before: &Report) -> Report {
        // First the directory: so no node is reported without its revocation.
        let facts = if changed.directory {
            self.facts().await
        } else {
            before.facts.clone()
        };
        let revoked = if changed.revoked {
            self.peers.trust.all_revoked().into_iter().collect()
        } else {
            before.revoked.clone()
        };
        Report {
            draining: is_draining(*self.peers.agents.borrow()),
            revoked,
            facts,
        }
    }

    async fn facts(&self) -> Option<Arc<Facts>> {
        // A change of the directory may be on its way to the disk.
        let directory = self.peers.trust.directory().clone();
        let facts = tokio::task::spawn_blocking(move || directory.facts()).await;
        facts.ok().flatten().map(Arc::new)
    }
}

impl Report {
    /// What is new since `before`, without the tunnels.
    fn since(&self, before: &Self) -> proto::Update {
        let mut update = proto::Update::default();
        for revoked in self.revoked.difference(&before.revoked) {
            update.revoked.push(revocation_message(revoked));
        }
        if self.facts != before.facts {
            update.directory = self.facts.as_deref().map(directory_message);
        }
        update
    }
}

/// Waits until this proxy drains, or no longer does. The sender lives as long as the process.
async fn draining_differs(agents: &mut watch::Receiver<AgentTarget>, reported: bool) {
    drop(agents.wait_for(|to| is_draining(*to) != reported).await);
}

fn is_draining(agents: AgentTarget) -> bool {
    agents == AgentTarget::Others
}

fn tunnel_message(tunnel: &Registered) -> proto::Tunnel {
    proto::Tunnel {
        generation: tunnel.generation,
        node: tunnel.node.to_string(),
        instance: tunnel.rank.instance.clone(),
        slot: tunnel.rank.slot.clone(),
        sequence: tunnel.rank.sequence,
        started: tunnel.rank.started,
    }
}
