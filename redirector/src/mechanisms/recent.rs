//! How far counters of the kernel have moved lately: what they have counted since they were made
//! would report a fault long after it is repaired.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use culvert_api::installed::RECENT;
use parking_lot::Mutex;

/// Readings of `N` counters in the last [`RECENT`]. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Recent<const N: usize>(Arc<Mutex<VecDeque<Reading<N>>>>);

#[derive(Clone, Copy, Debug)]
struct Reading<const N: usize> {
    at: Instant,
    counts: [u64; N],
}

impl<const N: usize> Default for Recent<N> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<const N: usize> Recent<N> {
    /// Adds a reading. One that is as old as [`RECENT`] stays, to compare with.
    pub(crate) fn add(&self, at: Instant, counts: [u64; N]) {
        let mut readings = self.0.lock();
        if let Some(latest) = readings.back()
            && began_again(latest.counts, counts)
        {
            readings.clear();
            // What was made again has counted from zero.
            let counts = [0; N];
            readings.push_back(Reading { at, counts });
        }
        readings.push_back(Reading { at, counts });
        while let Some(second) = readings.get(1)
            && at.duration_since(second.at) >= RECENT
        {
            readings.pop_front();
        }
    }

    /// Forgets all readings: what was counted until now says nothing.
    pub(crate) fn clear(&self) {
        let mut readings = self.0.lock();
        readings.clear();
    }

    /// How far they have moved to `counts` lately; not at all before the first reading.
    pub(crate) fn moved(&self, counts: [u64; N]) -> [u64; N] {
        let readings = self.0.lock();
        let Some(oldest) = readings.front() else {
            return [0; N];
        };
        if began_again(oldest.counts, counts) {
            return counts;
        }
        let mut moved = counts;
        for (count, before) in moved.iter_mut().zip(oldest.counts) {
            *count -= before;
        }
        moved
    }
}

impl<const N: usize> Recent<N> {
    /// How far they had moved lately at the last reading.
    pub(crate) fn moved_until_now(&self) -> [u64; N] {
        let latest = self.0.lock().back().map_or([0; N], |latest| latest.counts);
        self.moved(latest)
    }
}

fn began_again<const N: usize>(before: [u64; N], now: [u64; N]) -> bool {
    before.iter().zip(now).any(|(before, now)| now < *before)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_counted_long_ago_is_left_out() {
        let recent = Recent::default();
        let start = Instant::now();
        for (seconds, counts) in [(0, [0, 0]), (5, [9, 3]), (10, [9, 3])] {
            recent.add(start + Duration::from_secs(seconds), counts);
        }
        assert_eq!(recent.moved([10, 4]), [10, 4]);
        recent.add(start + RECENT + Duration::from_secs(6), [12, 6]);
        assert_eq!(recent.moved([12, 6]), [3, 3], "as of the reading at 5 s");
    }

    #[test]
    fn counters_that_began_again_count_from_zero() {
        let recent = Recent::default();
        assert_eq!(recent.moved([2]), [0], "since when?");
        let start = Instant::now();
        recent.add(start, [40]);
        assert_eq!(recent.moved([3]), [3], "nobody has read them since");
        recent.add(start + Duration::from_secs(1), [2]);
        assert_eq!(recent.moved([50]), [50]);
        recent.clear();
        assert_eq!(recent.moved([60]), [0]);
    }
}
