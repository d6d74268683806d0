//! Unsent data: bytes that a tunnel has read from its streams' sockets and not sent yet. It is
//! bounded for each tunnel, and for all tunnels by the budget.
//!
//! HTTP/2 queues up to [`SEND_BUFFER`](crate::http2::SEND_BUFFER) for each stream. The queues of
//! all streams of a stalled tunnel would be large together. Therefore a stream stops reading from
//! its socket while its tunnel has enough to send.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::Notify;

use crate::budget::Budget;
use crate::frame;
use crate::send_queue::FRAME_FIRST;

/// Most unsent bytes of one tunnel: the queues of 64 streams.
const TUNNEL_MAX: usize = 16 << 20;
/// Unsent bytes that a tunnel may have whatever the other tunnels have, so that it makes progress.
const TUNNEL_MIN: usize = 64 << 10;
/// Memory of a queued frame beside its buffer, in h2 and in the allocator.
const FRAME_COST: usize = 256;

/// The unsent data of one tunnel.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Memory of unsent frames.
    unsent: AtomicUsize,
    /// Streams that wait for capacity.
    waiting: AtomicUsize,
    capacity: Notify,
    /// The largest frame that streams make.
    frame_limit: AtomicUsize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            unsent: AtomicUsize::default(),
            waiting: AtomicUsize::default(),
            capacity: Notify::default(),
            frame_limit: AtomicUsize::new(FRAME_FIRST as usize),
        }
    }
}

impl Budget {
    /// Whether the streams of this tunnel must not read from their sockets.
    pub(crate) fn is_full(&self) -> bool {
        let (outbox, all) = self.unsent();
        let unsent = outbox.unsent.load(Ordering::SeqCst);
        unsent >= TUNNEL_MAX
            || (unsent >= TUNNEL_MIN && all.load(Ordering::Relaxed) >= self.limit())
    }

    /// Waits until they may read again.
    pub(crate) async fn capacity(&self) {
        let (outbox, _) = self.unsent();
        outbox.waiting.fetch_add(1, Ordering::SeqCst);
        let _waits = scopeguard::guard((), |()| {
            outbox.waiting.fetch_sub(1, Ordering::SeqCst);
        });
        while self.is_full() {
            outbox.capacity.notified().await;
        }
        // One stream is woken at a time, and it may find nothing to send: wake the next one too.
        outbox.capacity.notify_one();
    }

    /// The largest frame that this tunnel's streams should make, in bytes.
    pub(crate) fn frame_limit(&self) -> usize {
        self.unsent().0.frame_limit.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub(crate) fn limit_frames(&self, bytes: u32) {
        let frame_limit = &self.unsent().0.frame_limit;
        frame_limit.store(bytes as usize, Ordering::Relaxed);
    }

    fn takes(&self, cost: usize) {
        let (outbox, all) = self.unsent();
        let before = outbox.unsent.fetch_add(cost, Ordering::SeqCst);
        let beyond = beyond_min(before + cost) - beyond_min(before);
        if beyond > 0 {
            all.fetch_add(beyond, Ordering::Relaxed);
        }
    }

    fn sent(&self, cost: usize) {
        let (outbox, all) = self.unsent();
        let before = outbox.unsent.fetch_sub(cost, Ordering::SeqCst);
        let beyond = beyond_min(before) - beyond_min(before - cost);
        if beyond > 0 {
            all.fetch_sub(beyond, Ordering::Relaxed);
        }
        if outbox.waiting.load(Ordering::SeqCst) > 0 && !self.is_full() {
            outbox.capacity.notify_one();
        }
    }
}

fn beyond_min(unsent: usize) -> usize {
    unsent.saturating_sub(TUNNEL_MIN)
}

/// Bytes on their way into a tunnel. They count as unsent until h2 drops them.
#[derive(Debug)]
pub(crate) struct Payload {
    bytes: Bytes,
    counted: Option<(Budget, usize)>,
}

impl Payload {
    /// A data frame of `buffer`, laid out for [`frame::seal`], that counts in `budget`.
    pub(crate) fn data(buffer: BytesMut, budget: &Budget) -> Self {
        let cost = buffer.capacity() + FRAME_COST;
        budget.takes(cost);
        Self {
            bytes: frame::seal(buffer),
            counted: Some((budget.clone(), cost)),
        }
    }

    /// Bytes of another tunnel, framing included, that count in `budget`.
    pub(crate) fn forwarded(bytes: Bytes, budget: &Budget) -> Self {
        let cost = bytes.len() + FRAME_COST;
        budget.takes(cost);
        Self {
            bytes,
            counted: Some((budget.clone(), cost)),
        }
    }

    /// The end of a stream, without bytes.
    pub(crate) fn end() -> Self {
        Bytes::new().into()
    }
}

/// Messages that a stream sends once do not count.
impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            counted: None,
        }
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        // Free the memory before a waiting stream is woken.
        self.bytes = Bytes::new();
        if let Some((budget, cost)) = self.counted.take() {
            budget.sent(cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    fn payload(budget: &Budget, bytes: usize) -> Payload {
        Payload::data(BytesMut::zeroed(bytes), budget)
    }

    #[test]
    fn a_tunnel_whose_peer_takes_nothing_takes_so_much_and_no_more() {
        let budget = Budget::new(1 << 30);
        let mut queue = Vec::new();
        while !budget.is_full() {
            queue.push(payload(&budget, 64 << 10));
        }
        assert!((250..=256).contains(&queue.len()), "{}", queue.len());
        assert!(!budget.of("another").is_full());
        queue.pop();
        assert!(!budget.is_full());
    }

    #[test]
    fn one_byte_frames_cost_what_they_take_in_memory() {
        let budget = Budget::new(1 << 30);
        let mut frames = Vec::new();
        while !budget.is_full() {
            frames.push(payload(&budget, 10));
        }
        assert!(frames.len() < 64 << 10, "{}", frames.len());
    }

    #[test]
    fn all_tunnels_together_take_no_more_than_the_budget_and_each_its_minimum() {
        let budget = Budget::new(1 << 20);
        let mut queue = Vec::new();
        for number in 0..100 {
            let tunnel = budget.of(&number.to_string());
            assert!(!tunnel.is_full(), "tunnel {number} gets its minimum");
            while !tunnel.is_full() {
                queue.push(payload(&tunnel, 64 << 10));
            }
        }
        let taken = queue.len() * (64 << 10);
        assert!(taken <= (1 << 20) + 101 * 2 * TUNNEL_MIN, "{taken}");
        drop(queue);
        assert_eq!(budget.unsent().1.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_waiting_stream_goes_on_even_if_another_was_woken_for_nothing() {
        let budget = Budget::new(0);
        let queued = payload(&budget, TUNNEL_MIN);
        let mut first = pin!(budget.capacity());
        let mut second = pin!(budget.capacity());
        assert!(poll!(first.as_mut()).is_pending() && poll!(second.as_mut()).is_pending());
        drop(queued);
        assert!(poll!(first.as_mut()).is_ready());
        assert!(
            poll!(second.as_mut()).is_ready(),
            "the first has sent nothing"
        );
        assert_eq!(budget.unsent().0.waiting.load(Ordering::Relaxed), 0);
    }
}
