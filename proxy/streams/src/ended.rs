//! The connections of clients that have ended, for exporters besides the log.

use std::time::{Duration, SystemTime};

use culvert_proxy_core::metrics::{Metrics, SpanOutcome};
use tokio::sync::mpsc;

use crate::view::StreamView;

/// Connections that may wait. A few seconds of a busy proxy, in at most some MB.
const QUEUE: usize = 4096;

/// A connection that has ended.
#[derive(Debug)]
pub struct EndedStream {
    /// As it was at its end.
    pub stream: StreamView,
    /// When it ended.
    pub ended: SystemTime,
    /// From the request for the backend to its answer, or to the failure. `None`: nothing was
    /// dialled, or the client left before the answer.
    pub dial: Option<Duration>,
    /// As in the metrics.
    pub outcome: &'static str,
    /// The reason, in words.
    pub reason: Option<String>,
}

/// Passes ended connections on. It never waits: what finds the queue full is dropped and counted.
#[derive(Clone, Debug)]
pub struct EndedStreams {
    ended_tx: mpsc::Sender<EndedStream>,
    metrics: Metrics,
}

impl EndedStreams {
    /// The queue.
    pub fn channel(metrics: Metrics) -> (Self, mpsc::Receiver<EndedStream>) {
        let (ended_tx, ended_rx) = mpsc::channel(QUEUE);
        (Self { ended_tx, metrics }, ended_rx)
    }

    pub(super) fn send(&self, ended: EndedStream) {
        if self.ended_tx.try_send(ended).is_err() {
            self.metrics.spans(SpanOutcome::Dropped, 1);
        }
    }
}
