//! How long to wait before the next attempt: exponential, with full jitter, so that the agents of a
//! restarted proxy do not all come back at once.

use std::time::Duration;

/// The first wait is at most this long.
const FIRST: Duration = Duration::from_millis(250);
/// No wait is longer while the proxy may only be restarting: nodes are back within 3 s after it.
const SHORT: Duration = Duration::from_secs(2);
/// Waits after the last good tunnel for which that is likely.
const RESTART: Duration = Duration::from_secs(60);
/// No ordinary wait is longer: an edge node is back soon after its link.
const LONGEST: Duration = Duration::from_secs(15);
/// An agent whose certificate is refused needs a person; asking often would only fill logs.
const REFUSED: Duration = Duration::from_secs(60);
/// A tunnel that lived this long was a good one: its end says nothing about the next.
const GOOD_LIFE: Duration = Duration::from_secs(1);

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// There was a tunnel for this time, or none at all.
    After(Duration),
    /// The proxy does not take the agent's certificate.
    Refused,
}

/// Counts failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// The bounds of all waits in a row.
    waited: Duration,
}

impl Backoff {
    /// The longest that the next wait may be.
    pub(crate) fn bound(&mut self, ended: Ended) -> Duration {
        match ended {
            Ended::Refused => {
                *self = Self::default();
                return REFUSED;
            }
            Ended::After(life) if life >= GOOD_LIFE => *self = Self::default(),
            Ended::After(_) => {}
        }
        let longest = if self.waited < RESTART {
            SHORT
        } else {
            LONGEST
        };
        let bound = FIRST
            .saturating_mul(1 << self.failures.min(16))
            .min(longest);
        self.failures += 1;
        self.waited += bound;
        bound
    }

    /// The next wait.
    pub(crate) fn wait(&mut self, ended: Ended) -> Duration {
        jittered(self.bound(ended), rand::random())
    }
}

/// A part of `bound`; `chance` is from 0 to 1. A refusal or a fast failure never becomes a busy
/// loop: a fifth is always waited.
fn jittered(bound: Duration, chance: f64) -> Duration {
    bound.mul_f64(0.2 + 0.8 * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(backoff: &mut Backoff, count: usize) -> Vec<u128> {
        (0..count)
            .map(|_| backoff.bound(Ended::After(Duration::ZERO)).as_millis())
            .collect()
    }

    #[test]
    fn a_proxy_that_restarts_is_tried_often_and_one_that_stays_away_is_not() {
        let mut backoff = Backoff::default();
        assert_eq!(bounds(&mut backoff, 6), [250, 500, 1000, 2000, 2000, 2000]);
        while backoff.waited < RESTART {
            assert_eq!(bounds(&mut backoff, 1), [2000]);
        }
        assert_eq!(bounds(&mut backoff, 1000), [15_000; 1000]);
    }

    #[test]
    fn a_good_tunnel_starts_over_and_one_that_ends_at_once_does_not() {
        let mut backoff = Backoff::default();
        bounds(&mut backoff, 1000);
        assert_eq!(
            backoff.bound(Ended::After(Duration::from_millis(1))),
            LONGEST
        );
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
