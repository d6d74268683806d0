//! Answers from memory: only what is known, to an identity that was allowed to see it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::local_writes::selects;
use super::overlay::{Overlaid, Written};
use super::set::{Generation, Members, Set, newest_authoritative};
use super::{
    Cache, Clock, HeldObject, Identity, ObjectName, Representation, Scope, Selection, Verb, Verdict,
};
use crate::wire::{ListHead, Metadata, Object, TypeMeta};

/// The answer to a GET.
#[derive(Clone, Debug)]
pub(crate) enum GetAnswer {
    Found {
        object: Arc<Object>,
        item_type: TypeMeta,
        age: Duration,
        /// The resource version as of which this is known.
        version: u64,
    },
    /// It is known that the object does not exist, as of this resource version: 404.
    Absent { version: u64 },
    /// It is not known: 503.
    Unknown,
    /// The API server refused this identity, or it never asked.
    Denied,
}

/// The answer to a list, or to a streaming list.
#[derive(Clone, Debug)]
pub(crate) enum ListAnswer {
    Found(Box<Snapshot>),
    /// It is not known: 503.
    Unknown,
    /// The API server refused this identity, or it never asked.
    Denied,
}

/// A whole state of a set. It holds no lock; later changes do not reach it.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// With the set's own resource version, and no `continue` token.
    pub(crate) head: ListHead,
    pub(crate) item_type: TypeMeta,
    /// Time since the API server last agreed with it.
    pub(crate) age: Duration,
    members: Members,
    /// `None`: deleted by a local write.
    overlaid: BTreeMap<ObjectName, Option<Arc<Object>>>,
}

/// An object of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item<'a> {
    Held(&'a HeldObject),
    /// A local write laid over it.
    Written(&'a Object),
}

impl<'a> Item<'a> {
    pub(crate) fn metadata(self) -> &'a Metadata {
        match self {
            Self::Held(object) => &object.metadata,
            Self::Written(object) => &object.metadata,
        }
    }

    /// As [`Object::bytes`].
    pub(crate) fn bytes(self) -> Bytes {
        match self {
            Self::Held(object) => object.bytes(),
            Self::Written(object) => object.bytes.clone(),
        }
    }

    /// How many bytes these are.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Held(object) => object.packed.len(),
            Self::Written(object) => object.bytes.len(),
        }
    }

    /// The object as it is on the wire.
    pub(crate) fn object(self) -> Object {
        match self {
            Self::Held(object) => object.object(),
            Self::Written(object) => object.clone(),
        }
    }
}

/// How far a snapshot was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    last: Option<ObjectName>,
    /// In what local writes created, which comes last.
    in_created: bool,
}

impl Cursor {
    fn rest(&self) -> (Bound<&ObjectName>, Bound<&ObjectName>) {
        let from = match &self.last {
            Some(last) => Bound::Excluded(last),
            None => Bound::Unbounded,
        };
        (from, Bound::Unbounded)
    }
}

impl Snapshot {
    /// All objects. Those that a local write created come last.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let mut cursor = Cursor::default();
        std::iter::from_fn(move || self.next_item(&mut cursor))
    }

    /// The next object: for a reader that holds the snapshot, and nothing of its bytes.
    pub(crate) fn next_item(&self, cursor: &mut Cursor) -> Option<Item<'_>> {
        if !cursor.in_created {
            for (name, object) in self.members.range(cursor.rest()) {
                let item = match self.overlaid.get(name) {
                    Some(Some(written)) => Item::Written(written),
                    Some(None) => continue,
                    None => Item::Held(object),
                };
                cursor.last = Some(name.clone());
                return Some(item);
            }
            cursor.in_created = true;
            cursor.last = None;
        }
        for (name, object) in self.overlaid.range(cursor.rest()) {
            if let Some(written) = object
                && !self.members.contains_key(name)
            {
                cursor.last = Some(name.clone());
                return Some(Item::Written(written));
            }
        }
        None
    }

    /// What local writes change: what the API server has, and what is there instead.
    pub(crate) fn overlaid(
        &self,
    ) -> impl Iterator<Item = (&ObjectName, Option<&Arc<HeldObject>>, Option<&Arc<Object>>)> {
        self.overlaid
            .iter()
            .map(|(name, object)| (name, self.members.get(name), object.as_ref()))
    }

    /// The same without local writes.
    pub(crate) fn without_overlays(mut self) -> Self {
        self.overlaid.clear();
        self
    }
}

