//! Answers that are byte for byte the last one: nothing of them is cut or compared again.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::sync::LazyLock;

use super::set::Advance;
use super::{Cache, Clock, Filled, Identity, Scope};
use crate::wire::ListHead;

/// Secret and of this process, so that a client cannot make two answers that look the same here.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// What an answer was: of a list, from its first item on; of an object, all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64);

/// Makes a [`Digest`].
#[derive(Debug)]
pub(crate) struct Digester(DefaultHasher);

impl Digester {
    pub(crate) fn new() -> Self {
        Self(KEYS.build_hasher())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest(self.0.finish())
    }
}

impl Cache {
    /// What the answer was that made this set, if the set still has what it said.
    pub(crate) fn made_by(&self, scope: &Scope) -> Option<Digest> {
        let sets = self.sets.get(&scope.representation)?;
        sets.get(&scope.selection)?.generation.made_by
    }

    /// This answer has just made the set.
    pub(crate) fn record_digest(&mut self, scope: &Scope, answer: Digest) {
        if let Some(set) = self.set_mut(scope) {
            set.generation.made_by = Some(answer);
        }
    }

    /// The API server gave the list again that made this set. `None`: the set has changed since.
    pub(crate) fn confirm_list(
        &mut self,
        scope: &Scope,
        items: Digest,
        head: &ListHead,
        reader: &Identity,
        now: Clock,
    ) -> Option<Filled> {
        let generation = &self.set_mut(scope)?.generation;
        let is_it = generation.made_by == Some(items)
            && generation.list_type.as_ref() == Some(&head.type_meta);
        let is_it = is_it && generation.lacking.is_empty();
        let members = is_it.then(|| generation.members.clone())?;
        if self.advance_set(scope, head.resource_version, now) == Advance::Ignored {
            return Some(Filled::Older);
        }
        let Scope {
            representation,
            selection,
        } = scope;
        self.overlays
            .end_listed(&representation.resource, selection, |name| {
                members.contains_key(name)
            });
        // The items are the same, also if the version is one of after a restore.
        let set = self.set_mut(scope)?;
        set.generation.resource_version = head.resource_version;
        set.confirm(head.resource_version, now);
        set.behind = false;
        self.touch(scope, reader);
        Some(Filled::Whole)
    }

    /// The API server gave the object again that made this set. `None`: the set has changed since.
    pub(crate) fn confirm_object(
        &mut self,
        scope: &Scope,
        body: Digest,
        reader: &Identity,
        now: Clock,
    ) -> Option<Filled> {
        let set = self.set_mut(scope)?;
        if set.generation.made_by != Some(body) || set.is_of_before_restore {
            return None;
        }
        set.behind = false;
        let (name, object) = set.generation.members.first_key_value()?;
        let name = name.clone();
        let resource_version = object.metadata.resource_version;
        set.confirm(resource_version, now);
        self.overlays.end(&scope.representation.resource, &name);
        self.served
            .forget(&scope.representation, &name, Some(resource_version));
        self.touch(scope, reader);
        Some(Filled::Whole)
    }
}
