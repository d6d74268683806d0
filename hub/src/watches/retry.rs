//! When a watch is opened again: backed off while it does not last, and a few at a time, so that
//! the return of a link or an API server that has forgotten its history is no storm.

use std::time::Duration;

use culvert_daemon::Backoff;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::upstream::Credential;

const FIRST: Duration = Duration::from_secs(1);
/// As client-go.
const LONGEST: Duration = Duration::from_secs(30);
/// A watch that lived this long was no failure. One whose history is forgotten ends at once, though
/// the API server answers it with 200.
const GOOD_LIFE: Duration = Duration::from_secs(10);
/// Watches of the node, and of all others, that are opened again at the same time.
const AT_ONCE: usize = 4;

/// The pauses of one watch.
#[derive(Debug)]
pub(super) struct Retry(Backoff);

impl Retry {
    pub(super) const fn new() -> Self {
        Self(Backoff::new(FIRST, LONGEST))
    }

    /// It was open for this long.
    pub(super) fn lived(&mut self, life: Duration) {
        if life >= GOOD_LIFE {
            self.0.reset();
        }
    }

    pub(super) fn pause(&mut self) -> Duration {
        self.0.wait()
    }
}

/// Who may open a watch again now.
#[derive(Debug)]
pub(crate) struct Turns {
    node: Semaphore,
    others: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            node: Semaphore::new(AT_ONCE),
            others: Semaphore::new(AT_ONCE),
        }
    }
}

impl Turns {
    /// Waits for a turn, which lasts until this is dropped.
    pub(super) async fn wait(&self, credential: Credential) -> SemaphorePermit<'_> {
        let turns = match credential {
            Credential::Node => &self.node,
            Credential::Bearer => &self.others,
        };
        turns.acquire().await.expect("nobody closes it")
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
            retry.lived(Duration::ZERO);
            waited += retry.pause();
        }
        assert!(waited > 20 * FIRST, "{waited:?}");
        retry.lived(GOOD_LIFE);
        assert!(retry.pause() <= FIRST);
    }
}
