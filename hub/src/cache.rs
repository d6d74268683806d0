//! What the hub remembers: the answers of the API server, who got them, and what it may say from
//! them while the API server cannot be reached.
//!
//! A *set* is what one scope selected. It is filled by a list (all pages) or by a streaming list,
//! aside, and replaces the earlier *generation* at once when it is whole. Watches advance it. What
//! is served is always the last whole generation, with its own resource version and age: never a
//! part, and never a shorter list. A set that is *behind* serves it too, and is known to be older
//! than what the API server has sent, because a copy lost events. Fill it again when there is a
//! link.
//!
//! The resource version of a set only rises. A list with a smaller one comes from a lagging API
//! server, or from a cluster restored from a backup: it is ignored, and the set is behind. The
//! cluster was restored if etcd's newest version is smaller than one that is known, or, where that
//! may not be asked, if only smaller ones came for [`RESTORED_AFTER`]: the next list then begins a
//! new *epoch* of the set.
//!
//! Each object is held once for each version that a set has. Sets at different resource versions
//! may hold different versions, so that each stays a state that existed.
//!
//! All is pure over data: no sockets, no files, no clock. The owner has it behind one lock.

mod answers;
mod bounds;
mod copies;
pub(crate) mod documents;
mod fill;
mod forget;
mod grants;
mod local_writes;
mod objects;
mod overlay;
pub(crate) mod patch;
mod saved;
mod scope;
mod set;
mod unchanged;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use self::answers::ServedVersions;
/// What others than the node may take, in bytes.
pub(crate) mod limits {
    use super::bounds::{MAX_MEMBERS, MAX_QUESTIONS, MAX_SETS, MEMBER, SET_OVERHEAD};

    pub(crate) use super::copies::MAX_UNFINISHED_OF_OTHERS as UNFINISHED_OF_OTHERS;
    pub(crate) use super::documents::TOTAL_MAX as DOCUMENTS;
    pub(crate) use super::grants::MAX_BYTES_OF_OTHERS as VERDICTS_OF_OTHERS;

    pub(crate) const QUESTIONS: usize = MAX_QUESTIONS + MAX_SETS * SET_OVERHEAD;
    pub(crate) const MEMBERS_OF_OTHERS: usize = MAX_MEMBERS * MEMBER;
}

pub(crate) use self::answers::{Cursor, GetAnswer, Item, ListAnswer, Snapshot};
pub(crate) use self::bounds::Bounds;
pub(crate) use self::copies::{ListCopy, WatchCopy, WatchStart};
use self::documents::Documents;
pub(crate) use self::fill::Filled;
pub(crate) use self::forget::Needed;
pub(crate) use self::grants::{Doubt, Verdict};
use self::grants::{GrantKey, Grants};
pub(crate) use self::local_writes::{LocalWriteError, Target, WrittenObject};
use self::objects::StoredObjects;
pub(crate) use self::objects::{HeldObject, has_same_content};
use self::overlay::Overlays;
pub(crate) use self::scope::{
    Identity, ObjectName, ObjectRef, Representation, Resource, Scope, Selection, Verb,
};
pub(crate) use self::set::SetStatus;
use self::set::{RemovedSet, Set};
pub(crate) use self::unchanged::{Digest, Digester};
pub(crate) use self::watch::Applied;
use crate::wire::{Encoding, Object, Shape};

/// For how long only smaller resource versions must have come before they are believed.
pub(crate) const RESTORED_AFTER: Duration = Duration::from_secs(60);

/// The time, read by the caller from two clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// For ages, which outlive a restart. It may jump.
    pub(crate) wall: SystemTime,
    /// Since some fixed moment. It never jumps, so decisions are made by it.
    pub(crate) uptime: Duration,
}

/// All that the hub remembers. See the module.
#[derive(Debug)]
pub(crate) struct Cache {
    bounds: Bounds,
    sets: BTreeMap<Representation, BTreeMap<Selection, Set>>,
    objects: StoredObjects,
    unfinished_lists: copies::UnfinishedLists,
    grants: Grants,
    overlays: Overlays,
    /// What the API server says of itself.
    pub(crate) documents: Documents,
    served: ServedVersions,
    /// Counts reads and fills; the larger number was used later.
    uses: u64,
    next_set_id: u64,
    /// Sets that are still on disk.
    removed: Vec<RemovedSet>,
    /// Counts restores of the cluster.
    restores: u64,
}

