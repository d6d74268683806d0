//! Who may read what: the last decision of the API server for each identity. The hub decides
//! nothing that the API server has not decided before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::{Clock, Identity, Needed, Resource, Scope, Selection, Verb};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Verdicts on one identity: a controller reads some kinds, and some objects of them by name.
const MAX_OF_IDENTITY: Usage = Usage {
    count: 2048,
    bytes: 512 << 10,
};
/// Kubelet reads the secrets, config maps and volumes of its pods by name.
const MAX_OF_NODE: Usage = Usage {
    count: 16 << 10,
    bytes: 8 << 20,
};
/// On all identities but the node.
const MAX_OF_OTHERS: Usage = Usage {
    count: 8 << 10,
    bytes: MAX_BYTES_OF_OTHERS,
};
pub(crate) const MAX_BYTES_OF_OTHERS: usize = 2 << 20;
/// What a verdict costs in memory besides its texts, rounded up.
const OVERHEAD: usize = 256;

/// How much verdicts take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    count: usize,
    bytes: usize,
}

impl Usage {
    fn exceeds(self, limit: Self) -> bool {
        self.count > limit.count || self.bytes > limit.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }
}

/// What the API server said to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Refused,
}

/// After how long a second refusal counts. An API server that has just started refuses what it allows
/// later, for seconds to minutes (kubernetes #121635).
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Whether something that was allowed is refused: the first refusal is no verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// In uptime: of the first refusal since it was allowed.
    since: Option<Duration>,
}

impl Doubt {
    /// Takes a refusal; whether it confirms an earlier one.
    pub(crate) fn is_confirmed_at(&mut self, uptime: Duration) -> bool {
        let since = *self.since.get_or_insert(uptime);
        uptime.saturating_sub(since) >= REFUSED_FOR
    }
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
    /// Why an allowed one may be out of date; not on disk.
    pub(super) doubt: Doubt,
}

/// All verdicts.
#[derive(Debug, Default)]
pub(super) struct Grants {
    by_key: BTreeMap<GrantKey, Grant>,
    /// What the verdicts on each identity use, and what all use together.
    by_identity: BTreeMap<Identity, Usage>,
    all: Usage,
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
        now: Clock,
    ) {
        let key = key(identity, verb, scope);
        if verdict == Verdict::Refused
            && let Some(known) = self.by_key.get_mut(&key)
            && known.verdict == Verdict::Allowed
            && !known.doubt.is_confirmed_at(now.uptime)
        {
            return;
        }
        let grant = Grant {
            verdict,
            at: now.wall,
            doubt: Doubt::default(),
        };
        let earlier = self.insert(key.clone(), grant);
        // The time alone is worth a write each day.
        let is_news = match earlier {
            Some(earlier) if earlier.verdict == verdict => {
                now.wall.duration_since(earlier.at).unwrap_or_default() >= DAY
            }
            Some(_) | None => true,
        };
        if is_news {
            self.unsaved.insert(key);
        }
        self.enforce_bounds(identity);
    }

    /// Puts back what was on disk; what is known already stays.
    pub(super) fn restore(&mut self, key: GrantKey, grant: Grant) {
        if !self.by_key.contains_key(&key) {
            self.insert(key, grant);
        }
    }

    pub(super) fn believe_no_later_than(&mut self, now: SystemTime) {
        for grant in self.by_key.values_mut() {
            grant.at = grant.at.min(now);
        }
    }

    /// Takes refusals that the API server has not repeated for verdicts: there was time to be
    /// allowed again. Not those of the node, whose kubelet asks again by itself.
    pub(super) fn settle_doubts(&mut self, uptime: Duration) {
        for (key, grant) in &mut self.by_key {
            let is_refused = grant.doubt.since.is_some() && grant.doubt.is_confirmed_at(uptime);
            if is_refused && key.identity != Identity::Node {
                grant.verdict = Verdict::Refused;
                grant.doubt = Doubt::default();
                self.unsaved.insert(key.clone());
            }
        }
    }

    pub(super) fn forget_older_than(&mut self, since: SystemTime, needed: &Needed) {
        let mut old = Vec::new();
        for (key, grant) in &self.by_key {
            if grant.at < since && !needed.has(key) {
                old.push(key.clone());
            }
        }
        for key in old {
            self.remove(key);
        }
    }

    fn insert(&mut self, key: GrantKey, grant: Grant) -> Option<Grant> {
        let identity = key.identity.clone();
        let bytes = bytes_of(&key);
        let earlier = self.by_key.insert(key, grant);
        if earlier.is_none() {
            self.by_identity.entry(identity).or_default().add(bytes);
            self.all.add(bytes);
        }
        earlier
    }

    fn remove(&mut self, key: GrantKey) {
        if self.by_key.remove(&key).is_none() {
            return;
        }
        let bytes = bytes_of(&key);
        self.all.remove(bytes);
        if let Some(usage) = self.by_identity.get_mut(&key.identity) {
            usage.remove(bytes);
            if usage.count == 0 {
                self.by_identity.remove(&key.identity);
            }
        }
        self.unsaved.insert(key);
    }

    /// An identity that asks for more than may be remembered loses grants of its own; with many
    /// identities, the one that has most does.
    fn enforce_bounds(&mut self, identity: &Identity) {
        let limit = match identity {
            Identity::Node => MAX_OF_NODE,
            Identity::ServiceAccount { .. } | Identity::User(_) => MAX_OF_IDENTITY,
        };
        let own = self.by_identity.get(identity).copied().unwrap_or_default();
        if own.exceeds(limit) {
            self.forget_oldest(identity);
        }
        let node = self.by_identity.get(&Identity::Node).copied();
        let node = node.unwrap_or_default();
        let of_others = Usage {
            count: self.all.count - node.count,
            bytes: self.all.bytes - node.bytes,
        };
        if of_others.exceeds(MAX_OF_OTHERS) {
            let mut others = self.by_identity.iter().collect::<Vec<_>>();
            others.retain(|(identity, _)| **identity != Identity::Node);
            let largest = others.into_iter().max_by_key(|(_, usage)| usage.bytes);
            if let Some(largest) = largest.map(|(identity, _)| identity.clone()) {
                self.forget_oldest(&largest);
            }
        }
    }

    /// Forgets an eighth of an identity's verdicts: each time is a search through all of them.
    fn forget_oldest(&mut self, identity: &Identity) {
        let mut own = Vec::new();
        for (key, grant) in &self.by_key {
            if key.identity == *identity {
                own.push((grant.at, key.clone()));
            }
        }
        own.sort();
        own.truncate((own.len() / 8).max(1));
        for (_, key) in own {
            self.remove(key);
        }
    }

    /// Whether there is a verdict on what this scope selects, of any identity, in any encoding.
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

