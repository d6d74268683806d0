//! The state of an agent's running tunnel: its streams and its round trip.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{StreamEnd, StreamError};
use crate::http2::RoundTrip;
use crate::proto::tunnel::Open;
use crate::transferred::{Total, Transferred};

/// The state of a running tunnel. Clones share it. With the default, streams count in no total.
#[derive(Clone, Debug, Default)]
pub struct AgentTunnelState(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    round_trip: RoundTrip,
    total: Total,
    next: AtomicU64,
    streams: Mutex<BTreeMap<u64, Arc<LiveStream>>>,
    worn_out: Notify,
}

/// A stream that is being relayed.
#[derive(Debug)]
pub struct LiveStream {
    /// The proxy's request.
    pub open: Open,
    /// The time of the request.
    pub since: Instant,
    /// Bytes so far.
    pub transferred: Transferred,
}

impl AgentTunnelState {
    /// The state of a tunnel whose streams count in `total`.
    #[must_use]
    pub fn new(total: Total) -> Self {
        Self(Arc::new(Inner {
            total,
            ..Inner::default()
        }))
    }

    /// The streams of the tunnel now, including those that dial.
    #[must_use]
    pub fn streams(&self) -> Vec<Arc<LiveStream>> {
        self.lock().values().cloned().collect()
    }

    /// Round-trip time to the proxy, once measured.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.0.round_trip.last()
    }

    /// Completes once, when the tunnel has carried as many streams as it may. It still works, but
    /// another tunnel should replace it before HTTP/2 runs out of stream numbers.
    pub async fn worn_out(&self) {
        self.0.worn_out.notified().await;
    }

    pub(super) fn wear_out(&self) {
        self.0.worn_out.notify_one();
    }

    /// The handle that records the round-trip time.
    pub(super) fn round_trip_handle(&self) -> RoundTrip {
        self.0.round_trip.clone()
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, BTreeMap<u64, Arc<LiveStream>>> {
        self.0.streams.lock()
    }
}

/// The permit of one stream, and its entry in the list of live streams. Dropping it releases both.
pub(super) struct StreamPermit {
    state: AgentTunnelState,
    number: u64,
    pub(super) stream: Arc<LiveStream>,
}

impl StreamPermit {
    /// For a stream that begins.
    pub(super) fn acquire(state: &AgentTunnelState, limit: u32, open: Open) -> Option<Self> {
        let stream = LiveStream {
            open,
            since: Instant::now(),
            transferred: state.0.total.start_stream(),
        };
        Self::acquire_for(state, limit, Arc::new(stream))
    }

    /// For a stream of another tunnel.
    pub(super) fn acquire_for(
        state: &AgentTunnelState,
        limit: u32,
        stream: Arc<LiveStream>,
    ) -> Option<Self> {
        let mut streams = state.lock();
        if streams.len() >= limit as usize {
            return None;
        }
        let number = state.0.next.fetch_add(1, Ordering::Relaxed);
        streams.insert(number, stream.clone());
        Some(Self {
            state: state.clone(),
            number,
            stream,
        })
    }
}

impl LiveStream {
    pub(super) fn end(&self, result: Result<(), StreamError>) -> StreamEnd {
        StreamEnd {
            into_tunnel: self.transferred.into_tunnel.bytes(),
            out_of_tunnel: self.transferred.out_of_tunnel.bytes(),
            duration: self.since.elapsed(),
            result,
        }
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.state.lock().remove(&self.number);
    }
}
