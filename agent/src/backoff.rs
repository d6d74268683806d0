//! How long to wait before the next attempt: exponential, with full jitter, so that the agents of a restarted proxy do not
//! all come back at once.

use std::time::Duration;

/// The first wait is at most this long.
const FIRST: Duration = Duration::from_millis(250);
/// No ordinary wait is longer: an edge node is back soon after its link.
const LONGEST: Duration = Duration::from_secs(15);
/// An agent whose certificate is refused needs a person; asking often would only fill logs.
const REFUSED: Duration = Duration::from_secs(60);
/// A tunnel that lived this long was a good one: its end says nothing about the next.
pub(crate) const GOOD_LIFE: Duration = Duration::from_secs(30);

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// No tunnel, or one that ended after this time.
    After(Duration),
    /// The proxy does not take the agent's certificate.
    Refused,
}

/// Counts failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The longest that the next wait may be.
    pub(crate) fn bound(&mut self, ended: Ended) -> Duration {
        match ended {
            Ended::Refused => {
                self.failures = 0;
                return REFUSED;
            }
            Ended::After(life) if life >= GOOD_LIFE => self.failures = 0,
            Ended::After(_) => {}
        }
        let bound = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        bound
    }

    /// The next wait.
    pub(crate) fn wait(&mut self, ended: Ended) -> Duration {
        jittered(self.bound(ended), rand::random())
    }
}

/// A part of `bound`; `chance` is from 0 to 1. A refusal or a fast failure never becomes a busy loop: a fifth is always waited.
fn jittered(bound: Duration, chance: f64) -> Duration {
    bound.mul_f64(0.2 + 0.8 * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Ended = Ended::After(Duration::from_millis(1));

    #[test]
    fn waits_double_up_to_a_bound_and_never_overflow() {
        let mut backoff = Backoff::default();
        let bounds: Vec<_> = (0..7).map(|_| backoff.bound(SHORT).as_millis()).collect();
        assert_eq!(bounds, [250, 500, 1000, 2000, 4000, 8000, 15_000]);
        assert!((0..1000).all(|_| backoff.bound(SHORT) == LONGEST));
    }

    #[test]
    fn a_good_tunnel_starts_over() {
        let mut backoff = Backoff::default();
        for _ in 0..10 {
            backoff.bound(SHORT);
        }
        assert_eq!(backoff.bound(Ended::After(GOOD_LIFE)), FIRST);
    }

    #[test]
    fn a_refused_certificate_is_retried_slowly() {
        assert_eq!(Backoff::default().bound(Ended::Refused), REFUSED);
    }

    #[test]
    fn jitter_stays_inside_its_bound() {
        for chance in [-1.0, 0.0, 0.5, 1.0, 2.0] {
            let wait = jittered(LONGEST, chance);
            assert!(LONGEST / 5 <= wait && wait <= LONGEST, "{wait:?}");
        }
    }
}
