//! A clock that runs only while a watch is seen to work. By it a Lease does not end because the API
//! server could not be asked, and no host's time of day matters. Pure: the time is an argument.

use std::time::{Duration, Instant};

use super::RENEW_EVERY;

/// This proxy's own Lease changes every [`RENEW_EVERY`], and the watch shows it. A longer silence
/// says nothing about others.
const MAX_GAP: Duration = RENEW_EVERY.saturating_mul(2);

/// The clock. It starts with zero.
#[derive(Debug, Default)]
pub(super) struct WatchClock {
    time: Duration,
    /// The last sign of life.
    last: Option<Instant>,
}

impl WatchClock {
    /// Notes a sign of life of the watch.
    pub(super) fn tick(&mut self, now: Instant) {
        if let Some(last) = self.last {
            self.time += now.saturating_duration_since(last).min(MAX_GAP);
        }
        self.last = Some(now);
    }

    /// Notes that the watch is broken: the clock stands still until the next sign of life.
    pub(super) fn stop(&mut self) {
        self.last = None;
    }

    /// The time since the clock's start.
    pub(super) fn time(&self) -> Duration {
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_while_the_watch_shows_something() {
        let mut clock = WatchClock::default();
        let start = Instant::now();
        let seconds = Duration::from_secs;
        clock.tick(start);
        clock.tick(start + seconds(10));
        assert_eq!(clock.time(), seconds(10));
        clock.tick(start + seconds(1010));
        assert_eq!(
            clock.time(),
            seconds(10) + MAX_GAP,
            "it was silent for longer than it may be"
        );
        clock.stop();
        clock.tick(start + seconds(2010));
        assert_eq!(clock.time(), seconds(10) + MAX_GAP, "it was broken");
        clock.tick(start + seconds(2015));
        assert_eq!(clock.time(), seconds(15) + MAX_GAP);
    }
}