/// Memory that a verdict takes.
fn bytes_of(key: &GrantKey) -> usize {
    let GrantKey {
        identity,
        resource,
        selection,
        ..
    } = key;
    let identity = match identity {
        Identity::Node => 0,
        Identity::ServiceAccount { namespace, name } => namespace.len() + name.len(),
        Identity::User(name) => name.len(),
    };
    let resource = resource.group.len() + resource.version.len() + resource.resource.len();
    OVERHEAD + identity + resource + selection.len()
}

fn key(identity: &Identity, verb: Verb, scope: &Scope) -> GrantKey {
    GrantKey {
        identity: identity.clone(),
        verb,
        resource: scope.representation.resource.clone(),
        selection: scope.selection.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::fixtures::{all, at, one};

    #[test]
    fn who_asks_for_much_forgets_of_its_own_verdicts_the_oldest() {
        let greedy = Identity::User("greedy".to_owned());
        let mut grants = Grants::default();
        grants.record(&Identity::Node, Verb::List, &all(), Verdict::Allowed, at(0));
        for number in 0..3 * MAX_OF_IDENTITY.count {
            let scope = one(&format!("name-{number}"));
            let now = at(u64::try_from(number).unwrap());
            grants.record(&greedy, Verb::Get, &scope, Verdict::Refused, now);
        }
        assert!(grants.by_key.len() <= MAX_OF_IDENTITY.count + 1);
        let verdict = |identity, verb, scope| grants.verdict(identity, verb, &scope);
        assert_eq!(
            verdict(&Identity::Node, Verb::List, all()),
            Some(Verdict::Allowed)
        );
        assert_eq!(verdict(&greedy, Verb::Get, one("name-0")), None);
        let newest = one(&format!("name-{}", 3 * MAX_OF_IDENTITY.count - 1));
        assert_eq!(verdict(&greedy, Verb::Get, newest), Some(Verdict::Refused));
        assert_eq!(grants.all.count, grants.by_key.len());
        // Long names take more of the bound.
        for number in 0..MAX_OF_IDENTITY.count {
            let scope = one(&format!("{number:0>1000}"));
            grants.record(&greedy, Verb::Get, &scope, Verdict::Refused, at(0));
        }
        assert!(!grants.by_identity[&greedy].exceeds(MAX_OF_IDENTITY));
        let mut counted = Usage::default();
        for key in grants.by_key.keys() {
            counted.add(bytes_of(key));
        }
        assert_eq!(grants.all, counted);
    }

    #[test]
    fn a_first_refusal_is_no_verdict_and_one_that_nobody_repeats_counts_later() {
        let mut grants = Grants::default();
        let pod = Identity::User("pod".to_owned());
        let refuse = |grants: &mut Grants, identity: &Identity, seconds| {
            let refused = Verdict::Refused;
            grants.record(identity, Verb::List, &all(), refused, at(seconds));
            grants.verdict(identity, Verb::List, &all())
        };
        for identity in [&Identity::Node, &pod] {
            let allowed = Verdict::Allowed;
            grants.record(identity, Verb::List, &all(), allowed, at(0));
            assert_eq!(refuse(&mut grants, identity, 10), Some(allowed));
            assert_eq!(refuse(&mut grants, identity, 60), Some(allowed));
            grants.record(identity, Verb::List, &all(), allowed, at(65));
            assert_eq!(refuse(&mut grants, identity, 75), Some(allowed));
        }
        grants.settle_doubts(at(4000).uptime);
        let verdict = |identity| grants.verdict(identity, Verb::List, &all());
        assert_eq!(verdict(&Identity::Node), Some(Verdict::Allowed));
        assert_eq!(verdict(&pod), Some(Verdict::Refused));
        let confirmed = refuse(&mut grants, &Identity::Node, 4000);
        assert_eq!(confirmed, Some(Verdict::Refused));
    }
}
