//! Counters of payload bytes, for each stream and for all streams of a program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Payload bytes of a stream so far. The default value belongs to no [`Total`].
#[derive(Debug, Default)]
pub struct Transferred {
    /// Bytes read from this end's socket and sent into the tunnel.
    pub into_tunnel: Meter,
    /// Bytes received from the tunnel and written to this end's socket.
    pub out_of_tunnel: Meter,
}

/// A direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From this end's socket.
    #[default]
    IntoTunnel,
    /// To this end's socket.
    OutOfTunnel,
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
    direction: Direction,
    /// The direction in which the stream's last bytes went, of both its meters: 0 while there are
    /// none, 1 into the tunnel, 2 out of it.
    last: Arc<AtomicU8>,
}

impl Total {
    /// Begins the counters of a stream.
    #[must_use]
    pub fn begin(&self) -> Transferred {
        let last = Arc::new(AtomicU8::new(0));
        Transferred {
            into_tunnel: Meter {
                bytes: AtomicU64::new(0),
                total: self.into_tunnel.clone(),
                direction: Direction::IntoTunnel,
                last: last.clone(),
            },
            out_of_tunnel: Meter {
                bytes: AtomicU64::new(0),
                total: self.out_of_tunnel.clone(),
                direction: Direction::OutOfTunnel,
                last,
            },
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

impl Transferred {
    /// The direction in which the last bytes went. `None`: there were none yet, or it belongs to no
    /// [`Total`].
    #[must_use]
    pub fn last(&self) -> Option<Direction> {
        match self.into_tunnel.last.load(Ordering::Relaxed) {
            1 => Some(Direction::IntoTunnel),
            2 => Some(Direction::OutOfTunnel),
            _ => None,
        }
    }
}

impl Meter {
    /// Counts `bytes` more.
    pub fn add(&self, bytes: usize) {
        let last = match self.direction {
            Direction::IntoTunnel => 1,
            Direction::OutOfTunnel => 2,
        };
        self.last.store(last, Ordering::Relaxed);
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
    fn a_stream_knows_which_way_its_last_bytes_went() {
        let stream = Total::default().begin();
        assert_eq!(stream.last(), None);
        stream.into_tunnel.add(3);
        stream.out_of_tunnel.add(50);
        assert_eq!(stream.last(), Some(Direction::OutOfTunnel));
        stream.into_tunnel.add(3);
        assert_eq!(stream.last(), Some(Direction::IntoTunnel));
    }

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
