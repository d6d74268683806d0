//! Watches the link: received bytes are a sign of life; without any, the API server is probed.
//! Reports changes of the state to all that subscribed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{Drain, jittered};
use parking_lot::Mutex;
use strum::VariantArray;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::link::{Link, LinkState, Observation};
use super::{Credential, Upstream};

/// Silence after which an API server is asked whether it is there. Connections of HTTP/2 ask it
/// themselves after 6 s.
const ASK_AFTER: Duration = Duration::from_secs(8);
/// Silence after which an open connection is dead: three times as long as that of the pings.
const DEAD_AFTER: Duration = Duration::from_secs(18);
/// How often silence is measured.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The state of the link for the rest of the program.
#[derive(Clone, Debug)]
pub(crate) struct LinkStatus {
    pub(crate) state: LinkState,
    pub(crate) since: Instant,
    pub(crate) reason: String,
}

impl LinkStatus {
    pub(crate) fn is_up(&self) -> bool {
        self.state == LinkState::Up
    }

    pub(crate) fn label(&self) -> &'static str {
        if self.is_up() { "up" } else { "down" }
    }

    /// For how long it has been so.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

/// What is known of the link. Clones share it.
#[derive(Clone)]
pub(crate) struct LinkWatch(Arc<Shared>);

struct Shared {
    link: Mutex<Link>,
    /// For requests of the node, and of others.
    node: watch::Sender<LinkStatus>,
    others: watch::Sender<LinkStatus>,
    start: Instant,
    /// Milliseconds from `start` to the last byte.
    last_heard: AtomicU64,
    heard_bytes: AtomicU64,
    connections: AtomicU64,
    /// A try failed, or a connection ended: the next probe is due now.
    suspect: Notify,
}

impl LinkWatch {
    pub(crate) fn new() -> Self {
        let status = LinkStatus {
            state: LinkState::Down,
            since: Instant::now(),
            reason: "not connected yet".to_owned(),
        };
        Self(Arc::new(Shared {
            link: Mutex::new(Link::new()),
            node: watch::Sender::new(status.clone()),
            others: watch::Sender::new(status),
            start: Instant::now(),
            last_heard: AtomicU64::new(0),
            heard_bytes: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            suspect: Notify::new(),
        }))
    }

    /// The link for requests with this credential.
    pub(crate) fn status(&self, credential: Credential) -> LinkStatus {
        self.sender(credential).borrow().clone()
    }

    pub(crate) fn is_up(&self, credential: Credential) -> bool {
        self.sender(credential).borrow().is_up()
    }

    pub(crate) fn subscribe(&self, credential: Credential) -> watch::Receiver<LinkStatus> {
        self.sender(credential).subscribe()
    }

    fn sender(&self, credential: Credential) -> &watch::Sender<LinkStatus> {
        match credential {
            Credential::Node => &self.0.node,
            Credential::Bearer => &self.0.others,
        }
    }

    /// Whether the API server answers at all.
    fn is_reached(&self) -> bool {
        self.is_up(Credential::Bearer)
    }

    /// Records an observation. `reason` is for people.
    pub(crate) fn observe(&self, observation: Observation, reason: &str) {
        let mut link = self.0.link.lock();
        link.observe(observation);
        for &credential in Credential::VARIANTS {
            let state = link.state(credential);
            self.sender(credential).send_if_modified(|status| {
                let changed = status.state != state;
                let is_refused =
                    (credential, observation) == (Credential::Node, Observation::Refused);
                if !changed && is_refused && status.reason != reason {
                    tracing::warn!(reason, "the node stays without a link to the API server");
                }
                if changed {
                    tracing::info!(
                        ?credential,
                        ?state,
                        reason,
                        "the link to the API server changed"
                    );
                    status.state = state;
                    status.since = Instant::now();
                }
                if changed || state == LinkState::Down {
                    reason.clone_into(&mut status.reason);
                }
                changed
            });
        }
        drop(link);
        if observation == Observation::TryFailed && self.is_reached() {
            self.suspect();
        }
    }

    /// Something speaks against the link: the next probe is due now.
    pub(crate) fn suspect(&self) {
        self.0.suspect.notify_one();
    }

    /// Counts the bytes that a connection receives.
    pub(crate) fn listen_on<S>(&self, stream: S) -> HeardStream<S> {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        self.record_sound();
        HeardStream {
            stream,
            link: self.clone(),
        }
    }

    /// All bytes that came.
    pub(crate) fn heard_bytes(&self) -> u64 {
        self.0.heard_bytes.load(Ordering::Relaxed)
    }

    fn record_sound(&self) {
        let now = u64::try_from(self.0.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_heard.store(now, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.0.last_heard.load(Ordering::Relaxed));
        self.0.start.elapsed().saturating_sub(heard)
    }

    /// How many connections to the API server are open.
    pub(crate) fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::Relaxed)
    }
}

/// A connection whose received bytes count as life of the API server.
pub(crate) struct HeardStream<S> {
    stream: S,
    link: LinkWatch,
}

impl<S> Drop for HeardStream<S> {
    fn drop(&mut self) {
        self.link.0.connections.fetch_sub(1, Ordering::Relaxed);
        // It may have ended because the API server is gone.
        self.link.suspect();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeardStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let heard = buffer.filled().len() - before;
        if heard > 0 {
            let bytes = u64::try_from(heard).unwrap_or_default();
            self.link.0.heard_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.link.record_sound();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeardStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Probes until the drain begins.
///
/// # Errors
/// None; the type is that of a supervised task.
pub(crate) async fn watch_link(upstream: Arc<Upstream>, drain: Drain) -> Result<()> {
    let watching = async {
        probe(&upstream).await;
        loop {
            if upstream.link.is_reached() {
                watch_while_up(&upstream).await;
            } else {
                // No client may wait for an answer on the dead link.
                upstream.abandon_connections();
                probe_while_down(&upstream).await;
            }
        }
    };
    tokio::select! {
        () = watching => {}
        () = drain.begun() => {}
    }
    Ok(())
}

async fn watch_while_up(upstream: &Upstream) {
    let link = &upstream.link;
    let mut probed = Instant::now();
    while link.is_reached() {
        let suspect = tokio::select! {
            () = sleep(CHECK_EVERY) => false,
            () = link.0.suspect.notified() => true,
        };
        upstream.close_idle_connections();
        let silence = link.silence();
        let doubt = link.0.link.lock().doubt();
        let due = suspect || doubt.is_some_and(|pause| probed.elapsed() >= pause);
        if link.connections() > 0 && silence >= DEAD_AFTER {
            link.observe(Observation::Silence, "the API server is silent");
        } else if due || silence >= ASK_AFTER {
            probed = Instant::now();
            if probe(upstream).await {
                // Connections that end one after the other are no reason to ask all the time.
                sleep(CHECK_EVERY).await;
            }
        } else if silence <= 2 * CHECK_EVERY {
            link.observe(Observation::Heard, "bytes came");
        }
    }
}

async fn probe_while_down(upstream: &Upstream) {
    while !upstream.link.is_reached() {
        let pause = upstream.link.0.link.lock().pause();
        sleep(jittered(pause)).await;
        probe(upstream).await;
    }
}

/// Whether the API server answered.
async fn probe(upstream: &Upstream) -> bool {
    let (observation, reason) = upstream.probe().await;
    upstream.link.observe(observation, &reason);
    observation != Observation::TryFailed
}
