//! The connections of clients: the open ones for `/debug/streams`, and one log line for each when
//! it ends.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use culvert_api::{ClaimedUser, NodeName};
use culvert_daemon::{Counts, chain};
use culvert_proxy_core::directory::Destination;
use culvert_proxy_core::metrics::{Metrics, UnansweredDial};
use culvert_tunnel::{Direction, MovableStream, RelayError, Transferred};
use parking_lot::{Mutex, MutexGuard};
use strum::VariantArray;
use tokio::sync::watch;

use crate::ended::{EndedStream, EndedStreams};
use crate::error::RouteError;
use crate::recent::Recent;
use crate::registry::{Candidate, MoveReason, Registry, StreamPlace, TrackedStream, Tracking};
use crate::view::StreamView;

/// The way by which a connection came to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Frontend {
    /// Steered by the connect hook.
    Ebpf,
    /// Steered by nftables.
    Nftables,
    /// HTTP CONNECT on the Unix socket.
    ConnectSocket,
    /// HTTP CONNECT over mutual TLS.
    ConnectTls,
    /// A name-routed port, by the server name in TLS.
    NameTls,
    /// A name-routed port, by the host of an HTTP request.
    NameHttp,
    /// A forwarded port.
    Forward,
    /// The view for users of a cluster.
    View,
}

impl Frontend {
    /// Label for metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Nftables => "nftables",
            Self::ConnectSocket => "connect_socket",
            Self::ConnectTls => "connect_tls",
            Self::NameTls => "name_tls",
            Self::NameHttp => "name_http",
            Self::Forward => "forward",
            Self::View => "view",
        }
    }
}

/// How many open connections are copied under one lock.
const COPIED_AT_ONCE: usize = 1024;

/// All open connections of clients. Clones share it.
#[derive(Clone)]
pub struct Streams(Arc<Shared>);

struct Shared {
    /// What has begun and ended lately.
    recent: Recent<StreamEvent>,
    live: Mutex<BTreeMap<u64, Arc<Live>>>,
    count_tx: watch::Sender<usize>,
    metrics: Metrics,
    /// Absent if ended connections go to the log only.
    ended: Option<EndedStreams>,
}

struct Live {
    number: u64,
    frontend: Frontend,
    client: String,
    claimed_user: OnceLock<ClaimedUser>,
    destination: Destination,
    node: OnceLock<NodeName>,
    direct: AtomicBool,
    since: Instant,
    transferred: Arc<Transferred>,
    /// Set once it is open in a tunnel.
    tracked: OnceLock<Arc<TrackedStream>>,
}

/// A connection that has begun or ended.
#[derive(Clone)]
pub struct StreamEvent {
    live: Arc<Live>,
    /// When.
    pub at: SystemTime,
    /// `None`: it has begun.
    pub end: Option<Arc<StreamEnd>>,
}

/// How a connection ended.
pub struct StreamEnd {
    age_seconds: f64,
    /// How, as in the access log.
    pub outcome: &'static str,
    /// Why, if it failed.
    pub reason: Option<String>,
}

impl StreamEvent {
    /// The connection as it is now, or as it was at its end.
    pub fn view(&self) -> StreamView {
        let mut view = self.live.view();
        if let Some(end) = &self.end {
            view.age_seconds = end.age_seconds;
        }
        view
    }
}

/// A stream that is forwarded for another proxy.
pub struct Forwarded(Streams);

impl Drop for Forwarded {
    fn drop(&mut self) {
        self.0.0.metrics.forwarded_streams.dec();
        self.0.0.count_tx.send_modify(|count| *count -= 1);
    }
}

/// How a connection ended: the label, and the reason after a failure.
struct End {
    outcome: &'static str,
    reason: Option<String>,
}

/// The record of one client's connection. When it is dropped, it is logged and counted with the end
/// that was set.
pub struct StreamRecord {
    streams: Streams,
    live: Arc<Live>,
    dial: Option<Duration>,
    end: Option<End>,
}

impl Streams {
    /// Each connection that has ended goes to `ended`, if that is given.
    pub fn new(metrics: Metrics, ended: Option<EndedStreams>) -> Self {
        for frontend in Frontend::VARIANTS {
            metrics.expect_stream(frontend.label(), RelayError::Budget.reason());
        }
        Self(Arc::new(Shared {
            recent: Recent::default(),
            live: Mutex::default(),
            count_tx: watch::Sender::new(0),
            metrics,
            ended,
        }))
    }

