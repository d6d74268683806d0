//! Counters of payload bytes, for each stream and for all streams of a program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Payload bytes of a stream so far. The default value belongs to no [`Total`].
#[derive(Debug, Default)]
pub struct Transferred {
    /// Bytes read from this end's socket and sent into the tunnel.
    pub into_tunnel: Meter,
    /// Bytes received from the tunnel and written to this end's socket.
    pub out_of_tunnel: Meter,
}

/// Payload bytes of all streams that [began](Self::begin) with it, including those that have ended.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Total {
    into_tunnel: Arc<AtomicU64>,
    out_of_tunnel: Arc<AtomicU64>,
}

/// Bytes of a stream in one direction. They are added to the total as they pass, because a stream
/// may live for weeks.
#[derive(Debug, Default)]
pub struct Meter {
    bytes: AtomicU64,
    total: Arc<AtomicU64>,
}

impl Total {
    /// Begins the counters of a stream.
    #[must_use]
    pub fn begin(&self) -> Transferred {
        let meter = |total: &Arc<AtomicU64>| Meter {
            bytes: AtomicU64::new(0),
            total: total.clone(),
        };
        Transferred {
            into_tunnel: meter(&self.into_tunnel),
            out_of_tunnel: meter(&self.out_of_tunnel),
        }
    }

    /// [`Transferred::into_tunnel`] of all streams.
    #[must_use]
    pub fn into_tunnel(&self) -> u64 {
        self.into_tunnel.load(Ordering::Relaxed)
    }

    /// [`Transferred::out_of_tunnel`] of all streams.
    #[must_use]
    pub fn out_of_tunnel(&self) -> u64 {
        self.out_of_tunnel.load(Ordering::Relaxed)
    }
}

impl Meter {
    /// Counts `bytes` more.
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.total.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_has_the_bytes_of_streams_under_way_and_of_those_that_ended() {
        let total = Total::default();
        let (first, second) = (total.begin(), total.begin());
        first.into_tunnel.add(3);
        second.into_tunnel.add(4);
        second.out_of_tunnel.add(50);
        assert_eq!(
            (first.into_tunnel.bytes(), second.into_tunnel.bytes()),
            (3, 4)
        );
        drop(second);
        assert_eq!((total.into_tunnel(), total.out_of_tunnel()), (7, 50));
    }
}
