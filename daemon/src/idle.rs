//! How long ago counters last moved. It reads them every second, so that counting costs nothing
//! extra.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;

/// The precision of the answers. Reading the counters of ten thousand streams takes about a
/// millisecond.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Two counters, one per direction.
pub type Counts = [u64; 2];

/// When the counters of several things, named by `K`, last moved. Clones share it.
#[derive(Debug)]
pub struct Idle<K>(Arc<Mutex<HashMap<K, [Counter; 2]>>>);

#[derive(Clone, Copy, Debug)]
struct Counter {
    count: u64,
    moved: Instant,
}

impl<K> Clone for Idle<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Idle<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash> Idle<K> {
    /// Reads all present counters, and forgets the others.
    pub fn look(&self, counters: Vec<(K, Counts)>, now: Instant) {
        let mut known = self.0.lock();
        if counters.is_empty() && known.is_empty() {
            return;
        }
        let mut before = std::mem::take(&mut *known);
        known.extend(counters.into_iter().map(|(key, counts)| {
            let seen = before.remove(&key);
            let seen = [0, 1].map(|way: usize| match seen.map(|seen| seen[way]) {
                Some(seen) if seen.count == counts[way] => seen,
                Some(_) | None => Counter {
                    count: counts[way],
                    moved: now,
                },
            });
            (key, seen)
        }));
    }

    /// How long the two counters of `key` have not moved; zero if they were never read.
    #[must_use]
    pub fn of(&self, key: &K, now: Instant) -> [Duration; 2] {
        let known = self.0.lock();
        known.get(key).map_or([Duration::ZERO; 2], |seen| {
            seen.map(|seen| now.saturating_duration_since(seen.moved))
        })
    }

    /// Reads the counters that `counters` returns, every second.
    ///
    /// # Errors
    /// Never: for [`crate::Supervisor::spawn_observer`].
    pub async fn run(self, counters: impl Fn() -> Vec<(K, Counts)> + Send) -> Result<()>
    where
        K: Send,
    {
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look(counters(), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_is_idle_since_it_last_moved() {
        let idle = Idle::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        idle.look(vec![("a", [5, 0])], at(0));
        idle.look(vec![("a", [5, 7]), ("b", [1, 1])], at(3));
        idle.look(vec![("a", [5, 7]), ("b", [1, 1])], at(4));
        assert_eq!(
            idle.of(&"a", at(10)),
            [Duration::from_secs(10), Duration::from_secs(7)]
        );
        assert_eq!(idle.of(&"b", at(10)), [Duration::from_secs(7); 2]);
        assert_eq!(idle.of(&"c", at(10)), [Duration::ZERO; 2], "nobody looked");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let idle = Idle::default();
        let now = Instant::now();
        idle.look(vec![(1, [0, 0])], now);
        idle.look(Vec::new(), now);
        assert!(idle.0.lock().is_empty());
    }
}
