//! The connections of clients: live ones for `/debug/streams`, and one log line for each at its
//! end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use culvert_api::NodeName;
use culvert_daemon::{Counts, chain};
use culvert_tunnel::{RelayError, Transferred};
use serde::Serialize;
use tokio::sync::watch;

use crate::directory::Destination;
use crate::metrics::Metrics;
use crate::streams::error::RouteError;

/// How a connection came to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frontend {
    /// Steered by the connect hook.
    Ebpf,
    /// Steered by nftables.
    Nftables,
    /// HTTP CONNECT on the Unix socket.
    ConnectSocket,
    /// HTTP CONNECT over mutual TLS.
    ConnectTls,
}

impl Frontend {
    /// Label for metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Nftables => "nftables",
            Self::ConnectSocket => "connect_socket",
            Self::ConnectTls => "connect_tls",
        }
    }
}

/// All live connections of clients. Clones share it.
#[derive(Clone)]
pub(crate) struct Streams(Arc<Shared>);

struct Shared {
    live: Mutex<BTreeMap<u64, Arc<Live>>>,
    count_tx: watch::Sender<usize>,
    metrics: Metrics,
}

struct Live {
    number: u64,
    frontend: Frontend,
    client: String,
    destination: Destination,
    node: OnceLock<NodeName>,
    direct: AtomicBool,
    since: Instant,
    transferred: Transferred,
}

/// A live connection as `/debug/streams` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct StreamView {
    pub(crate) stream: u64,
    frontend: &'static str,
    client: String,
    original_dst: String,
    node: Option<NodeName>,
    /// `tunnel`, or `direct` from the proxy itself.
    mechanism: &'static str,
    age_seconds: f64,
    bytes_to_backend: u64,
    bytes_to_client: u64,
}

/// How a connection ended: the label, and the text where something was wrong.
struct End {
    outcome: &'static str,
    reason: Option<String>,
}

/// One client's connection: logged and counted when it is dropped, with the end that it was told.
pub(crate) struct StreamRecord {
    streams: Streams,
    live: Arc<Live>,
    end: Option<End>,
}

impl Streams {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self(Arc::new(Shared {
            live: Mutex::default(),
            count_tx: watch::Sender::new(0),
            metrics,
        }))
    }

    /// A client has said where it wants to go. `client` is its address, or what it is.
    pub(crate) fn begin(
        &self,
        number: u64,
        frontend: Frontend,
        client: String,
        destination: Destination,
    ) -> StreamRecord {
        let (since, node, transferred) = (
            Instant::now(),
            OnceLock::new(),
            self.0.metrics.transferred.begin(),
        );
        let direct = AtomicBool::new(false);
        let live = Arc::new(Live {
            number,
            frontend,
            client,
            destination,
            node,
            direct,
            since,
            transferred,
        });
        self.lock().insert(number, live.clone());
        self.0.metrics.active_streams.inc();
        self.0.count_tx.send_modify(|count| *count += 1);
        StreamRecord {
            streams: self.clone(),
            live,
            end: None,
        }
    }

    /// Waits until there is no live connection.
    pub(crate) async fn idle(&self) {
        let mut count_rx = self.0.count_tx.subscribe();
        // An error would mean that the sender is gone, which `self` holds.
        let _idle = count_rx.wait_for(|count| *count == 0).await;
    }

    /// The payload of every live connection so far, by its number: to the backend and to the
    /// client.
    pub(crate) fn counts(&self) -> Vec<(u64, Counts)> {
        let counts = |live: &Live| {
            [
                live.transferred.into_tunnel.bytes(),
                live.transferred.out_of_tunnel.bytes(),
            ]
        };
        self.lock()
            .iter()
            .map(|(number, live)| (*number, counts(live)))
            .collect()
    }

    /// Every live connection, oldest first.
    pub(crate) fn views(&self) -> Vec<StreamView> {
        // What is shown is made without the lock, for which connections that begin and end would
        // wait.
        let live: Vec<_> = self.lock().values().cloned().collect();
        live.iter().map(|live| live.view()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Live>>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    fn view(&self) -> StreamView {
        StreamView {
            stream: self.number,
            frontend: self.frontend.label(),
            client: self.client.clone(),
            original_dst: self.destination.to_string(),
            node: self.node.get().cloned(),
            mechanism: if self.direct.load(Ordering::Relaxed) {
                "direct"
            } else {
                "tunnel"
            },
            age_seconds: self.since.elapsed().as_secs_f64(),
            bytes_to_backend: self.transferred.into_tunnel.bytes(),
            bytes_to_client: self.transferred.out_of_tunnel.bytes(),
        }
    }
}

impl StreamRecord {
    /// The node that the destination leads to.
    pub(crate) fn routed_to(&self, node: &NodeName) {
        // Set once: a connection goes to one node.
        self.live.node.get_or_init(|| node.clone());
    }

    /// No tunnel is needed: the proxy itself dials.
    pub(crate) fn direct(&self) {
        self.live.direct.store(true, Ordering::Relaxed);
    }

    /// The number of the stream.
    pub(crate) fn number(&self) -> u64 {
        self.live.number
    }

    /// Where bytes are counted.
    pub(crate) fn transferred(&self) -> &Transferred {
        &self.live.transferred
    }

    /// There was no connection.
    pub(crate) fn not_routed(&mut self, error: &RouteError) {
        self.end = Some(End {
            outcome: error.reason(),
            reason: Some(chain(error)),
        });
    }

    /// The relay has ended.
    pub(crate) fn relayed(&mut self, result: &Result<(), RelayError>) {
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
        // A record dropped without an end: the client left before its backend answered, or the
        // proxy ends.
        let End { outcome, reason } = self.end.take().unwrap_or(End {
            outcome: "client_left",
            reason: None,
        });
        tracing::info!(
            stream = view.stream,
            frontend = view.frontend,
            client.addr = view.client,
            original_dst = view.original_dst,
            node = view.node.as_ref().map(NodeName::as_str),
            mechanism = view.mechanism,
            bytes_to_backend = view.bytes_to_backend,
            bytes_to_client = view.bytes_to_client,
            duration_s = view.age_seconds,
            outcome,
            reason,
            "stream ended"
        );
        let Shared {
            metrics, count_tx, ..
        } = &*self.streams.0;
        metrics.stream_ended(view.frontend, outcome);
        metrics.active_streams.dec();
        self.streams.lock().remove(&view.stream);
        count_tx.send_modify(|count| *count -= 1);
    }
}
