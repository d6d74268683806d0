//! How much may be remembered, and what goes first when it is too much.

use std::collections::BTreeMap;

use super::{Cache, Identity, RemovedSet, Representation, Scope, Selection};
use crate::wire::limits::OBJECT_MAX;

/// Sets, whether or not they have objects, and the bytes of their questions, of which each has up to
/// 2 KiB. A node with 100 pods has some 500.
pub(crate) const MAX_SETS: usize = 3072;
pub(crate) const MAX_QUESTIONS: usize = 1 << 20;
/// Objects in all sets together that are not the node's, each as often as a set has it: one has some
/// 130 bytes in each, though all share the object. kube-proxy in a cluster of 10,000 services reads
/// 20,000.
pub(crate) const MAX_MEMBERS: usize = 30_000;
/// What one costs in a set, rounded up.
pub(crate) const MEMBER: usize = 130;

/// Limits of memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// A larger object is not remembered.
    pub(crate) object: usize,
    /// All objects. Sets of the node may exceed it: without them the node does not start.
    pub(crate) total: usize,
}

impl Default for Bounds {
    /// A node with 100 pods reads some 30 MB.
    fn default() -> Self {
        Self {
            object: OBJECT_MAX - (OBJECT_MAX / 8),
            total: 64 << 20,
        }
    }
}

/// What there is too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excess {
    Objects,
    Questions,
    Members,
}

/// What a set costs in memory besides its texts, rounded up.
pub(crate) const SET_OVERHEAD: usize = 512;

/// The sets that one identity reads, or several.
struct OfReader<'a> {
    weight: usize,
    /// When the least recently used of them was used, and which it is.
    oldest: (u64, &'a Representation, &'a Selection),
}

impl Cache {
    /// Marks a set as used now, and as essential if the node reads it.
    pub(super) fn touch(&mut self, scope: &Scope, reader: &Identity) {
        self.uses += 1;
        let uses = self.uses;
        let Some(set) = self.set_mut(scope) else {
            return;
        };
        set.last_used = uses;
        if set.reader.as_ref() != Some(reader) {
            set.reader = Some(reader.clone());
        }
        if *reader == Identity::Node && !set.essential {
            set.essential = true;
            set.unsaved.head = true;
        }
    }

    /// Evicts sets until the bounds are kept or only the node's are left: those of the identity
    /// that reads most beyond its share, the least recently used first.
    pub(super) fn enforce_bounds(&mut self) {
        while let Some(excess) = self.excess() {
            let Some(scope) = self.least_recently_used(excess) else {
                return;
            };
            self.evict(&scope);
        }
    }

    fn excess(&self) -> Option<Excess> {
        if self.objects.bytes() > self.bounds.total {
            return Some(Excess::Objects);
        }
        let mut count = 0;
        let mut bytes = 0;
        let mut members = 0;
        for sets in self.sets.values() {
            for (selection, set) in sets {
                count += 1;
                bytes += selection.len();
                if !set.essential {
                    members += set.generation.members.len();
                }
            }
        }
        if count > MAX_SETS || bytes > MAX_QUESTIONS {
            return Some(Excess::Questions);
        }
        if members > MAX_MEMBERS {
            return Some(Excess::Members);
        }
        None
    }

    fn least_recently_used(&self, excess: Excess) -> Option<Scope> {
        let mut by_reader = BTreeMap::<_, OfReader<'_>>::new();
        for (representation, sets) in &self.sets {
            for (selection, set) in sets {
                if set.essential {
                    continue;
                }
                let used = (set.last_used, representation, selection);
                let reader = by_reader.entry(&set.reader).or_insert(OfReader {
                    weight: 0,
                    oldest: used,
                });
                reader.oldest = reader.oldest.min(used);
                reader.weight += match excess {
                    Excess::Questions => SET_OVERHEAD + selection.len(),
                    Excess::Members => set.generation.members.len(),
                    Excess::Objects => set.generation.members.values().map(|it| it.size()).sum(),
                };
            }
        }
        let largest = by_reader.into_values().max_by_key(|it| it.weight)?;
        let (_, representation, selection) = largest.oldest;
        Some(Scope {
            representation: representation.clone(),
            selection: selection.clone(),
        })
    }

    /// Forgets a set. Its answer is then unknown.
    pub(super) fn evict(&mut self, scope: &Scope) {
        let Some(sets) = self.sets.get_mut(&scope.representation) else {
            return;
        };
        let Some(set) = sets.remove(&scope.selection) else {
            return;
        };
        if sets.is_empty() {
            self.sets.remove(&scope.representation);
        }
        for object in set.generation.members.values() {
            self.objects.release(&scope.representation, object);
        }
        // The disk has nothing of it.
        if set.is_new {
            return;
        }
        let members = set
            .generation
            .members
            .keys()
            .cloned()
            .chain(set.unsaved.members)
            .collect();
        self.removed.push(RemovedSet {
            id: set.id,
            scope: scope.clone(),
            members,
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::cache::fixtures::*;
    use crate::cache::{Identity, Verb, Verdict};

    use super::*;

    #[test]
    fn who_asks_many_questions_loses_its_own_sets() {
        let mut cache = cache();
        let quiet = Identity::User("quiet".to_owned());
        let greedy = Identity::User("greedy".to_owned());
        let asks = |cache: &mut Cache, identity: &Identity, scope: &Scope| {
            cache.record_verdict(identity, Verb::List, scope, Verdict::Allowed, at(0));
            let copy = cache.start_list(scope, None, &NODE, at(0)).unwrap();
            cache.finish_list(copy, &head(10, ""), identity, at(0));
        };
        asks(&mut cache, &quiet, &namespace("quiet"));
        for number in 0..MAX_QUESTIONS / 500 {
            let selector = format!("a={number:0>600}");
            asks(&mut cache, &greedy, &labelled(&selector));
        }
        assert_eq!(cache.excess(), None);
        assert!(status(&cache, &namespace("quiet")).is_some());
    }

    #[test]
    fn who_reads_the_same_objects_in_many_sets_loses_its_own_ones() {
        let mut cache = cache();
        let mut objects = Vec::new();
        for number in 0..1000 {
            objects.push(pod(&format!("pod-{number}"), 5));
        }
        let greedy = Identity::User("greedy".to_owned());
        for selector in 0..MAX_MEMBERS / 1000 + 20 {
            let scope = labelled(&format!("a!={selector}"));
            cache.record_verdict(&greedy, Verb::List, &scope, Verdict::Allowed, at(0));
            let mut copy = cache.start_list(&scope, None, &NODE, at(0)).unwrap();
            for object in &objects {
                copy.add(object.clone());
            }
            cache.finish_list(copy, &head(10, ""), &greedy, at(0));
        }
        assert_eq!(cache.excess(), None);
        let kept = cache.statuses(at(0)).len();
        assert_eq!(kept, MAX_MEMBERS / 1000, "the last ones");
    }
}
