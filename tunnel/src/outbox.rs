//! What a tunnel has taken from its streams' sockets and not sent yet: bounded for each tunnel, and
//! for all of them by the budget.
//!
//! HTTP/2 queues up to [`SEND_BUFFER`](crate::http2::SEND_BUFFER) for each stream. Where a peer
//! takes nothing, that of all its streams together would be large, so that a stream reads no more
//! from its socket once its tunnel has enough to send.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::Notify;

use crate::budget::Budget;
use crate::frame;

/// Bytes that one tunnel may have to send: some 64 streams' queues.
const TUNNEL_MAX: usize = 16 << 20;
/// Bytes that a tunnel may have to send whatever all the others have: enough to go on.
const TUNNEL_MIN: usize = 64 << 10;
/// What a queued frame takes beside its buffer, at HTTP/2's library and in the allocator.
const FRAME_COST: usize = 256;

/// Of one tunnel.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Bytes of memory in frames that have not been sent.
    unsent: AtomicUsize,
    /// Streams that wait for that to become less.
    waiting: AtomicUsize,
    capacity: Notify,
}

impl Budget {
    /// Whether a stream of this tunnel should read no more from its socket.
    pub(crate) fn is_full(&self) -> bool {
        let (outbox, all) = self.unsent();
        let unsent = outbox.unsent.load(Ordering::SeqCst);
        unsent >= TUNNEL_MAX
            || (unsent >= TUNNEL_MIN && all.load(Ordering::Relaxed) >= self.limit())
    }

    /// Waits until it may.
    pub(crate) async fn capacity(&self) {
        let (outbox, _) = self.unsent();
        outbox.waiting.fetch_add(1, Ordering::SeqCst);
        let _waits = scopeguard::guard((), |()| {
            outbox.waiting.fetch_sub(1, Ordering::SeqCst);
        });
        while self.is_full() {
            outbox.capacity.notified().await;
        }
        // One is woken at a time, and it may find nothing to send: there may be room for the next
        // one too.
        outbox.capacity.notify_one();
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

/// Bytes on their way into a tunnel, which count until HTTP/2 is rid of them.
#[derive(Debug)]
pub(crate) struct Payload {
    bytes: Bytes,
    counted: Option<(Budget, usize)>,
}

impl Payload {
    /// A data frame of `buffer`, as [`frame::seal`] wants it, that counts in `budget`.
    pub(crate) fn data(buffer: BytesMut, budget: &Budget) -> Self {
        let cost = buffer.capacity() + FRAME_COST;
        budget.takes(cost);
        Self {
            bytes: frame::seal(buffer),
            counted: Some((budget.clone(), cost)),
        }
    }

    /// The end of a stream, without bytes.
    pub(crate) fn end() -> Self {
        Bytes::new().into()
    }
}

/// What a stream sends once: it does not count.
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
        // The memory first, then the word that there is room.
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
    async fn who_waits_goes_on_once_something_was_sent_even_if_another_was_woken_for_nothing() {
        let budget = Budget::new(0);
        let queued = payload(&budget, TUNNEL_MIN);
        let (mut first, mut second) = (pin!(budget.capacity()), pin!(budget.capacity()));
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
