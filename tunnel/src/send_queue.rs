//! How much of a tunnel waits in front of its link. A small message waits for all of it, so on a
//! slow link little may wait: as much as the link sends in some milliseconds. On a fast link that
//! is more than the fixed limits.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

/// Largest DATA frame that either end accepts. Larger frames cost less, and 64 KiB still interleave
/// well.
pub(crate) const FRAME_SIZE: u32 = 64 << 10;
/// Unsent bytes in the socket of a tunnel whose link is fast.
const MAX_UNSENT: u32 = 256 << 10;
/// The same while nothing is known about the link.
pub(crate) const UNSENT_FIRST: u32 = 32 << 10;
/// The smallest limit of unsent bytes: a program that is woken late must find something left.
const MIN_UNSENT: u32 = 4 << 10;
/// The limit of a frame while nothing is known about the link: the first frames of a busy stream may
/// wait in front of a small message for as long as the link takes to send them.
pub(crate) const FRAME_FIRST: u32 = 16 << 10;
/// The smallest limit of a frame. Smaller frames cost more, and one packet holds a third of this.
const MIN_FRAME: u32 = 4 << 10;
/// For how long the unsent bytes last at the link's speed. The program that refills them is woken
/// after half of it.
const SHORTEST_REFILL: Duration = Duration::from_millis(10);
/// The same on a machine that wakes the program so late that the link ran dry.
const LONGEST_REFILL: Duration = Duration::from_millis(160);
/// How often the link is looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A tunnel's socket, or what takes its place.
pub trait TunnelSocket {
    /// Bytes that wait unsent; `None` if the kernel does not say.
    fn unsent(&self) -> Option<u32>;

    /// Bytes that the peer has acknowledged; `None` if the kernel does not say.
    fn acknowledged(&self) -> Option<u64>;

    /// At most about so many bytes wait unsent from now on.
    fn limit_unsent(&self, bytes: u32);

    /// Completes when less than half of that limit waits.
    ///
    /// # Errors
    /// The socket has failed.
    fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Tests' pipe has a limit of its own.
impl TunnelSocket for tokio::io::DuplexStream {
    fn unsent(&self) -> Option<u32> {
        None
    }

    fn acknowledged(&self) -> Option<u64> {
        None
    }

    fn limit_unsent(&self, _bytes: u32) {}

