//! Limits the log lines that strangers can cause.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines in a window of one second. Further ones are only counted.
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// Ten lines per second.
#[derive(Debug, Default)]
pub struct LogBudget(Mutex<Spent>);

#[derive(Debug, Default)]
struct Spent {
    since: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl LogBudget {
    /// Whether a line may be written now, and how many lines were suppressed since the last one.
    #[must_use]
    pub fn spend(&self) -> Option<u64> {
        self.spend_at(Instant::now())
    }

    fn spend_at(&self, now: Instant) -> Option<u64> {
        let mut spent = self.0.lock();
        let is_over = match spent.since {
            Some(since) => now.saturating_duration_since(since) >= WINDOW,
            None => true,
        };
        if is_over {
            spent.since = Some(now);
            spent.lines = 0;
        }
        if spent.lines == MAX_LINES {
            spent.suppressed += 1;
            return None;
        }
        spent.lines += 1;
        Some(std::mem::take(&mut spent.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_cannot_flood_the_log() {
        let budget = LogBudget::default();
        let now = Instant::now();
        assert_eq!((0..100).filter_map(|_| budget.spend_at(now)).count(), 10);
        assert_eq!(budget.spend_at(now + WINDOW), Some(90));
    }
}
