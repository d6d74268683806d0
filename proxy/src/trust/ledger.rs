//! Which certificates nodes were given, so that removing a node revokes them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_tunnel::NodeName;
use serde::{Deserialize, Serialize};

use crate::clock::UnixTime;
use crate::identity::{RENEWAL_GRACE, Serial};

/// Certificates of one node that are remembered one by one; a node renews long before it has as many.
const MAX_PER_NODE: usize = 64;

/// The certificates of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ledger {
    nodes: BTreeMap<NodeName, Record>,
    /// Seconds for which proxies have run on this state: time that has passed for certain, whatever a wall clock says.
    #[serde(default)]
    served: u64,
}

/// A node's certificates. Those that end by `revoked_until` are revoked unless they are in `valid`: so a removed node needs no
/// list of all that it ever had, and certificates that another proxy gave it are covered too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    valid: BTreeMap<Serial, UnixTime>,
    revoked_until: Option<UnixTime>,
    /// The revocation is not forgotten before proxies have run for so long. A clock that jumps ahead readmits nobody.
    #[serde(default)]
    kept_until_served: u64,
}

/// What the ledger says of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Given or seen before, and not revoked.
    Known,
    /// Not seen before; nothing speaks against it.
    New,
    /// The node was removed since.
    Revoked,
}

impl Ledger {
    pub(super) fn standing(&self, node: &NodeName, serial: &Serial, expires: UnixTime) -> Standing {
        let Some(record) = self.nodes.get(node) else { return Standing::New };
        match record.revoked_until {
            _ if record.valid.contains_key(serial) => Standing::Known,
            Some(until) if expires <= until => Standing::Revoked,
            _ => Standing::New,
        }
    }

    /// Notes a certificate as the node's. The oldest of too many is revoked, but never the one `in_use`, that was shown to get this
    /// one: an agent whose answers get lost goes on with it.
    pub(super) fn note(
        &mut self,
        node: &NodeName,
        (serial, expires): (Serial, UnixTime),
        in_use: Option<&Serial>,
        now: UnixTime,
    ) {
        let served = self.served;
        let record = self.nodes.entry(node.clone()).or_default();
        record.valid.insert(serial.clone(), expires);
        while record.valid.len() > MAX_PER_NODE {
            let spare = record.valid.iter().filter(|(other, _)| **other != serial && Some(*other) != in_use);
            let oldest = spare.min_by_key(|(_, expires)| **expires);
            let Some((oldest, expires)) = oldest.map(|(serial, expires)| (serial.clone(), *expires)) else { break };
            record.valid.remove(&oldest);
            record.revoke_until(expires, now, served);
        }
    }

    /// Revokes all certificates of the node that end by `latest` or were noted.
    pub(super) fn revoke(&mut self, node: &NodeName, latest: UnixTime, now: UnixTime) {
        let served = self.served;
        let record = self.nodes.entry(node.clone()).or_default();
        let noted = record.valid.values().copied().max();
        record.revoke_until(noted.max(Some(latest)).unwrap_or(latest), now, served);
        record.valid.clear();
    }

    /// How long proxies have run on this state.
    pub(super) fn served(&self) -> Duration {
        Duration::from_secs(self.served)
    }

    /// Proxies have run on this state for so long.
    pub(super) fn set_served(&mut self, served: Duration) {
        self.served = served.as_secs();
    }

    /// Forgets what could not even be renewed any more. Beside a revocation nothing is forgotten: a certificate that is not known
    /// any more would be revoked by it.
    pub(super) fn prune(&mut self, now: UnixTime) {
        let over = |expires: UnixTime| now.since(expires) > RENEWAL_GRACE;
        for record in self.nodes.values_mut() {
            let served = self.served > record.kept_until_served;
            if record.revoked_until.is_some_and(|until| served && over(until)) {
                (record.revoked_until, record.kept_until_served) = (None, 0);
            }
            if record.revoked_until.is_none() {
                record.valid.retain(|_, expires| !over(*expires));
            }
        }
        self.nodes.retain(|_, record| *record != Record::default());
    }
}

