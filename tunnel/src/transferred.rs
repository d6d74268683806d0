//! Payload bytes: of each stream, and of all streams of a program together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Payload bytes of a stream so far. The default counts in no total.
#[derive(Debug, Default)]
pub struct Transferred {
    /// Read from this end's socket and given to the tunnel.
    pub into_tunnel: Meter,
    /// Taken from the tunnel and written to this end's socket.
    pub out_of_tunnel: Meter,
}

/// Payload bytes of all streams that [began](Self::begin) with it, those that have ended too.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Total {
    into_tunnel: Arc<AtomicU64>,
    out_of_tunnel: Arc<AtomicU64>,
}

/// Bytes of a stream in one direction. They count in its total as they pass, not at its end: a
/// stream may live for weeks.
#[derive(Debug, Default)]
pub struct Meter {
    bytes: AtomicU64,
    total: Arc<AtomicU64>,
}

impl Total {
    /// A stream begins.
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

    /// As [`Transferred::into_tunnel`], of all streams.
    #[must_use]
    pub fn into_tunnel(&self) -> u64 {
        self.into_tunnel.load(Ordering::Relaxed)
    }

    /// As [`Transferred::out_of_tunnel`], of all streams.
    #[must_use]
    pub fn out_of_tunnel(&self) -> u64 {
        self.out_of_tunnel.load(Ordering::Relaxed)
    }
}

impl Meter {
    /// `bytes` more have passed.
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