impl Cache {
    /// An empty cache.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            sets: BTreeMap::new(),
            objects: StoredObjects::default(),
            unfinished_lists: copies::UnfinishedLists::default(),
            grants: Grants::default(),
            overlays: Overlays::default(),
            documents: Documents::default(),
            served: ServedVersions::default(),
            uses: 0,
            next_set_id: 1,
            removed: Vec::new(),
            restores: 0,
        }
    }

    /// Notes what the API server said to this request of this identity. Allowed is every answer
    /// that was authorised: 2xx, and also 404 and 410. Refused is 401 and 403.
    pub(crate) fn record_verdict(
        &mut self,
        identity: &Identity,
        verb: Verb,
        scope: &Scope,
        verdict: Verdict,
        now: Clock,
    ) {
        self.grants.record(identity, verb, scope, verdict, now);
    }

    /// Takes refusals that stand for long for verdicts. See [`Doubt`].
    pub(crate) fn settle_doubts(&mut self, now: Clock) {
        self.grants.settle_doubts(now.uptime);
    }

    /// How many objects have a local write laid over them.
    pub(crate) fn overlaid_objects(&self) -> usize {
        self.overlays.len()
    }

    /// Marks a set behind: its copy lost something.
    pub(crate) fn mark_behind(&mut self, scope: &Scope) {
        if let Some(set) = self.set_mut(scope) {
            set.mark_behind();
        }
    }

    /// What the node reads and is behind.
    pub(crate) fn behind_of_node(&self) -> BTreeSet<Scope> {
        let mut behind = BTreeSet::new();
        for (representation, sets) in &self.sets {
            for (selection, set) in sets {
                if set.essential && set.behind && !representation.resource.is_lease() {
                    behind.insert(Scope {
                        representation: representation.clone(),
                        selection: selection.clone(),
                    });
                }
            }
        }
        behind
    }

    /// The state of all sets.
    pub(crate) fn statuses(&self, now: Clock) -> Vec<SetStatus> {
        let mut statuses = Vec::new();
        for (representation, sets) in &self.sets {
            for (selection, set) in sets {
                let representation = representation.clone();
                let scope = Scope {
                    representation,
                    selection: selection.clone(),
                };
                statuses.push(set.status(scope, now));
            }
        }
        statuses
    }

    /// The verdicts by which a read of an identity is answered from memory.
    pub(crate) fn verdicts_for(
        &self,
        identity: &Identity,
        verb: Verb,
        scope: &Scope,
    ) -> Vec<(Verb, &Selection, Verdict, SystemTime)> {
        let asked = &scope.selection;
        let object = match &asked.name {
            Some(name) if verb == Verb::Get => Some(ObjectName {
                namespace: asked.namespace.clone().unwrap_or_default(),
                name: name.clone(),
            }),
            Some(_) | None => None,
        };
        let mut verdicts = Vec::new();
        for (key, grant) in self.grants.all() {
            if key.identity != *identity || key.resource != scope.representation.resource {
                continue;
            }
            if key.verb == verb && key.selection == *asked || shows(key, object.as_ref()) {
                verdicts.push((key.verb, &key.selection, grant.verdict, grant.at));
            }
        }
        verdicts
    }

    /// All objects of a resource of the core group that the node reads, from all of its sets.
    pub(crate) fn objects_of_node<'a>(
        &'a self,
        resource: &'a str,
    ) -> impl Iterator<Item = (Encoding, Object)> + 'a {
        let sets = self.sets_of_node("", resource);
        let objects = sets.into_iter().map(|(encoding, set)| {
            let members = set.generation.members.values();
            members.map(move |object| (encoding, object.object()))
        });
        objects.flatten()
    }

    /// Whether the node reads a resource of the core group.
    pub(crate) fn node_reads(&self, resource: &str) -> bool {
        !self.sets_of_node("", resource).is_empty()
    }

    /// Whether an object is in a set that the node reads.
    pub(crate) fn node_has(&self, object: &ObjectRef) -> bool {
        self.sets_of_node(&object.group, &object.resource)
            .iter()
            .any(|(_, set)| set.generation.members.contains_key(&object.name))
    }

    /// An object as it is in each set, for any reader.
    pub(crate) fn versions_of_all(&self, object: &ObjectRef) -> Vec<(Encoding, Object)> {
        let mut versions = Vec::new();
        for (representation, sets) in &self.sets {
            let resource = &representation.resource;
            let is_kind = resource.group == object.group && resource.resource == object.resource;
            if !is_kind || representation.shape != Shape::Object {
                continue;
            }
            for set in sets.values() {
                if let Some(held) = set.generation.members.get(&object.name) {
                    versions.push((representation.encoding, held.object()));
                }
            }
        }
        versions
    }

    /// An object as it is in each set that the node reads.
    pub(crate) fn versions_of(&self, object: &ObjectRef) -> Vec<(Encoding, Object)> {
        let mut versions = Vec::new();
        for (encoding, set) in self.sets_of_node(&object.group, &object.resource) {
            if let Some(held) = set.generation.members.get(&object.name) {
                versions.push((encoding, held.object()));
            }
        }
        versions
    }

    fn sets_of_node(&self, group: &str, resource: &str) -> Vec<(Encoding, &Set)> {
        let mut found = Vec::new();
        for (representation, sets) in &self.sets {
            let its = &representation.resource;
            if representation.shape != Shape::Object
                || its.group != group
                || its.resource != resource
            {
                continue;
            }
            for set in sets.values() {
                if set.essential {
                    found.push((representation.encoding, set));
                }
            }
        }
        found
    }

    fn set_mut(&mut self, scope: &Scope) -> Option<&mut Set> {
        self.sets
            .get_mut(&scope.representation)?
            .get_mut(&scope.selection)
    }
}

/// Whether who may list or watch this has been shown the object.
fn shows(key: &GrantKey, object: Option<&ObjectName>) -> bool {
    match (object, key.verb) {
        (Some(object), Verb::List | Verb::Watch) => key.selection.may_contain(object),
        (None, _) | (_, Verb::Get) => false,
    }
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
