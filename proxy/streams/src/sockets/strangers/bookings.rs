//! When clients that found all permits taken may come again: one after another, as fast as
//! handshakes have ended lately. Pure: the clock and chance are arguments.

use std::time::{Duration, Instant};

use culvert_api::busy::LONGEST;

/// Handshakes in a second on the slowest processor that is of use.
const MIN_RATE: u32 = 50;
const SECOND: Duration = Duration::from_secs(1);
/// No client comes again sooner: those that wait are served in this time.
const SHORTEST: Duration = Duration::from_millis(500);

/// The times that have been promised.
#[derive(Debug)]
pub(super) struct Bookings {
    /// When the present second began.
    second: Instant,
    /// The handshakes that ended in it, and in the one before.
    ended: u32,
    ended_before: u32,
    /// The first time that is not promised to a client.
    free: Instant,
}

impl Bookings {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            second: now,
            ended: 0,
            ended_before: 0,
            free: now,
        }
    }

    /// Counts a handshake that ended.
    pub(super) fn handshake_ended(&mut self, now: Instant) {
        self.start_second(now);
        self.ended = self.ended.saturating_add(1);
    }

    /// After what time a client comes again that `waiting` others precede. `chance` is from 0 to 1:
    /// a client that cannot be promised a time comes at a random one, so that not all come
    /// together.
    pub(super) fn next(&mut self, waiting: usize, now: Instant, chance: f64) -> Duration {
        self.start_second(now);
        let each = SECOND / self.ended.max(self.ended_before).max(MIN_RATE);
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        let latest = now + LONGEST;
        let place = self.free.max(now + each.saturating_mul(waiting));
        if place >= latest {
            return LONGEST.mul_f64(0.5 + chance / 2.0);
        }
        self.free = place + each;
        place.saturating_duration_since(now).max(SHORTEST)
    }

    fn start_second(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.second);
        if age < SECOND {
            return;
        }
        self.ended_before = if age < 2 * SECOND { self.ended } else { 0 };
        self.ended = 0;
        self.second = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_after_the_other_as_fast_as_handshakes_end() {
        let start = Instant::now();
        let mut bookings = Bookings::new(start);
        for _ in 0..1000 {
            bookings.handshake_ended(start);
        }
        let now = start + SECOND;
        let first = bookings.next(2000, now, 0.0);
        assert_eq!(first, Duration::from_secs(2), "those who wait come first");
        for _ in 0..999 {
            bookings.next(2000, now, 0.0);
        }
        assert_eq!(bookings.next(2000, now, 0.0), Duration::from_secs(3));
        let later = now + Duration::from_secs(10);
        assert_eq!(bookings.next(0, later, 0.0), SHORTEST, "all have come");
    }

    #[test]
    fn a_crowd_without_end_is_spread_and_nobody_waits_longer_than_an_alert_can_say() {
        let now = Instant::now();
        let mut bookings = Bookings::new(now);
        let waits: Vec<_> = (0..10_000)
            .map(|number| bookings.next(0, now, f64::from(number % 10) / 10.0))
            .collect();
        assert!(waits.iter().all(|wait| *wait <= LONGEST));
        let last = &waits[9_990..];
        assert_eq!(last[0], LONGEST / 2);
        assert!(last.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
