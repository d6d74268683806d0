//! One set: what a scope selected, at one resource version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Clock, Digest, HeldObject, Identity, ObjectName, RESTORED_AFTER, Scope, Selection};
use crate::wire::TypeMeta;

/// Objects of a set by name. A snapshot shares it; a change while one is read copies the map, not
/// the objects.
pub(super) type Members = Arc<BTreeMap<ObjectName, Arc<HeldObject>>>;

/// What one scope selected.
#[derive(Debug)]
pub(super) struct Set {
    /// Its number on disk.
    pub(super) id: u64,
    pub(super) generation: Generation,
    /// The API server has sent something that is not in `generation`.
    pub(super) behind: bool,
    /// The node itself reads this set; it is never evicted.
    pub(super) essential: bool,
    pub(super) last_used: u64,
    /// Who read it last. `None`: it was not read since the start.
    pub(super) reader: Option<Identity>,
    /// Counts the times that the cluster was restored from a backup.
    pub(super) epoch: u64,
    /// Since when none but smaller resource versions came.
    pub(super) smaller_since: Option<Duration>,
    /// The cluster was restored since: smaller resource versions are believed at once.
    pub(super) is_of_before_restore: bool,
    pub(super) unsaved: Unsaved,
    /// Nothing of it was taken for the disk yet.
    pub(super) is_new: bool,
}

/// A whole state of a set.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    pub(super) resource_version: u64,
    /// `Pod`, say.
    pub(super) item_type: TypeMeta,
    /// `PodList`, say. `None` of a set that only GETs filled: it cannot answer a list.
    pub(super) list_type: Option<TypeMeta>,
    /// Whether the members are those of `resource_version`. After a 404 to a GET they are those of
    /// a later one, which is not known: good enough for a GET, not for a list.
    pub(super) exact: bool,
    pub(super) members: Members,
    /// Objects that exist, and are too large to be remembered: a list is not known without them.
    pub(super) lacking: BTreeSet<ObjectName>,
    /// The answer that made it. `None`: it was made by a watch, by several pages, or from the disk.
    pub(super) made_by: Option<Digest>,
    /// When the API server last said something that agreed with it.
    pub(super) confirmed: SystemTime,
}

/// What of a set is not on disk yet.
#[derive(Debug, Default)]
pub(super) struct Unsaved {
    /// The head: resource version, types, time.
    pub(super) head: bool,
    pub(super) members: BTreeSet<ObjectName>,
}

/// A set that was evicted and may still be on disk.
#[derive(Debug)]
pub(super) struct RemovedSet {
    pub(super) id: u64,
    pub(super) scope: Scope,
    pub(super) members: Vec<ObjectName>,
}

/// How a resource version relates to the one that a set has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// The same or a larger one.
    Forward,
    /// A smaller one, to be ignored.
    Ignored,
    /// A smaller one, to be believed.
    NewEpoch,
}

impl Set {
    pub(super) fn resource_version(&self) -> u64 {
        self.generation.resource_version
    }

    /// Whether a whole state at this resource version may replace the generation. See the module
    /// above for the rule.
    pub(super) fn advance_to(&mut self, resource_version: u64, now: Clock) -> Advance {
        if resource_version >= self.generation.resource_version && !self.is_of_before_restore {
            self.smaller_since = None;
            return Advance::Forward;
        }
        if !self.is_of_before_restore && !self.is_smaller_for_long(now) {
            self.mark_behind();
            return Advance::Ignored;
        }
        self.smaller_since = None;
        self.is_of_before_restore = false;
        self.epoch += 1;
        Advance::NewEpoch
    }

    /// Takes note of a smaller resource version. Whether there were no others for long.
    pub(super) fn is_smaller_for_long(&mut self, now: Clock) -> bool {
        let since = *self.smaller_since.get_or_insert(now.uptime);
        now.uptime.saturating_sub(since) >= RESTORED_AFTER
    }

    /// Records that the API server has sent something that is not in the generation.
    pub(super) fn mark_behind(&mut self) {
        self.behind = true;
        self.unsaved.head = true;
    }

    /// Notes that the API server agrees with the generation as of this resource version.
    pub(super) fn confirm(&mut self, resource_version: u64, now: Clock) {
        let generation = &mut self.generation;
        generation.resource_version = generation.resource_version.max(resource_version);
        generation.confirmed = now.wall;
        self.smaller_since = None;
        self.unsaved.head = true;
    }

    pub(super) fn status(&self, scope: Scope, now: Clock) -> SetStatus {
        SetStatus {
            scope,
            resource_version: self.generation.resource_version,
            members: self.generation.members.len(),
            behind: self.behind,
            essential: self.essential,
            age: self.generation.age(now),
        }
    }
}

impl Generation {
    /// Whether all its objects are known.
    pub(super) fn is_list(&self) -> bool {
        self.exact && self.lacking.is_empty()
    }

    /// Time since the API server last agreed; zero if the clock went back since.
    pub(super) fn age(&self, now: Clock) -> Duration {
        now.wall.duration_since(self.confirmed).unwrap_or_default()
    }
}

/// What an operator, or the task that fills sets, sees of a set.
#[derive(Clone, Debug)]
pub(crate) struct SetStatus {
    pub(crate) scope: Scope,
    pub(crate) resource_version: u64,
    pub(crate) members: usize,
    /// To be filled again: the API server has sent something that is not in it.
    pub(crate) behind: bool,
    /// The node itself reads it.
    pub(crate) essential: bool,
    /// Time since the API server last agreed with it.
    pub(crate) age: Duration,
}

/// The newest set that knows whether this object exists.
pub(super) fn newest_authoritative<'a>(
    readable: &[(&'a Selection, &'a Set)],
    name: &ObjectName,
) -> Option<(&'a Selection, &'a Set)> {
    let mut knowing = readable.to_vec();
    knowing.retain(|(selection, set)| knows(selection, &set.generation, name));
    // If two have the same resource version, the set of one object wins: a 404 has no version of
    // its own.
    knowing
        .into_iter()
        .max_by_key(|(selection, set)| (set.resource_version(), selection.name.is_some()))
}

fn knows(selection: &Selection, generation: &Generation, name: &ObjectName) -> bool {
    (selection.is_by_name_only() && !generation.lacking.contains(name))
        || generation.members.contains_key(name)
}
