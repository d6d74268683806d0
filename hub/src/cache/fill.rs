//! Lists and GETs of the API server fill sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::answers::ServedVersions;
use super::objects::name_of;
use super::set::{Advance, Generation, Members, Set, Unsaved};
use super::{Cache, Clock, HeldObject, Identity, ListCopy, ObjectName, Scope};
use crate::wire::{ListHead, Object, TypeMeta};

/// What lists may take that wait for their next page: this part of what all objects may.
const UNFINISHED_PART: usize = 8;

/// What an answer did to its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// The set is this answer now.
    Whole,
    /// More pages must follow.
    Partly,
    /// The answer was older than the set: ignored, and the set is behind until a later answer
    /// agrees with it. If only smaller resource versions come, the cluster was restored from a
    /// backup.
    Older,
    /// Something of the answer was lost, too large, or not of one state: the set is behind.
    Spoiled,
}

impl Cache {
    /// Begins the copy of a list, or of its next page if the request has a `continue` token.
    /// `None`: the earlier pages are not known, so this page fills nothing. Not for a list with
    /// `resourceVersionMatch=Exact`.
    pub(crate) fn start_list(
        &mut self,
        scope: &Scope,
        continue_token: Option<&str>,
        reader: &Identity,
        now: Clock,
    ) -> Option<ListCopy> {
        match continue_token {
            None => Some(self.new_list(scope)),
            Some(token) => self.unfinished_lists.resume(scope, token, reader, now),
        }
    }

    /// The copy of a list that begins.
    pub(super) fn new_list(&self, scope: &Scope) -> ListCopy {
        let sample = self.objects.sample(&scope.representation);
        ListCopy::new(scope.clone(), self.bounds, sample)
    }

    /// Ends a page: the last one makes the set whole, at once.
    pub(crate) fn finish_list(
        &mut self,
        mut copy: ListCopy,
        head: &ListHead,
        reader: &Identity,
        now: Clock,
    ) -> Filled {
        let resource_version = *copy.resource_version.get_or_insert(head.resource_version);
        // A list without a version, as of metrics, says nothing of later ones.
        let is_state = resource_version != 0 && resource_version == head.resource_version;
        if copy.spoiled || !is_state {
            self.mark_behind(&copy.scope);
            return Filled::Spoiled;
        }
        let types = SetTypes {
            item: head
                .type_meta
                .item()
                .unwrap_or_else(|| head.type_meta.clone()),
            list: Some(head.type_meta.clone()),
        };
        if self.is_of_another_kind(&copy.scope, &types.item) {
            self.mark_behind(&copy.scope);
            return Filled::Spoiled;
        }
        if !head.continue_token.is_empty() {
            let token = head.continue_token.clone();
            self.unfinished_lists.put_aside(copy, token, reader, now);
            let bytes = self.bounds.total / UNFINISHED_PART;
            self.unfinished_lists.enforce_limits(bytes);
            return Filled::Partly;
        }
        self.fill(copy, resource_version, types, reader, now)
    }

    /// Whether these are other objects than the set has had before: a resource has one kind.
    fn is_of_another_kind(&mut self, scope: &Scope, item_type: &TypeMeta) -> bool {
        match self.set_mut(scope) {
            Some(set) => set.generation.item_type.kind != item_type.kind,
            None => false,
        }
    }

    /// Replaces a set by a whole copy.
    pub(super) fn fill(
        &mut self,
        copy: ListCopy,
        resource_version: u64,
        types: SetTypes,
        reader: &Identity,
        now: Clock,
    ) -> Filled {
        let ListCopy {
            scope,
            members,
            lacking,
            ..
        } = copy;
        if self.advance_set(&scope, resource_version, now) == Advance::Ignored {
            return Filled::Older;
        }
        let representation = &scope.representation;
        self.overlays
            .end_listed(&representation.resource, &scope.selection, |name| {
                members.contains_key(name) || lacking.contains(name)
            });
        let members = members
            .into_iter()
            .map(|(name, object)| (name, self.objects.share(representation, object)))
            .collect();
        self.replace(&scope, members, resource_version, types, now);
        if let Some(set) = self.set_mut(&scope) {
            set.generation.lacking = lacking;
        }
        self.touch(&scope, reader);
        self.enforce_bounds();
        Filled::Whole
    }