impl Record {
    fn revoke_until(&mut self, until: UnixTime, now: UnixTime, served: u64) {
        let kept = served.saturating_add(until.since(now).saturating_add(RENEWAL_GRACE).as_secs());
        self.kept_until_served = self.kept_until_served.max(kept);
        self.revoked_until = self.revoked_until.max(Some(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn node() -> NodeName {
        "edge-1".parse().unwrap()
    }

    #[test]
    fn removing_a_node_revokes_what_it_had_seen_or_not_and_a_new_certificate_is_good() {
        let (mut ledger, old, unseen, new) = (Ledger::default(), Serial::random(), Serial::random(), Serial::random());
        ledger.note(&node(), (old.clone(), NOW + 40 * DAY), None, NOW);
        ledger.revoke(&node(), NOW + 30 * DAY, NOW);
        assert_eq!(ledger.standing(&node(), &old, NOW + 40 * DAY), Standing::Revoked);
        assert_eq!(ledger.standing(&node(), &unseen, NOW + 20 * DAY), Standing::Revoked);
        // Made right after the node came back, with a shorter lifetime than before.
        ledger.note(&node(), (new.clone(), NOW + DAY), None, NOW);
        assert_eq!(ledger.standing(&node(), &new, NOW + DAY), Standing::Known);
        assert_eq!(ledger.standing(&node(), &old, NOW + 40 * DAY), Standing::Revoked);
        assert_eq!(ledger.standing(&"edge-2".parse().unwrap(), &old, NOW), Standing::New);
    }

    #[test]
    fn a_node_that_renews_without_end_loses_its_oldest_certificates() {
        let (mut ledger, first) = (Ledger::default(), Serial::random());
        ledger.note(&node(), (first.clone(), NOW), None, NOW);
        for day in 1..=64 {
            ledger.note(&node(), (Serial::random(), NOW + day * DAY), None, NOW);
        }
        assert_eq!(ledger.standing(&node(), &first, NOW), Standing::Revoked);
        assert_eq!(ledger.nodes[&node()].valid.len(), MAX_PER_NODE);
    }

    #[test]
    fn a_node_that_never_gets_its_answers_keeps_the_certificate_that_it_has() {
        let (mut ledger, in_use) = (Ledger::default(), Serial::random());
        ledger.note(&node(), (in_use.clone(), NOW), None, NOW);
        for day in 1..=200 {
            ledger.note(&node(), (Serial::random(), NOW + day * DAY), Some(&in_use), NOW);
        }
        assert_eq!(ledger.standing(&node(), &in_use, NOW), Standing::Known);
        assert_eq!(ledger.nodes[&node()].valid.len(), MAX_PER_NODE);
    }

    #[test]
    fn a_revocation_is_kept_until_the_certificates_could_not_be_renewed() {
        let (mut ledger, old) = (Ledger::default(), Serial::random());
        ledger.note(&node(), (old.clone(), NOW), None, NOW);
        ledger.revoke(&node(), NOW, NOW);
        ledger.set_served(RENEWAL_GRACE);
        ledger.prune(NOW + RENEWAL_GRACE);
        assert_eq!(ledger.standing(&node(), &old, NOW), Standing::Revoked);
        let over = RENEWAL_GRACE + DAY;
        ledger.set_served(over);
        ledger.prune(NOW + over);
        assert_eq!(ledger, Ledger { served: over.as_secs(), ..Ledger::default() });
    }

    #[test]
    fn a_clock_that_jumps_ahead_and_returns_readmits_nobody_and_locks_nobody_out() {
        let (mut ledger, old, new) = (Ledger::default(), Serial::random(), Serial::random());
        ledger.note(&node(), (old.clone(), NOW + 30 * DAY), None, NOW);
        ledger.revoke(&node(), NOW + 30 * DAY, NOW);
        // The node is back, with a certificate that ends before those that were revoked.
        ledger.note(&node(), (new.clone(), NOW + 20 * DAY), None, NOW);
        ledger.set_served(DAY);
        for days in [120, 4000, 1] {
            ledger.prune(NOW + days * DAY);
            assert_eq!(ledger.standing(&node(), &old, NOW + 30 * DAY), Standing::Revoked, "after {days} days");
            assert_eq!(ledger.standing(&node(), &new, NOW + 20 * DAY), Standing::Known, "after {days} days");
        }
    }
}