    /// Begins the record of a client whose destination is known. `client` is its address or a
    /// description.
    pub fn start_record(
        &self,
        number: u64,
        frontend: Frontend,
        client: String,
        destination: Destination,
    ) -> StreamRecord {
        let since = Instant::now();
        let node = OnceLock::new();
        let transferred = Arc::new(self.0.metrics.transferred.start_stream());
        let direct = AtomicBool::new(false);
        let live = Arc::new(Live {
            number,
            frontend,
            client,
            claimed_user: OnceLock::new(),
            destination,
            node,
            direct,
            since,
            transferred,
            tracked: OnceLock::new(),
        });
        self.lock().insert(number, live.clone());
        self.0.recent.add(StreamEvent {
            live: live.clone(),
            at: SystemTime::now(),
            end: None,
        });
        self.0.metrics.active_streams.inc();
        self.0.count_tx.send_modify(|count| *count += 1);
        StreamRecord {
            streams: self.clone(),
            live,
            dial: None,
            end: None,
        }
    }

    /// What has begun and ended lately.
    pub fn recent(&self) -> &Recent<StreamEvent> {
        &self.0.recent
    }

    /// Counts a stream that is forwarded for another proxy, until the result is dropped.
    pub fn forward(&self) -> Forwarded {
        self.0.metrics.forwarded_streams.inc();
        self.0.count_tx.send_modify(|count| *count += 1);
        Forwarded(self.clone())
    }

    /// Waits until no connection is open, and no stream of another proxy.
    pub async fn idle(&self) {
        let mut count_rx = self.0.count_tx.subscribe();
        // The sender is in `self`, so there is no error.
        let _idle = count_rx.wait_for(|count| *count == 0).await;
    }

    /// The payload bytes of every open connection so far, by its number: to the backend and to the
    /// client.
    pub fn counts(&self) -> Vec<(u64, Counts)> {
        let mut counts = Vec::new();
        for live in self.all() {
            let Transferred {
                into_tunnel,
                out_of_tunnel,
            } = &*live.transferred;
            counts.push((live.number, [into_tunnel.bytes(), out_of_tunnel.bytes()]));
        }
        counts
    }

    /// How many connections are open, and how many streams are forwarded for other proxies.
    pub fn totals(&self) -> [usize; 2] {
        let all = *self.0.count_tx.borrow();
        let clients = self.lock().len();
        [clients, all.saturating_sub(clients)]
    }

    /// Every open connection, oldest first.
    pub fn views(&self) -> Vec<StreamView> {
        self.all().iter().map(|live| live.view()).collect()
    }

