//! What has been moved so far.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A stream that has moved as many bytes is under way.
const UNDER_WAY: u64 = 1 << 20;

/// Bytes of bulk at the end that receives them.
#[derive(Default)]
pub(super) struct Moved {
    bytes: AtomicU64,
    under_way: AtomicUsize,
}

/// One stream's part.
pub(super) struct Counter<'a> {
    moved: &'a Moved,
    bytes: u64,
}

impl Moved {
    /// For one stream more.
    pub(super) fn counter(&self) -> Counter<'_> {
        Counter {
            moved: self,
            bytes: 0,
        }
    }

    /// By all streams that there were.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Streams so far that have left their start behind.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }
}

impl Counter<'_> {
    /// Counts what has just been received.
    pub(super) fn add(&mut self, count: usize) {
        let before = self.bytes;
        self.bytes += count as u64;
        self.moved.bytes.fetch_add(count as u64, Ordering::Relaxed);
        if before < UNDER_WAY && self.bytes >= UNDER_WAY {
            self.moved.under_way.fetch_add(1, Ordering::Relaxed);
        }
    }
}