/// The versions with which GETs were answered from memory. If a set with selectors loses an object,
/// an older set must not answer in its place: the object would go back in time.
#[derive(Debug, Default)]
pub(super) struct ServedVersions {
    by_name: BTreeMap<(Representation, ObjectName), Served>,
}

#[derive(Clone, Copy, Debug)]
struct Served {
    /// Resource version of the set that answered.
    set: u64,
    /// A later answer of the API server has an object of at least this resource version.
    object: u64,
}

/// Objects whose answers are remembered. Far more than the node asks for by name.
const SERVED_VERSIONS: usize = 10_000;

impl ServedVersions {
    /// The smallest resource version of a set that may answer.
    fn min_set_version(&self, of: &Representation, name: &ObjectName) -> u64 {
        let key = (of.clone(), name.clone());
        match self.by_name.get(&key) {
            Some(served) => served.set,
            None => 0,
        }
    }

    fn record(&mut self, of: &Representation, name: ObjectName, set: &Set) {
        if self.by_name.len() >= SERVED_VERSIONS {
            self.by_name.clear();
        }
        let object = set
            .generation
            .members
            .get(&name)
            .map(|it| it.metadata.resource_version);
        let set = set.resource_version();
        // An object that did not exist is younger than that when it exists.
        self.by_name.insert(
            (of.clone(), name),
            Served {
                set,
                object: object.unwrap_or(set),
            },
        );
    }

    /// The API server itself answered this GET, with this version of the object or with a 404. A
    /// lagging one may answer with an older version than was served: it does not count.
    pub(super) fn forget(&mut self, of: &Representation, name: &ObjectName, version: Option<u64>) {
        let key = (of.clone(), name.clone());
        let Some(served) = self.by_name.get(&key) else {
            return;
        };
        match version {
            Some(version) if version < served.object => {}
            Some(_) | None => drop(self.by_name.remove(&key)),
        }
    }
}

impl Cache {
    /// Answers a GET. `scope` has a name.
    ///
    /// Any set whose scope covers the object may answer, the one with the largest resource version
    /// first. A grant for this GET is demanded; or, if the API server never answered this GET, one
    /// to list or watch the set that answers: an identity with it was shown this very object.
    pub(crate) fn get(&mut self, identity: &Identity, scope: &Scope, now: Clock) -> GetAnswer {
        let Some(name) = scope.selection.name.clone() else {
            return GetAnswer::Unknown;
        };
        let namespace = scope.selection.namespace.clone().unwrap_or_default();
        let name = ObjectName { namespace, name };
        let own = self.grants.verdict(identity, Verb::Get, scope);
        if own == Some(Verdict::Refused) {
            return GetAnswer::Denied;
        }
        let mut readable = Vec::new();
        for (selection, set) in self.sets.get(&scope.representation).into_iter().flatten() {
            if selection.may_contain(&name)
                && (own.is_some() || self.was_shown(identity, scope, selection))
            {
                readable.push((selection, set));
            }
        }
        if own.is_none() && readable.is_empty() {
            return GetAnswer::Denied;
        }
        let overlay = self.overlays.shown_object(&scope.representation, &name);
        let min_version = self.served.min_set_version(&scope.representation, &name);
        let newest = match newest_authoritative(&readable, &name) {
            Some((_, set)) if set.resource_version() < min_version => None,
            newest => newest,
        };
        let answer = answer_of(newest.map(|(_, set)| &set.generation), &name, overlay, now);
        if let Some((selection, set)) = newest {
            self.served.record(&scope.representation, name, set);
            let selection = selection.clone();
            self.touch(
                &Scope {
                    representation: scope.representation.clone(),
                    selection,
                },
                identity,
            );
        }
        answer
    }

