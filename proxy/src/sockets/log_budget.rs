//! A bound on what strangers can write into the log.

use std::sync::{Mutex, PoisonError};

use crate::clock::UnixTime;

/// Lines a second; the others are counted.
const MAX_LINES_PER_SECOND: u32 = 10;

/// Lines that strangers may cause in the log: some for each second, then none.
#[derive(Debug, Default)]
pub(crate) struct LogBudget(Mutex<Spent>);

#[derive(Debug, Default)]
struct Spent {
    second: UnixTime,
    lines: u32,
    suppressed: u64,
}

impl LogBudget {
    /// Whether a line may be written now, and how many were not since the last one.
    pub(crate) fn spend(&self, now: UnixTime) -> Option<u64> {
        let mut spent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spent.second != now {
            (spent.second, spent.lines) = (now, 0);
        }
        if spent.lines == MAX_LINES_PER_SECOND {
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
        let (budget, now) = (LogBudget::default(), UnixTime::from_seconds(1));
        assert_eq!((0..100).filter_map(|_| budget.spend(now)).count(), 10);
        assert_eq!(budget.spend(UnixTime::from_seconds(2)), Some(90));
    }
}
