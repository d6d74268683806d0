//! Counters of payload bytes, for each stream and for all streams of a program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::answer::{Answer, Direction};

/// Payload bytes of a stream so far. The default value has a [`Total`] of its own.
#[derive(Debug)]
pub struct Transferred {
    /// Bytes read from this end's socket and sent into the tunnel.
    pub into_tunnel: Meter,
    /// Bytes received from the tunnel and written to this end's socket.
    pub out_of_tunnel: Meter,
}

/// Payload bytes of all streams that [started](Self::start_stream) with it, including those that have ended.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Total {
    into_tunnel: Arc<AtomicU64>,
    out_of_tunnel: Arc<AtomicU64>,
}

/// Bytes of a stream in one direction. They are added to the total as they pass, because a stream
/// may live for weeks.
#[derive(Debug)]
pub struct Meter {
    bytes: AtomicU64,
    total: Arc<AtomicU64>,
    direction: Direction,
    /// Shared by both meters of the stream.
    answer: Arc<Mutex<Answer>>,
}

impl Total {
    /// The counters of a stream that starts.
    #[must_use]
    pub fn start_stream(&self) -> Transferred {
        let answer = Arc::<Mutex<Answer>>::default();
        Transferred {
            into_tunnel: Meter {
                bytes: AtomicU64::new(0),
                total: self.into_tunnel.clone(),
                direction: Direction::IntoTunnel,
                answer: answer.clone(),
            },
            out_of_tunnel: Meter {
                bytes: AtomicU64::new(0),
                total: self.out_of_tunnel.clone(),
                direction: Direction::OutOfTunnel,
                answer,
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

impl Default for Transferred {
    fn default() -> Self {
        Total::default().start_stream()
    }
}

impl Transferred {
    /// The direction in which the last bytes went. `None`: there were none yet.
    #[must_use]
    pub fn last(&self) -> Option<Direction> {
        self.into_tunnel.answer().last()
    }

    /// Whether the other end's socket has bytes of this end's socket that it has not answered. For
    /// the end that the client is connected to.
    #[must_use]
    pub fn answer_is_due(&self) -> bool {
        self.into_tunnel.answer().is_due()
    }
}

impl Meter {
    /// Counts these bytes, which are the next ones of the stream.
    pub fn add(&self, bytes: &[u8]) {
        self.answer().pass(self.direction, bytes);
        let count = bytes.len() as u64;
        self.bytes.fetch_add(count, Ordering::Relaxed);
        self.total.fetch_add(count, Ordering::Relaxed);
    }

    fn answer(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock()
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
        let stream = Total::default().start_stream();
        assert_eq!(stream.last(), None);
        stream.into_tunnel.add(&[0; 3]);
        stream.out_of_tunnel.add(&[0; 50]);
        assert_eq!(stream.last(), Some(Direction::OutOfTunnel));
        stream.into_tunnel.add(&[0; 3]);
        assert_eq!(stream.last(), Some(Direction::IntoTunnel));
    }

    #[test]
    fn a_total_has_the_bytes_of_streams_under_way_and_of_those_that_ended() {
        let total = Total::default();
        let first = total.start_stream();
        let second = total.start_stream();
        first.into_tunnel.add(&[0; 3]);
        second.into_tunnel.add(&[0; 4]);
        second.out_of_tunnel.add(&[0; 50]);
        assert_eq!(
            (first.into_tunnel.bytes(), second.into_tunnel.bytes()),
            (3, 4)
        );
        drop(second);
        assert_eq!((total.into_tunnel(), total.out_of_tunnel()), (7, 50));
    }
}
