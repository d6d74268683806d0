//! The revocations that the proxies of a cluster share. A revocation makes a Node's certificates
//! void that were issued before a time. Each proxy keeps all that it knows. Two sets merge by
//! taking the later revocation of each Node. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::NodeUid;
use serde::{Deserialize, Serialize};

/// A deleted Node needs no revocation: its UID never returns. Until this time has passed, a proxy
/// may be late to learn of a new one.
const RETENTION_WITHOUT_NODE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Revocations by the Node's UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revocations(BTreeMap<NodeUid, Revocation>);

/// A Node's last revocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Revocation {
    /// For people.
    node: NodeName,
    at: UnixTime,
}

impl Revocations {
    /// When the Node's certificates were last revoked; 1970 if never.
    pub(crate) fn last(&self, uid: &NodeUid) -> UnixTime {
        self.0
            .get(uid)
            .map(|revocation| revocation.at)
            .unwrap_or_default()
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&NodeUid, &NodeName, UnixTime)> {
        let all = self.0.iter();
        all.map(|(uid, revocation)| (uid, &revocation.node, revocation.at))
    }

    /// A set of one.
    pub(crate) fn one(node: NodeName, uid: NodeUid, at: UnixTime) -> Self {
        Self([(uid, Revocation { node, at })].into())
    }

    /// Revokes what was issued for the Node until now.
    pub fn add(&mut self, node: &NodeName, uid: &NodeUid, now: UnixTime) {
        // Later than each one before, whatever the clock says.
        let at = now.max(self.last(uid) + Duration::from_secs(1));
        self.0.insert(
            uid.clone(),
            Revocation {
                node: node.clone(),
                at,
            },
        );
    }

    /// The merged set of both.
    pub(crate) fn merged(mut self, other: &Self) -> Self {
        for (uid, revocation) in &other.0 {
            if revocation.at > self.last(uid) {
                self.0.insert(uid.clone(), revocation.clone());
            }
        }
        self
    }

    /// The set without Nodes that were deleted long ago.
    pub(crate) fn pruned(
        mut self,
        is_there: impl Fn(&NodeName, &NodeUid) -> bool,
        now: UnixTime,
    ) -> Self {
        self.0.retain(|uid, revocation| {
            now.since(revocation.at) < RETENTION_WITHOUT_NODE || is_there(&revocation.node, uid)
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn uid(text: &str) -> NodeUid {
        text.parse().unwrap()
    }

    fn node() -> NodeName {
        "edge-1".parse().unwrap()
    }

    #[test]
    fn whoever_puts_sets_together_in_whichever_order_has_the_last_revocation_of_each_node() {
        let mut one = Revocations::default();
        let mut other = Revocations::default();
        one.add(&node(), &uid("a"), NOW);
        other.add(&node(), &uid("a"), NOW + DAY);
        other.add(&node(), &uid("b"), NOW);
        let both = one.clone().merged(&other);
        assert_eq!(both, other.merged(&one));
        assert_eq!(
            (both.last(&uid("a")), both.last(&uid("b"))),
            (NOW + DAY, NOW)
        );
        assert_eq!(both.last(&uid("c")), UnixTime::default());
    }

    #[test]
    fn a_revocation_is_later_than_the_one_before_whatever_the_clock_says() {
        let mut revocations = Revocations::default();
        let mut last = UnixTime::default();
        for now in [NOW, NOW, NOW.before(DAY)] {
            revocations.add(&node(), &uid("a"), now);
            assert!(revocations.last(&uid("a")) > last);
            last = revocations.last(&uid("a"));
        }
    }

    #[test]
    fn a_revocation_is_kept_as_long_as_its_node_and_a_week_without() {
        let mut revocations = Revocations::default();
        revocations.add(&node(), &uid("a"), NOW);
        let after =
            |days: u32, there: bool| revocations.clone().pruned(|_, _| there, NOW + days * DAY);
        assert_eq!(
            (after(1, false), after(4000, true)),
            (revocations.clone(), revocations.clone())
        );
        assert_eq!(after(8, false), Revocations::default());
    }
}