    /// Connections that begin and end wait for the lock, so it is held for [`COPIED_AT_ONCE`] only,
    /// and not while texts are made.
    fn all(&self) -> Vec<Arc<Live>> {
        let mut all: Vec<Arc<Live>> = Vec::new();
        loop {
            let after = match all.last() {
                Some(last) => Bound::Excluded(last.number),
                None => Bound::Unbounded,
            };
            let before = all.len();
            let live = self.lock();
            for (_, live) in live.range((after, Bound::Unbounded)).take(COPIED_AT_ONCE) {
                all.push(live.clone());
            }
            if all.len() - before < COPIED_AT_ONCE {
                return all;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Live>>> {
        self.0.live.lock()
    }
}

impl Live {
    fn view(&self) -> StreamView {
        let mut view = StreamView {
            stream: self.number,
            frontend: self.frontend.label(),
            client: self.client.clone(),
            claimed_user: self.claimed_user.get().map(ClaimedUser::to_string),
            original_dst: self.destination.to_string(),
            node: self.node.get().cloned(),
            path: if self.direct.load(Ordering::Relaxed) {
                "direct"
            } else {
                "tunnel"
            },
            tunnel: None,
            peer: None,
            moves: 0,
            move_reason: None,
            age_seconds: self.since.elapsed().as_secs_f64(),
            bytes_to_backend: self.transferred.into_tunnel.bytes(),
            bytes_to_client: self.transferred.out_of_tunnel.bytes(),
            last_bytes: self.transferred.last().map(|last| match last {
                Direction::IntoTunnel => "to_backend",
                Direction::OutOfTunnel => "to_client",
            }),
            answer_is_due: self.transferred.answer_is_due(),
        };
        if let Some(tracked) = self.tracked.get() {
            match tracked.place() {
                StreamPlace::Tunnel(number) => view.tunnel = Some(number),
                StreamPlace::Peer(peer) => view.peer = Some(peer.host.clone()),
            }
            view.moves = tracked.moves();
            view.move_reason = tracked.move_reason().map(MoveReason::label);
        }
        view
    }
}

impl StreamRecord {
    /// Sets the node of the destination.
    pub fn set_node(&self, node: &NodeName) {
        // It is set once, because a connection goes to one node.
        self.live.node.get_or_init(|| node.clone());
    }

    /// Sets who the client says it is.
    pub fn set_claimed_user(&self, user: ClaimedUser) {
        // It is set once, because a connection has one request.
        self.live.claimed_user.get_or_init(|| user);
    }

    /// Marks a connection that the proxy dials itself, without a tunnel.
    pub fn mark_direct(&self) {
        self.live.direct.store(true, Ordering::Relaxed);
    }

    /// The number of the stream.
    pub(crate) fn number(&self) -> u64 {
        self.live.number
    }

    /// The counters of the payload.
    pub fn transferred(&self) -> &Transferred {
        &self.live.transferred
    }

    /// Shows which way the stream takes, which may change until the result is dropped.
    pub(crate) fn track(
        &self,
        registry: &Registry,
        node: &NodeName,
        way: Candidate,
        stream: Option<MovableStream>,
    ) -> Tracking {
        let transferred = self.live.transferred.clone();
        let tracking = registry.track(self.live.number, node, way, stream, transferred);
        // It is set once, because a connection is opened once.
        self.live.tracked.get_or_init(|| tracking.0.clone());
        tracking
    }

    /// Records how long the dial took, whatever came of it.
    pub fn set_dial_time(&mut self, took: Duration) {
        self.dial = Some(took);
    }

    /// Records that no connection was made.
    pub fn record_refusal(&mut self, error: &RouteError) {
        self.end = Some(End {
            outcome: error.reason(),
            reason: Some(chain(error)),
        });
    }

    /// Records the end of the relay.
    pub fn record_end(&mut self, result: &Result<(), RelayError>) {
        self.end = Some(match result {
            Ok(()) => End {
                outcome: "finished",
                reason: None,
            },
            Err(error) => End {
                outcome: error.reason(),
                reason: Some(chain(error)),
            },
        });
    }
}

impl Drop for StreamRecord {
    fn drop(&mut self) {
        let view = self.live.view();
        // The record has no end yet: the client left before its backend answered, or the proxy
        // stops.
        let End { outcome, reason } = self.end.take().unwrap_or(End {
            outcome: UnansweredDial::ClientLeft.into(),
            reason: None,
        });
        tracing::info!(
            stream = view.stream,
            frontend = view.frontend,
            client.addr = view.client,
            user_claimed = view.claimed_user,
            original_dst = view.original_dst,
            node = view.node.as_ref().map(NodeName::as_str),
            mechanism = view.path,
            bytes_to_backend = view.bytes_to_backend,
            bytes_to_client = view.bytes_to_client,
            moves = view.moves,
            move_reason = view.move_reason,
            duration_s = view.age_seconds,
            outcome,
            reason,
            "stream ended"
        );
        let Shared {
            metrics,
            count_tx,
            ended,
            recent,
            ..
        } = &*self.streams.0;
        recent.add(StreamEvent {
            live: self.live.clone(),
            at: SystemTime::now(),
            end: Some(Arc::new(StreamEnd {
                age_seconds: view.age_seconds,
                outcome,
                reason: reason.clone(),
            })),
        });
        metrics.stream_ended(view.frontend, outcome);
        metrics.active_streams.dec();
        self.streams.lock().remove(&view.stream);
        // Before the count, which the last spans wait for.
        if let Some(ended) = ended {
            ended.send(EndedStream {
                stream: view,
                ended: SystemTime::now(),
                dial: self.dial,
                outcome,
                reason,
            });
        }
        count_tx.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use culvert_api::HostPort;

    use super::*;

    #[test]
    fn every_connection_is_listed_once_however_many_there_are() {
        let streams = Streams::new(Metrics::default(), None);
        let destination: Destination = "10.0.3.7:9100".parse::<HostPort>().unwrap().into();
        let mut records = Vec::new();
        for number in 0..2 * COPIED_AT_ONCE as u64 + 1 {
            let client = "10.0.0.1:1".to_owned();
            records.push(streams.start_record(number, Frontend::Ebpf, client, destination.clone()));
        }
        let numbers = || -> Vec<u64> {
            let counts = streams.counts();
            counts.iter().map(|(number, _)| *number).collect()
        };
        let all: Vec<u64> = (0..records.len() as u64).collect();
        assert_eq!(numbers(), all);
        records.pop();
        assert_eq!(numbers(), all[..all.len() - 1]);
        records.clear();
        assert!(numbers().is_empty());
    }
}
