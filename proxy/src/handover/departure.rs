//! The end of a proxy: its agents go elsewhere, its clients are served as long as possible, and
//! then the redirector keeps their sockets until the next proxy is there.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{
    HANDOVER_VERSION, Handover, HandoverError, Listeners, Message, SocketUse, chain,
};
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::sockets::listen::AgentTarget;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The last part of the grace period, in which a busy proxy accepts no more clients if the
/// redirector keeps their sockets: short streams end, and clients wait no longer than they would
/// notice.
const LAST_PART: Duration = Duration::from_secs(3);

const CLIENTS: &[SocketUse] = &[SocketUse::Clients];

/// The time in which agents set up tunnels to other proxies, if there are any, before a proxy
/// without streams ends.
const MOVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known about the end of this proxy. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Departure(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    agents: watch::Sender<AgentTarget>,
    is_giving: watch::Sender<bool>,
    successor: Mutex<Option<Handover>>,
    succeeded: CancellationToken,
}

/// What the last time of a proxy needs.
pub(crate) struct LastCall {
    pub(crate) listeners: Listeners,
    pub(crate) streams: Streams,
    pub(crate) registry: Registry,
    pub(crate) grace: Duration,
    /// The socket of the redirector that keeps the listeners of clients.
    pub(crate) redirector: PathBuf,
}

/// A hand-over that is under way. Dropping it ends it.
pub(crate) struct HandoverUnderWay(Departure);

impl Departure {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared {
            agents: watch::Sender::new(AgentTarget::ThisProxy),
            is_giving: watch::Sender::new(false),
            successor: Mutex::default(),
            succeeded: CancellationToken::new(),
        }))
    }

    /// Where agents should go, for what reports it to them, and for the agent port.
    pub(crate) fn agents(&self) -> watch::Receiver<AgentTarget> {
        self.0.agents.subscribe()
    }

    /// Changes where agents should go.
    pub(crate) fn send_agents(&self, to: AgentTarget) {
        self.0.agents.send_if_modified(|now| {
            let before = std::mem::replace(now, to);
            before != to
        });
    }

    /// A successor asks for the sockets: this proxy does not end before it has them or gives up.
    pub(crate) fn giving(&self) -> HandoverUnderWay {
        self.0.is_giving.send_replace(true);
        HandoverUnderWay(self.clone())
    }

    /// Another proxy has taken this one's place.
    pub(crate) fn succeeded_by(&self, successor: Handover) {
        *self.successor() = Some(successor);
        self.0.succeeded.cancel();
    }

    /// Runs a task until another proxy has taken this one's place: what listens until the end of
    /// the process would take the other one's connections.
    pub(crate) async fn until_succeeded(
        self,
        task: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        tokio::select! {
            ended = task => return ended,
            () = self.0.succeeded.cancelled() => {}
        }
        std::future::pending().await
    }

    /// Waits until the proxy that took this one's place has ended. Kubernetes starts a container
    /// that has ended again while its pod exists, and the new one would take everything back.
    pub(crate) async fn successor_ended(self) {
        let successor = self.successor().take();
        if let Some(successor) = successor {
            successor.ended().await;
        }
    }

    /// What a proxy that was told to end does before it drains. It serves clients until agents have
    /// tunnels elsewhere and there is a moment without clients, or until the grace period is nearly
    /// over. Then the redirector gets the listeners. Without a redirector a busy proxy serves to the
    /// end of the period.
    pub(crate) async fn last_call(self, last: LastCall) {
        let last_part = LAST_PART.min(last.grace / 4);
        let quiet = async {
            if !last.registry.peers().is_empty() {
                drop(timeout(MOVE_TIMEOUT, last.registry.all_at_peers()).await);
            }
            last.streams.idle().await;
        };
        tokio::select! {
            () = quiet => {}
            () = tokio::time::sleep(last.grace - last_part) => {}
        }
        let mut is_giving = self.0.is_giving.subscribe();
        // The sender is in `self`.
        drop(is_giving.wait_for(|is_giving| !is_giving).await);
        match last.leave_sockets().await {
            Ok(Some(())) => {
                return tracing::info!(
                    "the redirector keeps the sockets of clients until the next proxy is there"
                );
            }
            Ok(None) => tracing::info!(
                socket = %last.redirector.display(),
                "no redirector keeps the sockets of clients: none listens there"
            ),
            Err(error) => tracing::warn!(
                reason = chain(&error),
                "the redirector does not keep the sockets of clients"
            ),
        }
        last.streams.idle().await;
    }

    fn successor(&self) -> parking_lot::MutexGuard<'_, Option<Handover>> {
        self.0.successor.lock()
    }
}

impl Drop for HandoverUnderWay {
    fn drop(&mut self) {
        self.0.0.is_giving.send_replace(false);
    }
}

impl LastCall {
    /// `None`: no redirector keeps them.
    async fn leave_sockets(&self) -> Result<Option<()>, HandoverError> {
        let Some(redirector) = Handover::connect(&self.redirector).await? else {
            return Ok(None);
        };
        let left = self.leave_sockets_at(&redirector).await;
        match left {
            Ok(()) => self.listeners.release(CLIENTS),
            Err(_) => self.listeners.reclaim(CLIENTS),
        }
        left.map(Some)
    }

    async fn leave_sockets_at(&self, redirector: &Handover) -> Result<(), HandoverError> {
        let offered = self.listeners.offer(CLIENTS);
        let (sockets, descriptors) = offered.map_err(HandoverError::Socket)?;
        let keep = Message::Keep {
            version: HANDOVER_VERSION,
            sockets,
            reach: self.registry.reach(),
        };
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        redirector.send(&keep, &borrowed).await?;
        redirector.expect(&Message::Kept).await
    }
}
