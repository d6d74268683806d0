//! Which certificates nodes were given, so that removing a node revokes them. Pure.

use std::collections::BTreeMap;

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
}

/// A node's certificates. Those that end by `revoked_until` are revoked unless they are in `valid`: so a removed node needs no
/// list of all that it ever had, and certificates that another proxy gave it are covered too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    valid: BTreeMap<Serial, UnixTime>,
    revoked_until: Option<UnixTime>,
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
    pub(super) fn note(&mut self, node: &NodeName, serial: Serial, expires: UnixTime, in_use: Option<&Serial>) {
        let record = self.nodes.entry(node.clone()).or_default();
        record.valid.insert(serial.clone(), expires);
        while record.valid.len() > MAX_PER_NODE {
            let spare = record.valid.iter().filter(|(other, _)| **other != serial && Some(*other) != in_use);
            let oldest = spare.min_by_key(|(_, expires)| **expires);
            let Some((oldest, expires)) = oldest.map(|(serial, expires)| (serial.clone(), *expires)) else { break };
            record.valid.remove(&oldest);
            record.revoked_until = record.revoked_until.max(Some(expires));
        }
    }

    /// Revokes all certificates of the node that end by `latest` or were noted.
    pub(super) fn revoke(&mut self, node: &NodeName, latest: UnixTime) {
        let record = self.nodes.entry(node.clone()).or_default();
        let noted = record.valid.values().copied().max();
        record.revoked_until = record.revoked_until.max(noted).max(Some(latest));
        record.valid.clear();
    }

    /// Forgets what could not even be renewed any more.
    pub(super) fn prune(&mut self, now: UnixTime) {
        let over = |expires: UnixTime| now.since(expires) > RENEWAL_GRACE;
        for record in self.nodes.values_mut() {
            record.valid.retain(|_, expires| !over(*expires));
            record.revoked_until = record.revoked_until.filter(|until| !over(*until));
        }
        self.nodes.retain(|_, record| *record != Record::default());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn node() -> NodeName {
        "edge-1".parse().unwrap()
    }

    #[test]
    fn removing_a_node_revokes_what_it_had_seen_or_not_and_a_new_certificate_is_good() {
        let (mut ledger, old, unseen, new) = (Ledger::default(), Serial::random(), Serial::random(), Serial::random());
        ledger.note(&node(), old.clone(), NOW + 40 * DAY, None);
        ledger.revoke(&node(), NOW + 30 * DAY);
        assert_eq!(ledger.standing(&node(), &old, NOW + 40 * DAY), Standing::Revoked);
        assert_eq!(ledger.standing(&node(), &unseen, NOW + 20 * DAY), Standing::Revoked);
        // Made right after the node came back, with a shorter lifetime than before.
        ledger.note(&node(), new.clone(), NOW + DAY, None);
        assert_eq!(ledger.standing(&node(), &new, NOW + DAY), Standing::Known);
        assert_eq!(ledger.standing(&node(), &old, NOW + 40 * DAY), Standing::Revoked);
        assert_eq!(ledger.standing(&"edge-2".parse().unwrap(), &old, NOW), Standing::New);
    }

    #[test]
    fn a_node_that_renews_without_end_loses_its_oldest_certificates() {
        let (mut ledger, first) = (Ledger::default(), Serial::random());
        ledger.note(&node(), first.clone(), NOW, None);
        for day in 1..=64 {
            ledger.note(&node(), Serial::random(), NOW + day * DAY, None);
        }
        assert_eq!(ledger.standing(&node(), &first, NOW), Standing::Revoked);
        assert_eq!(ledger.nodes[&node()].valid.len(), MAX_PER_NODE);
    }

    #[test]
    fn a_node_that_never_gets_its_answers_keeps_the_certificate_that_it_has() {
        let (mut ledger, in_use) = (Ledger::default(), Serial::random());
        ledger.note(&node(), in_use.clone(), NOW, None);
        for day in 1..=200 {
            ledger.note(&node(), Serial::random(), NOW + day * DAY, Some(&in_use));
        }
        assert_eq!(ledger.standing(&node(), &in_use, NOW), Standing::Known);
        assert_eq!(ledger.nodes[&node()].valid.len(), MAX_PER_NODE);
    }

    #[test]
    fn a_revocation_is_kept_until_the_certificates_could_not_be_renewed() {
        let (mut ledger, old) = (Ledger::default(), Serial::random());
        ledger.note(&node(), old.clone(), NOW, None);
        ledger.revoke(&node(), NOW);
        ledger.prune(NOW + RENEWAL_GRACE);
        assert_eq!(ledger.standing(&node(), &old, NOW), Standing::Revoked);
        ledger.prune(NOW + RENEWAL_GRACE + DAY);
        assert_eq!(ledger, Ledger::default());
    }
}