    fn poll_room(&self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// How much may wait, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In the socket.
    pub(crate) unsent: u32,
    /// In a frame: each busy stream has one in front of a small message.
    pub(crate) frame: u32,
}

const MAX_LIMITS: Limits = Limits {
    unsent: MAX_UNSENT,
    frame: FRAME_SIZE,
};

/// Finds the limits for a link.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Bytes that the link takes in a second; `None` while nothing is known.
    rate: Option<u64>,
    lasts: Duration,
    looked_at: Instant,
    /// Bytes that the socket took since then.
    taken: u64,
    /// Whether it took none at some moment since then.
    was_full: bool,
    /// Whether it took none the last time: bytes wait.
    is_full: bool,
}

impl SendQueue {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            rate: None,
            lasts: SHORTEST_REFILL,
            looked_at: now,
            taken: 0,
            was_full: false,
            is_full: false,
        }
    }

    /// The socket took bytes, or none because it is full.
    pub(crate) fn wrote(&mut self, polled: &Poll<io::Result<usize>>) {
        self.is_full = polled.is_pending();
        self.was_full |= self.is_full;
        if let Poll::Ready(Ok(bytes)) = polled {
            self.taken += *bytes as u64;
        }
    }

    /// Whether to look at the link.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.looked_at) >= CHECK_INTERVAL
    }

    /// The limits after a look at a link in front of which so many bytes wait unsent. If it is
    /// not known how many, they are those of a fast link.
    pub(crate) fn after(&mut self, now: Instant, unsent: Option<u32>) -> Limits {
        let Some(unsent) = unsent else {
            self.looked_at = now;
            return MAX_LIMITS;
        };
        // Only what fills its socket shows how fast a link is, and not with a pause after it.
        let elapsed = now.saturating_duration_since(self.looked_at);
        if self.was_full && (self.is_full || elapsed < 2 * CHECK_INTERVAL) {
            let micros = elapsed.as_micros();
            let rate = u128::from(self.taken) * 1_000_000 / micros.max(1);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            self.rate = match self.rate {
                Some(before) if before > rate => Some(u64::midpoint(before, rate)),
                _ => Some(rate),
            };
            self.lasts = if unsent == 0 {
                (self.lasts * 2).min(LONGEST_REFILL)
            } else {
                (self.lasts * 7 / 8).max(SHORTEST_REFILL)
            };
        }
        self.looked_at = now;
        self.taken = 0;
        self.was_full = false;
        self.limits()
    }

    fn limits(&self) -> Limits {
        let Some(rate) = self.rate else {
            return Limits {
                unsent: UNSENT_FIRST,
                frame: FRAME_FIRST,
            };
        };
        let bytes = u128::from(rate) * self.lasts.as_millis() / 1000;
        let in_time = u32::try_from(bytes).unwrap_or(u32::MAX);
        Limits {
            unsent: in_time.clamp(MIN_UNSENT, MAX_UNSENT),
            frame: (in_time / 2).clamp(MIN_FRAME, FRAME_SIZE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue in front of a link of so many Mbit/s, and its limits after each look; `is_busy` says
    /// whether the program fills it.
    struct Link {
        queue: SendQueue,
        now: Instant,
    }

    impl Link {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                queue: SendQueue::new(now),
                now,
            }
        }

        fn look(&mut self, mbit: usize, is_busy: bool, unsent: u32) -> Limits {
            assert!(!self.queue.is_due(self.now));
            self.now += CHECK_INTERVAL;
            assert!(self.queue.is_due(self.now));
            let bytes = mbit * 1_000_000 / 8 / 10;
            self.queue.wrote(&Poll::Ready(Ok(bytes)));
            if is_busy {
                self.queue.wrote(&Poll::Pending);
            }
            self.queue.after(self.now, Some(unsent))
        }
    }

    #[test]
    fn little_waits_in_front_of_a_slow_link_and_all_that_fits_in_front_of_a_fast_one() {
        let limits = |mbit| Link::new().look(mbit, true, 1000);
        assert_eq!(limits(1000), MAX_LIMITS);
        assert_eq!(
            limits(16),
            Limits {
                unsent: 20_000,
                frame: 10_000
            }
        );
        assert_eq!(
            limits(1),
            Limits {
                unsent: MIN_UNSENT,
                frame: MIN_FRAME
            }
        );
    }

    #[test]
    fn a_queue_that_nobody_knows_is_not_short() {
        let now = Instant::now();
        let mut queue = SendQueue::new(now);
        queue.wrote(&Poll::Pending);
        assert_eq!(queue.after(now + CHECK_INTERVAL, None), MAX_LIMITS);
        assert!(!queue.is_due(now + CHECK_INTERVAL));
    }

    #[test]
    fn small_messages_say_nothing_about_a_link() {
        let mut link = Link::new();
        let first = link.look(1, false, 0);
        assert_eq!(first, SendQueue::new(link.now).limits());
        assert_eq!(link.look(1000, true, 1000), MAX_LIMITS);
        for _ in 0..100 {
            assert_eq!(link.look(1, false, 0), MAX_LIMITS);
        }
    }

    #[test]
    fn a_pause_after_a_burst_says_nothing_about_a_link() {
        let mut link = Link::new();
        assert_eq!(link.look(1000, true, 1000), MAX_LIMITS);
        link.queue.wrote(&Poll::Pending);
        link.queue.wrote(&Poll::Ready(Ok(100_000)));
        link.now += CHECK_INTERVAL * 100;
        assert_eq!(link.queue.after(link.now, Some(0)), MAX_LIMITS);
    }

    #[test]
    fn bytes_that_wait_for_long_show_that_a_link_is_slow() {
        let mut link = Link::new();
        link.queue.wrote(&Poll::Ready(Ok(10_000)));
        link.queue.wrote(&Poll::Pending);
        link.now += CHECK_INTERVAL * 100;
        assert_eq!(link.queue.after(link.now, Some(1000)).unsent, MIN_UNSENT);
    }

    #[test]
    fn a_link_that_becomes_fast_again_is_known_at_once_and_a_slow_one_soon() {
        let mut link = Link::new();
        link.look(1000, true, 1000);
        let limits: Vec<_> = (0..10).map(|_| link.look(1, true, 1000).unsent).collect();
        assert!(limits.is_sorted_by(|a, b| a >= b), "{limits:?}");
        assert_eq!(limits.last(), Some(&MIN_UNSENT));
        assert_eq!(link.look(1000, true, 1000), MAX_LIMITS);
    }

    #[test]
    fn more_waits_where_the_link_ran_dry_and_less_again_later() {
        let mut link = Link::new();
        assert_eq!(link.look(8, true, 0).unsent, 20_000);
        for _ in 0..9 {
            link.look(8, true, 0);
        }
        assert_eq!(link.look(8, true, 0).unsent, 160_000);
        for _ in 0..30 {
            link.look(8, true, 1000);
        }
        assert_eq!(link.look(8, true, 1000).unsent, 10_000);
        assert_eq!(
            link.look(8, false, 0).unsent,
            10_000,
            "nobody waited: there was nothing to send"
        );
    }
}