    /// Copies the answer to a GET: a set of one. `scope` has a name.
    pub(crate) fn record_object(
        &mut self,
        scope: &Scope,
        item_type: &TypeMeta,
        object: Object,
        reader: &Identity,
        now: Clock,
    ) -> Filled {
        let name = name_of(&object.metadata);
        let is_other = scope.selection.name.as_ref() != Some(&name.name);
        let is_too_large = object.bytes.len() > self.bounds.object;
        if is_other || is_too_large || object.metadata.resource_version == 0 {
            self.mark_behind(scope);
            return Filled::Spoiled;
        }
        let resource_version = object.metadata.resource_version;
        if let Some(set) = self.set_mut(scope) {
            let is_known = match set.generation.members.get(&name) {
                Some(known) => {
                    known.metadata.resource_version == resource_version
                        && known.bytes() == object.bytes
                }
                None => false,
            };
            if is_known && !set.is_of_before_restore {
                set.behind = false;
                set.confirm(resource_version, now);
                self.overlays.end(&scope.representation.resource, &name);
                self.served
                    .forget(&scope.representation, &name, Some(resource_version));
                self.touch(scope, reader);
                return Filled::Whole;
            }
        }
        if self.advance_set(scope, resource_version, now) == Advance::Ignored {
            return Filled::Older;
        }
        self.overlays.end(&scope.representation.resource, &name);
        self.served
            .forget(&scope.representation, &name, Some(resource_version));
        let sample = self.objects.sample(&scope.representation);
        let object = HeldObject::new(object, &sample);
        let object = self.objects.share(&scope.representation, object);
        let types = SetTypes {
            item: item_type.clone(),
            list: None,
        };
        self.replace(
            scope,
            BTreeMap::from([(name, object)]),
            resource_version,
            types,
            now,
        );
        self.touch(scope, reader);
        self.enforce_bounds();
        Filled::Whole
    }

    /// Copies a 404 to a GET. Such an answer has no resource version: it is newer than all that is
    /// known about this name, so the set of one takes the largest that is known. Without any,
    /// nothing is noted: there is nothing that would be served.
    pub(crate) fn record_absence(&mut self, scope: &Scope, reader: &Identity, now: Clock) {
        let Some(name) = scope.selection.name.clone() else {
            return;
        };
        let namespace = scope.selection.namespace.clone().unwrap_or_default();
        let name = ObjectName { namespace, name };
        self.overlays.end(&scope.representation.resource, &name);
        self.served.forget(&scope.representation, &name, None);
        let Some(sets) = self.sets.get(&scope.representation) else {
            return;
        };
        let covering = sets.iter().filter(|(selection, set)| {
            selection.may_contain(&name)
                && (selection.is_by_name_only() || set.generation.members.contains_key(&name))
        });
        let Some((_, newest)) = covering.max_by_key(|(_, set)| set.generation.resource_version)
        else {
            return;
        };
        let resource_version = newest.generation.resource_version;
        let types = SetTypes {
            item: newest.generation.item_type.clone(),
            list: None,
        };
        self.replace(scope, BTreeMap::new(), resource_version, types, now);
        if let Some(set) = self.set_mut(scope) {
            set.generation.exact = false;
        }
        self.touch(scope, reader);
    }

    pub(super) fn advance_set(
        &mut self,
        scope: &Scope,
        resource_version: u64,
        now: Clock,
    ) -> Advance {
        let Some(set) = self.set_mut(scope) else {
            return Advance::Forward;
        };
        let advance = set.advance_to(resource_version, now);
        if advance == Advance::NewEpoch {
            self.served = ServedVersions::default();
        }
        advance
    }

