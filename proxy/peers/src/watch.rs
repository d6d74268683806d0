//! `culvert.peer.v1`: tells other proxies which tunnels end here, what was revoked, that this proxy
//! drains, and if they follow it, its directory.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::peer as proto;
use culvert_api::proto::peer::peer_server::Peer;
use culvert_proxy_core::directory::{Directory, Facts};
use culvert_proxy_streams::elsewhere::PeerInfo;
use culvert_proxy_streams::registry::{Registered, TunnelFeed};
use culvert_proxy_streams::sockets::listen::AgentsGo;
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
            changes: Changes {
                tunnels: self.0.registry.changes(),
                revoked: self.0.trust.revocation_news(),
                directory: if directory {
                    Some(self.0.allocates()?.changes())
                } else {
                    None
                },
            },
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
    tunnels: TunnelFeed,
    changes: Changes,
    told: Option<Told>,
}

/// The signals of what peers are told.
struct Changes {
    tunnels: watch::Receiver<()>,
    revoked: watch::Receiver<()>,
    /// Set if the peer follows this proxy.
    directory: Option<watch::Receiver<()>>,
}

/// Which of them may have changed besides the tunnels.
#[derive(Clone, Copy, Default)]
struct News {
    revoked: bool,
    directory: bool,
}

#[derive(Default)]
struct Told {
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
                "proxy {} has its nodes from its cluster, which nobody can follow: use --peer",
                self.own.host
            ),
            None => return Ok(directory),
        };
        Err(Status::failed_precondition(reason))
    }
}

impl Changes {
    /// Waits for a change, and for a moment more.
    async fn next(&mut self) -> News {
        let directory = async {
            match &mut self.directory {
                Some(directory) => drop(directory.changed().await),
                None => std::future::pending().await,
            }
        };
        // The senders live as long as the peers.
        let news = tokio::select! {
            _ = self.tunnels.changed() => News::default(),
            _ = self.revoked.changed() => News { revoked: true, ..News::default() },
            () = directory => News { directory: true, ..News::default() },
        };
        tokio::time::sleep(GATHER).await;
        let meanwhile = self.now();
        News {
            revoked: news.revoked || meanwhile.revoked,
            directory: news.directory || meanwhile.directory,
        }
    }

    /// What has changed since the last look.
    fn now(&mut self) -> News {
        let look = |signal: &mut watch::Receiver<()>| {
            let has_changed = signal.has_changed().unwrap_or(true);
            signal.mark_unchanged();
            has_changed
        };
        look(&mut self.tunnels);
        News {
            revoked: look(&mut self.revoked),
            directory: self.directory.as_mut().is_some_and(look),
        }
    }
}

impl Watcher {
    async fn next(&mut self) -> proto::Update {
        let mut news = News {
            revoked: true,
            directory: self.changes.directory.is_some(),
        };
        loop {
            if let Some(told) = &self.told {
                let mut agents = self.peers.agents.clone();
                let draining = told.draining;
                news = tokio::select! {
                    news = self.changes.next() => news,
                    () = has_changed(&mut agents, draining) => News {
                        revoked: true,
                        directory: self.changes.directory.is_some(),
                    },
                };
            }
            if let Some(update) = self.update(news).await {
                return update;
            }
        }
    }

    /// What the peer does not know yet.
    async fn update(&mut self, news: News) -> Option<proto::Update> {
        let before = self.told.take();
        let is_first = before.is_none();
        let before = before.unwrap_or_default();
        // First the directory: so no node is told to be there without its revocation.
        let facts = if news.directory {
            self.facts().await
        } else {
            before.facts.clone()
        };
        let revoked = if news.revoked {
            self.peers.trust.all_revoked().into_iter().collect()
        } else {
            before.revoked.clone()
        };
        let present = Told {
            draining: is_draining(*self.peers.agents.borrow()),
            revoked,
            facts,
        };
        let tunnels = self.tunnels.news();
        let update = proto::Update {
            opened: tunnels
                .opened
                .values()
                .map(|tunnel| as_proto(tunnel))
                .collect(),
            closed: tunnels.closed,
            ..present.since(&before)
        };
        let draining = present.draining;
        self.told = Some(present);
        let proxy = is_first.then(|| proxy_message(&self.peers.own));
        let is_news = is_first || update != proto::Update::default() || draining != before.draining;
        is_news.then_some(proto::Update {
            proxy,
            draining,
            ..update
        })
    }

    async fn facts(&self) -> Option<Arc<Facts>> {
        // A change of the directory may be on its way to the disk.
        let directory = self.peers.trust.directory().clone();
        let facts = tokio::task::spawn_blocking(move || directory.facts()).await;
        facts.ok().flatten().map(Arc::new)
    }
}

impl Told {
    /// What is new since `before`, without the tunnels.
    fn since(&self, before: &Self) -> proto::Update {
        let has_other_facts = self.facts != before.facts;
        proto::Update {
            revoked: self
                .revoked
                .difference(&before.revoked)
                .map(revocation_message)
                .collect(),
            directory: self
                .facts
                .as_deref()
                .filter(|_| has_other_facts)
                .map(directory_message),
            ..proto::Update::default()
        }
    }
}

/// Waits until a peer must be told otherwise. The sender lives as long as the process.
async fn has_changed(agents: &mut watch::Receiver<AgentsGo>, told: bool) {
    drop(agents.wait_for(|to| is_draining(*to) != told).await);
}

fn is_draining(agents: AgentsGo) -> bool {
    agents == AgentsGo::Elsewhere
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