    /// Answers a list, or a streaming list: `verb` says which of them was granted.
    pub(crate) fn list(
        &mut self,
        identity: &Identity,
        verb: Verb,
        scope: &Scope,
        now: Clock,
    ) -> ListAnswer {
        if !self.may_list(identity, verb, scope) {
            return ListAnswer::Denied;
        }
        self.touch(scope, identity);
        let overlaid = self.overlaid(scope);
        let Some(set) = self.set_mut(scope) else {
            return ListAnswer::Unknown;
        };
        if !set.generation.is_list() {
            return ListAnswer::Unknown;
        }
        let Generation {
            resource_version,
            item_type,
            list_type,
            members,
            ..
        } = &set.generation;
        let Some(type_meta) = list_type.clone() else {
            return ListAnswer::Unknown;
        };
        ListAnswer::Found(Box::new(Snapshot {
            head: ListHead {
                type_meta,
                resource_version: *resource_version,
                continue_token: String::new(),
            },
            item_type: item_type.clone(),
            age: set.generation.age(now),
            members: members.clone(),
            overlaid,
        }))
    }

    /// An identity that may watch a collection may begin with a list of it, as informers do since
    /// 1.35. But if the API server has refused this very list, it stays refused.
    fn may_list(&self, identity: &Identity, verb: Verb, scope: &Scope) -> bool {
        let mut verdict = self.grants.verdict(identity, verb, scope);
        if verdict.is_none() && verb == Verb::List {
            verdict = self.grants.verdict(identity, Verb::Watch, scope);
        }
        verdict == Some(Verdict::Allowed)
    }

    /// Whether the identity was shown what this selection selects.
    fn was_shown(&self, identity: &Identity, get: &Scope, selection: &Selection) -> bool {
        let representation = get.representation.clone();
        let scope = Scope {
            representation,
            selection: selection.clone(),
        };
        [Verb::List, Verb::Watch]
            .into_iter()
            .any(|verb| self.grants.verdict(identity, verb, &scope) == Some(Verdict::Allowed))
    }

    /// What local writes change in the list of a scope.
    fn overlaid(&self, scope: &Scope) -> BTreeMap<ObjectName, Option<Arc<Object>>> {
        let Scope {
            representation,
            selection,
        } = scope;
        let mut overlaid = BTreeMap::new();
        let Some(sets) = self.sets.get(representation) else {
            return overlaid;
        };
        let Some(set) = sets.get(selection) else {
            return overlaid;
        };
        let members = &set.generation.members;
        for (name, change) in self.overlays.all_seen(representation) {
            match change {
                Overlaid::Object(Written { object, .. }) => {
                    let is_selected = selection.may_contain(name)
                        && selects(selection, representation.encoding, object);
                    if members.contains_key(name) || is_selected {
                        overlaid.insert(name.clone(), Some(object.clone()));
                    }
                }
                Overlaid::Deleted | Overlaid::Elsewhere => {
                    overlaid.insert(name.clone(), None);
                }
            }
        }
        overlaid
    }
}

fn answer_of(
    known: Option<&Generation>,
    name: &ObjectName,
    overlay: Option<Overlaid<'_>>,
    now: Clock,
) -> GetAnswer {
    let age = match known {
        Some(generation) => generation.age(now),
        None => Duration::ZERO,
    };
    let version = match known {
        Some(generation) => generation.resource_version,
        // What only a local write knows is of no version.
        None => u64::MAX,
    };
    match (overlay, known) {
        (Some(Overlaid::Deleted), _) => GetAnswer::Absent { version },
        (Some(Overlaid::Object(written)), _) => GetAnswer::Found {
            object: written.object.clone(),
            item_type: written.item_type.clone(),
            age,
            version,
        },
        (Some(Overlaid::Elsewhere), _) | (None, None) => GetAnswer::Unknown,
        (None, Some(generation)) => match generation.members.get(name) {
            None => GetAnswer::Absent { version },
            Some(object) => GetAnswer::Found {
                object: Arc::new(object.object()),
                item_type: generation.item_type.clone(),
                age,
                version,
            },
        },
    }
}
