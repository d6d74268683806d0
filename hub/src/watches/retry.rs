//! Pauses before a watch is opened again: longer ones while it does not last, so that an API server
//! that has forgotten its history is not flooded.

use std::time::Duration;

use culvert_daemon::Backoff;

const FIRST: Duration = Duration::from_secs(1);
/// As client-go.
const LONGEST: Duration = Duration::from_secs(30);
/// A watch that was open for so long was no failure. One whose history is forgotten ends at once,
/// though the API server answers it with 200.
const GOOD_LIFETIME: Duration = Duration::from_secs(10);

/// The pauses of one watch.
#[derive(Debug)]
pub(super) struct Retry(Backoff);

impl Retry {
    pub(super) const fn new() -> Self {
        Self(Backoff::new(FIRST, LONGEST))
    }

    /// The watch has ended after this time.
    pub(super) fn record_end(&mut self, lifetime: Duration) {
        if lifetime >= GOOD_LIFETIME {
            self.0.reset();
        }
    }

    pub(super) fn pause(&mut self) -> Duration {
        self.0.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_ends_at_once_again_and_again_is_opened_ever_less_often() {
        let mut retry = Retry::new();
        let mut waited = Duration::ZERO;
        for _ in 0..20 {
            retry.record_end(Duration::ZERO);
            waited += retry.pause();
        }
        assert!(waited > 20 * FIRST, "{waited:?}");
        retry.record_end(GOOD_LIFETIME);
        assert!(retry.pause() <= FIRST);
    }
}
