//! How long to wait before the next attempt: longer each time, and random, so that clients which
//! lost the same peer do not all return at once.

use std::time::Duration;

/// The smallest part of a bound that is waited, so that fast failures never make a busy loop.
const MIN_PART: f64 = 0.2;
/// A connection that lived this long was a success: its end does not count as a failure.
const GOOD_LIFE: Duration = Duration::from_secs(1);

/// Counts consecutive failures and bounds the wait after each: the first bound is doubled each
/// time, up to the longest.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    restart: Restart,
    failures: u32,
    /// The bounds of all consecutive waits together.
    waited: Duration,
}

/// While the peer may only be restarting, no wait is longer than `longest`.
#[derive(Clone, Copy, Debug)]
struct Restart {
    lasts: Duration,
    longest: Duration,
}

impl Backoff {
    /// Waits from `first` to `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        let restart = Restart {
            lasts: Duration::ZERO,
            longest,
        };
        Self {
            first,
            longest,
            restart,
            failures: 0,
            waited: Duration::ZERO,
        }
    }

    /// The waits between an agent's tunnels. Nodes are back within 3 s after a proxy's restart, and
    /// soon after their link.
    #[must_use]
    pub const fn for_tunnels() -> Self {
        let restart = Restart {
            lasts: Duration::from_secs(60),
            longest: Duration::from_secs(2),
        };
        Self {
            restart,
            ..Self::new(Duration::from_millis(250), Duration::from_secs(15))
        }
    }

    /// The next wait, after an attempt that failed.
    pub fn wait(&mut self) -> Duration {
        jittered(self.bound())
    }

    /// The next wait, after a connection that lived for `life`. One that lived for a second or more
    /// counts as a success.
    pub fn wait_after(&mut self, life: Duration) -> Duration {
        if life >= GOOD_LIFE {
            self.reset();
        }
        self.wait()
    }

    /// An attempt succeeded: the next wait is the first again.
    pub const fn reset(&mut self) {
        self.failures = 0;
        self.waited = Duration::ZERO;
    }

    /// The longest that the next wait may be.
    fn bound(&mut self) -> Duration {
        let longest = if self.waited < self.restart.lasts {
            self.restart.longest
        } else {
            self.longest
        };
        let bound = self
            .first
            .saturating_mul(1 << self.failures.min(16))
            .min(longest);
        self.failures = self.failures.saturating_add(1);
        self.waited = self.waited.saturating_add(bound);
        bound
    }
}

/// A random part of `bound`: between a fifth and all of it.
#[must_use]
pub fn jittered(bound: Duration) -> Duration {
    bound.mul_f64(rand::random_range(MIN_PART..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(10);

    fn bounds(backoff: &mut Backoff, count: usize) -> Vec<u128> {
        (0..count).map(|_| backoff.bound().as_millis()).collect()
    }

    #[test]
    fn waits_double_up_to_the_longest_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        assert_eq!(
            bounds(&mut backoff, 6),
            [1000, 2000, 4000, 8000, 10_000, 10_000]
        );
        backoff.failures = u32::MAX;
        assert_eq!(backoff.bound(), LONGEST);
        backoff.reset();
        assert_eq!(backoff.bound(), FIRST);
    }

    #[test]
    fn a_proxy_that_restarts_is_tried_often_and_one_that_stays_away_is_not() {
        let mut backoff = Backoff::for_tunnels();
        assert_eq!(bounds(&mut backoff, 6), [250, 500, 1000, 2000, 2000, 2000]);
        while backoff.waited < backoff.restart.lasts {
            assert_eq!(bounds(&mut backoff, 1), [2000]);
        }
        assert_eq!(bounds(&mut backoff, 1000), [15_000; 1000]);
    }

    #[test]
    fn a_good_connection_starts_over_and_one_that_ends_at_once_does_not() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        bounds(&mut backoff, 1000);
        assert!(backoff.wait_after(Duration::from_millis(1)) > FIRST);
        assert!(backoff.wait_after(GOOD_LIFE) <= FIRST);
    }

    #[test]
    fn jitter_stays_inside_its_bound() {
        for _ in 0..1000 {
            let wait = jittered(LONGEST);
            assert!(LONGEST / 5 <= wait && wait <= LONGEST, "{wait:?}");
        }
    }
}
