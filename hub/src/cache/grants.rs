//! Who may read what: the last word of the API server to each identity. The hub decides nothing
//! that the API server has not decided before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::{Identity, Now, Resource, Scope, Selection, Verb};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What the API server said to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Refused,
}

/// What a verdict is about. Encoding and shape are not part of it: authorisation does not look at
/// them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GrantKey {
    pub(super) identity: Identity,
    pub(super) verb: Verb,
    pub(super) resource: Resource,
    pub(super) selection: Selection,
}

/// The last verdict, and when it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) verdict: Verdict,
    pub(super) at: SystemTime,
}

/// All verdicts.
#[derive(Debug, Default)]
pub(super) struct Grants {
    by_key: BTreeMap<GrantKey, Grant>,
    /// Came, changed or went since the last batch was taken for the disk.
    unsaved: BTreeSet<GrantKey>,
}

impl Grants {
    pub(super) fn record(
        &mut self,
        identity: &Identity,
        verb: Verb,
        scope: &Scope,
        verdict: Verdict,
        now: Now,
    ) {
        let key = key(identity, verb, scope);
        let earlier = self.by_key.insert(
            key.clone(),
            Grant {
                verdict,
                at: now.wall,
            },
        );
        // The time alone is worth a write each day.
        let is_news = |it: Grant| {
            it.verdict != verdict || now.wall.duration_since(it.at).is_ok_and(|age| age >= DAY)
        };
        if earlier.is_none_or(is_news) {
            self.unsaved.insert(key);
        }
    }

    /// Puts back what was on disk.
    pub(super) fn restore(&mut self, key: GrantKey, grant: Grant) {
        self.by_key.insert(key, grant);
    }

    pub(super) fn forget_older_than(&mut self, since: SystemTime) {
        let gone = self.by_key.extract_if(.., |_, grant| grant.at < since);
        self.unsaved.extend(gone.map(|(key, _)| key));
    }

    /// Whether there is a verdict on what this scope selects, of whoever, in whichever encoding.
    pub(super) fn are_about(&self, scope: &Scope) -> bool {
        self.by_key.keys().any(|key| {
            key.resource == scope.representation.resource && key.selection == scope.selection
        })
    }

    /// The last verdict on exactly this.
    pub(super) fn verdict(
        &self,
        identity: &Identity,
        verb: Verb,
        scope: &Scope,
    ) -> Option<Verdict> {
        self.by_key
            .get(&key(identity, verb, scope))
            .map(|grant| grant.verdict)
    }

    pub(super) fn find(&self, key: &GrantKey) -> Option<Grant> {
        self.by_key.get(key).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&GrantKey, &Grant)> {
        self.by_key.iter()
    }

    pub(super) fn take_unsaved(&mut self) -> BTreeSet<GrantKey> {
        std::mem::take(&mut self.unsaved)
    }

    pub(super) fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }
}

fn key(identity: &Identity, verb: Verb, scope: &Scope) -> GrantKey {
    GrantKey {
        identity: identity.clone(),
        verb,
        resource: scope.representation.resource.clone(),
        selection: scope.selection.clone(),
    }
}
