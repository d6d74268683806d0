//! What nobody asks for any more is forgotten.

use std::time::SystemTime;

use super::{Cache, Scope};

impl Cache {
    /// Forgets the verdicts that the API server has not given again since `since`, and the sets that
    /// no other verdict is about. All watches are opened again within an hour, and each time it
    /// gives one. Returns how many sets went.
    pub(crate) fn forget_unasked(&mut self, since: SystemTime) -> usize {
        self.grants.forget_older_than(since);
        let all = self.sets.iter().flat_map(|(representation, sets)| {
            sets.keys().map(move |selection| Scope {
                representation: representation.clone(),
                selection: selection.clone(),
            })
        });
        let unasked: Vec<_> = all.filter(|scope| !self.grants.are_about(scope)).collect();
        for scope in &unasked {
            self.evict(scope);
        }
        unasked.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::cache::fixtures::*;
    use crate::cache::{Bounds, Cache, Identity, Scope, Verb, Verdict};
    use crate::store::Rows;

    const DAY: u64 = 24 * 3600;

    fn asked(cache: &mut Cache, identity: &Identity, scope: &Scope, day: u64) {
        let now = at(day * DAY);
        let copy = cache.start_list(scope, None, now).unwrap();
        cache.record_verdict(identity, Verb::List, scope, Verdict::Allowed, now);
        cache.finish_list(copy, &head(10 + day, ""), identity, now);
    }

    fn forget(cache: &mut Cache, day: u64) -> usize {
        cache.forget_unasked(at(day * DAY).wall - Duration::from_secs(7 * DAY))
    }

    fn saved(cache: &mut Cache, rows: &mut Rows) {
        rows.apply(&cache.take_changes());
    }

    #[test]
    fn a_list_that_nobody_asked_for_in_a_week_is_forgotten_on_disk_too() {
        let (mut cache, mut rows) = (cache(), Rows::default());
        let pod = Identity::User("pod".to_owned());
        asked(&mut cache, &NODE, &all(), 0);
        asked(&mut cache, &NODE, &namespace("a"), 0);
        saved(&mut cache, &mut rows);
        asked(&mut cache, &NODE, &all(), 6);
        // Another identity keeps the set, not the verdict of the first.
        asked(&mut cache, &pod, &namespace("a"), 6);
        assert_eq!(forget(&mut cache, 8), 0);
        let verdict = |cache: &Cache, identity: &Identity| {
            cache.grants.verdict(identity, Verb::List, &namespace("a"))
        };
        assert_eq!(verdict(&cache, &NODE), None);
        assert_eq!(verdict(&cache, &pod), Some(Verdict::Allowed));
        asked(&mut cache, &NODE, &all(), 12);
        assert_eq!(forget(&mut cache, 14), 1);
        saved(&mut cache, &mut rows);
        let mut restored = Cache::new(Bounds::default());
        assert_eq!(restored.restore(&rows).sets, 1);
        assert!(status(&restored, &all()).is_some());
    }

    #[test]
    fn when_something_was_asked_last_is_on_disk_to_the_day() {
        let (mut cache, mut rows) = (cache(), Rows::default());
        asked(&mut cache, &NODE, &all(), 0);
        saved(&mut cache, &mut rows);
        asked(&mut cache, &NODE, &all(), 9);
        saved(&mut cache, &mut rows);
        let mut restored = Cache::new(Bounds::default());
        restored.restore(&rows);
        assert_eq!(forget(&mut restored, 12), 0);
        assert_eq!(forget(&mut restored, 17), 1);
    }
}