    /// Takes note of the newest resource version of the cluster, from a list that etcd itself answered.
    /// `true`: a larger one was `known` when it was asked, so the cluster was restored from a backup.
    /// All sets are of before.
    pub(crate) fn observe_newest_version(&mut self, resource_version: u64, known: u64) -> bool {
        // Another answer may have said so meanwhile.
        let known = known.min(self.newest_core_version());
        if resource_version == 0 || resource_version >= known {
            return false;
        }
        self.restores += 1;
        self.served = ServedVersions::default();
        for sets in self.sets.values_mut() {
            for set in sets.values_mut() {
                set.is_of_before_restore = true;
                set.mark_behind();
            }
        }
        true
    }

    /// The newest version of resources that share one etcd: events may have another, and other API
    /// servers have versions of their own.
    pub(crate) fn newest_core_version(&self) -> u64 {
        let mut newest = 0;
        for (representation, sets) in &self.sets {
            let resource = &representation.resource;
            if !resource.group.is_empty() || resource.resource == "events" {
                continue;
            }
            for set in sets.values() {
                if !set.is_of_before_restore {
                    newest = newest.max(set.resource_version());
                }
            }
        }
        newest
    }

    /// How many times it was seen that the cluster was restored from a backup.
    pub(crate) fn restores(&self) -> u64 {
        self.restores
    }

    /// Puts a generation in the place of the earlier one. `members` are held already.
    fn replace(
        &mut self,
        scope: &Scope,
        members: BTreeMap<ObjectName, Arc<HeldObject>>,
        resource_version: u64,
        types: SetTypes,
        now: Clock,
    ) {
        let generation = Generation {
            resource_version,
            item_type: types.item,
            list_type: types.list,
            exact: true,
            members: Members::new(members),
            lacking: BTreeSet::new(),
            made_by: None,
            confirmed: now.wall,
        };
        if !self.sets.contains_key(&scope.representation) {
            self.sets
                .insert(scope.representation.clone(), BTreeMap::new());
        }
        let Some(set) = self.set_mut(scope) else {
            self.insert_new(scope, generation);
            return;
        };
        set.behind = false;
        set.unsaved.head = true;
        let list_type = generation
            .list_type
            .clone()
            .or(set.generation.list_type.take());
        let generation = Generation {
            list_type,
            ..generation
        };
        set.unsaved
            .members
            .extend(differing(&set.generation.members, &generation.members));
        let earlier = std::mem::replace(&mut set.generation, generation);
        for object in earlier.members.values() {
            self.objects.release(&scope.representation, object);
        }
    }

    fn insert_new(&mut self, scope: &Scope, generation: Generation) {
        let set = Set {
            id: self.next_set_id,
            behind: false,
            essential: false,
            is_new: true,
            last_used: self.uses,
            reader: None,
            epoch: 0,
            smaller_since: None,
            is_of_before_restore: false,
            unsaved: Unsaved {
                head: true,
                members: generation.members.keys().cloned().collect(),
            },
            generation,
        };
        self.next_set_id += 1;
        let sets = self.sets.entry(scope.representation.clone()).or_default();
        sets.insert(scope.selection.clone(), set);
    }
}

/// Kinds of a set's items and of its list.
#[derive(Debug)]
pub(super) struct SetTypes {
    pub(super) item: TypeMeta,
    pub(super) list: Option<TypeMeta>,
}

/// Names whose object is not the same version in both.
fn differing(earlier: &Members, later: &Members) -> Vec<ObjectName> {
    let mut names = Vec::new();
    for name in earlier.keys() {
        if !later.contains_key(name) {
            names.push(name.clone());
        }
    }
    for (name, object) in later.iter() {
        match earlier.get(name) {
            Some(known) if known.metadata.resource_version == object.metadata.resource_version => {}
            Some(_) | None => names.push(name.clone()),
        }
    }
    names
}
