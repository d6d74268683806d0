//! Forgets what no client asks for any more and no present pod needs.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::grants::GrantKey;
use super::{Cache, Identity, ObjectRef, Scope};

/// What the pods of the node need, however long ago it was asked for: kubelet reads variables and
/// immutable objects once, and a pod may read its configuration once.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    pub(crate) objects: BTreeSet<ObjectRef>,
    /// Service accounts of the pods.
    pub(crate) identities: BTreeSet<Identity>,
}

impl Needed {
    pub(super) fn has(&self, key: &GrantKey) -> bool {
        if self.identities.contains(&key.identity) {
            return true;
        }
        let Some(name) = &key.selection.name else {
            return false;
        };
        let namespace = key.selection.namespace.as_deref().unwrap_or_default();
        let resource = &key.resource;
        let object = ObjectRef::new(&resource.group, &resource.resource, namespace, name);
        self.objects.contains(&object)
    }
}

impl Cache {
    /// Forgets the verdicts that the API server has not given again since `since`, except those on
    /// what is needed, and the sets that no other verdict is about. Returns how many sets went.
    pub(crate) fn forget_unasked(&mut self, since: SystemTime, needed: &Needed) -> usize {
        self.grants.forget_older_than(since, needed);
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
    use crate::cache::{Bounds, Cache, Identity, Needed, ObjectRef, Scope, Verb, Verdict};
    use crate::store::Rows;

    const DAY: u64 = 24 * 3600;

    fn asked(cache: &mut Cache, identity: &Identity, scope: &Scope, day: u64) {
        let now = at(day * DAY);
        let copy = cache.start_list(scope, None, &NODE, now).unwrap();
        cache.record_verdict(identity, Verb::List, scope, Verdict::Allowed, now);
        cache.finish_list(copy, &head(10 + day, ""), identity, now);
    }

    fn forget(cache: &mut Cache, day: u64) -> usize {
        forget_but(cache, day, &Needed::default())
    }

    fn forget_but(cache: &mut Cache, day: u64, needed: &Needed) -> usize {
        cache.forget_unasked(at(day * DAY).wall - Duration::from_secs(7 * DAY), needed)
    }

    fn saved(cache: &mut Cache, rows: &mut Rows) {
        rows.apply(&cache.take_changes());
    }

    #[test]
    fn a_list_that_nobody_asked_for_in_a_week_is_forgotten_on_disk_too() {
        let mut cache = cache();
        let mut rows = Rows::default();
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
        let mut cache = cache();
        let mut rows = Rows::default();
        asked(&mut cache, &NODE, &all(), 0);
        saved(&mut cache, &mut rows);
        asked(&mut cache, &NODE, &all(), 9);
        saved(&mut cache, &mut rows);
        let mut restored = Cache::new(Bounds::default());
        restored.restore(&rows);
        assert_eq!(forget(&mut restored, 12), 0);
        assert_eq!(forget(&mut restored, 17), 1);
    }

    #[test]
    fn what_was_asked_for_while_a_clock_was_ahead_does_not_outlive_the_rest() {
        let mut cache = cache();
        let mut rows = Rows::default();
        asked(&mut cache, &NODE, &all(), 400);
        saved(&mut cache, &mut rows);
        let mut restored = Cache::new(Bounds::default());
        restored.restore(&rows);
        restored.believe_no_later_than(at(35 * DAY));
        assert_eq!(status(&restored, &all()).unwrap().age, Duration::ZERO);
        assert_eq!(forget(&mut restored, 41), 0);
        assert_eq!(forget(&mut restored, 43), 1);
    }

    #[test]
    fn what_a_present_pod_needs_is_never_forgotten() {
        let mut cache = cache();
        let pod = Identity::ServiceAccount {
            namespace: "shop".to_owned(),
            name: "cart".to_owned(),
        };
        asked(&mut cache, &NODE, &one("env"), 0);
        asked(&mut cache, &NODE, &one("gone"), 0);
        asked(&mut cache, &pod, &namespace("shop"), 0);
        let mut needed = Needed::default();
        let object = ObjectRef::new("", "pods", "default", "env");
        needed.objects.insert(object);
        needed.identities.insert(pod);
        assert_eq!(forget_but(&mut cache, 400, &needed), 1);
        assert!(status(&cache, &one("env")).is_some());
        assert!(status(&cache, &namespace("shop")).is_some());
        assert_eq!(forget(&mut cache, 400), 2, "the pods are gone");
    }
}
