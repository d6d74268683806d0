//! Pauses between attempts to reach the API server: longer each time, and never the same on two
//! proxies.

use std::time::Duration;

/// After the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// An API server that is back is found again within this time.
const LONGEST: Duration = Duration::from_secs(30);

/// The next pause.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// How long to wait now: between half of the pause and all of it.
    pub(super) fn wait(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)
    }

    /// An attempt succeeded.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..8).map(|_| backoff.wait()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST, "{waits:?}");
        assert!(waits[7] >= LONGEST / 2 && waits[7] <= LONGEST, "{waits:?}");
        backoff.reset();
        assert!(backoff.wait() <= FIRST);
    }
}
