//! Whether bulk data keeps a tunnel busy. A small message beside it waits for queues and for lost
//! packets, so new connections go to tunnels that are not busy.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in a second, both ways, of a tunnel that is busy: half of what 1 Mbit/s can carry.
const BUSY: u64 = 64 << 10;

/// The bytes that passed in this second and in the one before. One thread counts them; others read
/// them, and may see a second's begin a moment late.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    second: AtomicU64,
    bytes: AtomicU64,
    before: AtomicU64,
}

impl Traffic {
    /// Counts bytes that pass in a second of this number.
    pub(crate) fn add(&self, bytes: usize, second: u64) {
        let [now, before] = self.at(second);
        self.second.store(second, Ordering::Relaxed);
        self.bytes.store(now + bytes as u64, Ordering::Relaxed);
        self.before.store(before, Ordering::Relaxed);
    }

    /// Whether the tunnel is busy in the second of this number, or was so in the one before.
    pub(crate) fn is_busy(&self, second: u64) -> bool {
        self.at(second).into_iter().any(|bytes| bytes >= BUSY)
    }

    /// The bytes of that second and of the one before.
    fn at(&self, second: u64) -> [u64; 2] {
        let bytes = self.bytes.load(Ordering::Relaxed);
        match second.checked_sub(self.second.load(Ordering::Relaxed)) {
            Some(0) => [bytes, self.before.load(Ordering::Relaxed)],
            Some(1) => [0, bytes],
            Some(_) | None => [0, 0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_makes_a_tunnel_busy_until_a_second_has_passed_without_it() {
        let traffic = Traffic::default();
        let half = (BUSY / 2) as usize;
        traffic.add(half, 7);
        assert!(!traffic.is_busy(7));
        traffic.add(half, 7);
        assert!(traffic.is_busy(7) && traffic.is_busy(8));
        assert!(!traffic.is_busy(9));
        traffic.add(1, 8);
        assert!(traffic.is_busy(8), "of the second before");
        traffic.add(1, 9);
        assert!(!traffic.is_busy(9));
        traffic.add(half, 10);
        traffic.add(half, 11);
        assert!(!traffic.is_busy(11), "that is not much for two seconds");
    }
}
