//! Counts transferred bytes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A stream that has transferred this many bytes counts as under way.
const UNDER_WAY: u64 = 1 << 20;

/// Bulk bytes, counted where they are received.
#[derive(Default)]
pub(super) struct Moved {
    bytes: AtomicU64,
    under_way: AtomicUsize,
}

/// The counter of one stream.
pub(super) struct Counter<'a> {
    moved: &'a Moved,
    bytes: u64,
}

impl Moved {
    /// A counter for one more stream.
    pub(super) fn counter(&self) -> Counter<'_> {
        Counter {
            moved: self,
            bytes: 0,
        }
    }

    /// The bytes of all streams, including those that have ended.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The number of streams that have been under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }
}

impl Counter<'_> {
    /// Counts received bytes.
    pub(super) fn add(&mut self, count: usize) {
        let before = self.bytes;
        self.bytes += count as u64;
        self.moved.bytes.fetch_add(count as u64, Ordering::Relaxed);
        if before < UNDER_WAY && self.bytes >= UNDER_WAY {
            self.moved.under_way.fetch_add(1, Ordering::Relaxed);
        }
    }
}
