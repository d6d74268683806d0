//! The nodes that were removed and the certificates that were seen, so that removing a node revokes
//! its certificates. Pure, except [`file`].

pub(super) mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use serde::{Deserialize, Serialize};

use crate::identity::{Credential, RENEWAL_GRACE, Serial};

/// Certificates of one node that are remembered individually: a node with as many has others of
/// its own. It bounds memory, and the line of a node on disk.
const MAX_PER_NODE: usize = 16;

/// Nodes that other proxies can add to a ledger: several times those that a directory has.
const MAX_NODES: usize = 100_000;
/// The year 9999. A later revocation is none: no further one could be later.
pub(super) const LATEST_REVOCATION: UnixTime = UnixTime::from_seconds(253_402_300_799);

/// The certificates of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ledger {
    nodes: BTreeMap<NodeName, Record>,
    /// The seconds for which proxies have run on this state. This time has certainly passed,
    /// whatever a wall clock says.
    #[serde(default)]
    served: u64,
    /// Nodes whose records on disk are older than these.
    #[serde(skip)]
    unwritten: BTreeSet<NodeName>,
}

/// A node's certificates. A certificate that names the revocation before it is void unless that is
/// the node's last one. Of the others, which an operator issued, those that end by `revoked_until`
/// are revoked unless they are in `valid`. So a removed node needs no list of all its certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    valid: BTreeMap<Serial, UnixTime>,
    revoked_until: Option<UnixTime>,
    /// The revocation by date is kept until proxies have run for this long. A clock that jumps
    /// ahead readmits no node.
    #[serde(default)]
    kept_until_served: u64,
    /// When the node was last removed. Never forgotten: a proxy that does not know it may have
    /// renewed a certificate since.
    #[serde(default)]
    revocation: UnixTime,
}

/// The ledger's verdict on a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertificateStatus {
    /// Issued or seen before, and not revoked.
    Known,
    /// Not seen before; nothing speaks against it.
    New,
    /// The node was removed since.
    Revoked,
}

impl Ledger {
    pub(super) fn status(&self, credential: &Credential) -> CertificateStatus {
        let Some(record) = self.nodes.get(&credential.node) else {
            return CertificateStatus::New;
        };
        match (&credential.binding, record.revoked_until) {
            (Some(binding), _) if binding.revocation < record.revocation => {
                CertificateStatus::Revoked
            }
            _ if record.valid.contains_key(&credential.serial) => CertificateStatus::Known,
            (None, Some(until)) if credential.not_after <= until => CertificateStatus::Revoked,
            _ => CertificateStatus::New,
        }
    }

    /// Whether the certificate was issued or seen before.
    pub(super) fn has(&self, credential: &Credential) -> bool {
        self.nodes
            .get(&credential.node)
            .is_some_and(|record| record.valid.contains_key(&credential.serial))
    }

    /// Whether any certificate of the node was issued or seen.
    pub(super) fn has_any(&self, node: &NodeName) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|record| !record.valid.is_empty())
    }

    /// When the node was last removed; 1970 if never.
    pub(super) fn revocation(&self, node: &NodeName) -> UnixTime {
        self.nodes
            .get(node)
            .map(|record| record.revocation)
            .unwrap_or_default()
    }

    /// The nodes that have noted certificates.
    pub(super) fn holders(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes
            .iter()
            .filter(|(_, record)| !record.valid.is_empty())
            .map(|(node, _)| node)
    }

    /// Records a certificate as the node's, and forgets what [`Self::prune`] would. Above the limit
    /// the oldest is forgotten, and revoked if an operator issued it.
    pub(super) fn record(&mut self, credential: &Credential, grace: Duration, now: UnixTime) {
        let served = self.served;
        self.unwritten.insert(credential.node.clone());
        let record = self.nodes.entry(credential.node.clone()).or_default();
        record.prune(grace, now, served);
        record
            .valid
            .insert(credential.serial.clone(), credential.not_after);
        while record.valid.len() > MAX_PER_NODE {
            let Some((oldest, expires)) = record.oldest_besides(&credential.serial) else {
                break;
            };
            record.valid.remove(&oldest);
            if credential.binding.is_none() {
                record.revoke_until(expires, now, served);
            }
        }
    }

    /// Revokes all certificates of the node that were issued before, and of those that an operator
    /// issued, those that end by `latest` or were noted.
    pub(super) fn revoke(&mut self, node: &NodeName, latest: UnixTime, now: UnixTime) {
        let served = self.served;
        self.unwritten.insert(node.clone());
        let record = self.nodes.entry(node.clone()).or_default();
        let noted = record.valid.values().copied().max();
        record.revoke_until(noted.max(Some(latest)).unwrap_or(latest), now, served);
        record.valid.clear();
        // A clock that was set back does not make a revocation void.
        record.revocation = now.max(record.revocation + Duration::from_secs(1));
    }

    /// When nodes were last removed, and until when what an operator issued for them is revoked.
    pub(super) fn revocations(&self) -> impl Iterator<Item = (&NodeName, UnixTime, UnixTime)> {
        self.nodes
            .iter()
            .filter(|(_, record)| record.revocation > UnixTime::default())
            .map(|(node, record)| {
                let until = record.revoked_until.unwrap_or_default();
                (node, record.revocation, until)
            })
    }

    /// Adds a removal that another proxy knows. Of two the later one holds, in whichever order they
    /// arrive. Returns whether it is new here.
    pub(super) fn merge(
        &mut self,
        node: &NodeName,
        (at, until): (UnixTime, UnixTime),
        now: UnixTime,
    ) -> bool {
        let is_full = self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(node);
        if at <= self.revocation(node) || at > LATEST_REVOCATION || is_full {
            return false;
        }
        let served = self.served;
        self.unwritten.insert(node.clone());
        let record = self.nodes.entry(node.clone()).or_default();
        let noted = record.valid.values().copied().max();
        record.revoke_until(
            noted.unwrap_or_default().max(until.min(LATEST_REVOCATION)),
            now,
            served,
        );
        record.valid.clear();
        record.revocation = at;
        true
    }

    /// The time for which proxies have run on this state.
    pub(super) fn served(&self) -> Duration {
        Duration::from_secs(self.served)
    }

    /// Adds time for which proxies have run on this state.
    pub(super) fn set_served(&mut self, served: Duration) {
        self.served = served.as_secs();
    }

    /// Forgets certificates that ended more than `grace` ago. If there is a revocation by date,
    /// nothing is forgotten: it would revoke a forgotten certificate.
    pub(super) fn prune(&mut self, grace: Duration, now: UnixTime) {
        for record in self.nodes.values_mut() {
            record.prune(grace, now, self.served);
        }
        self.nodes.retain(|_, record| *record != Record::default());
    }

    /// Whether the file lacks anything.
    pub(super) fn is_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// The nodes whose records have to be written; from now on they count as written.
    pub(super) fn take_unwritten(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.unwritten)
    }

    /// These records could not be written.
    pub(super) fn not_written(&mut self, nodes: BTreeSet<NodeName>) {
        self.unwritten.extend(nodes);
    }
}

impl Record {
    fn prune(&mut self, grace: Duration, now: UnixTime, served: u64) {
        if let Some(until) = self.revoked_until
            && served > self.kept_until_served
            && now.since(until) > RENEWAL_GRACE
        {
            self.revoked_until = None;
            self.kept_until_served = 0;
        }
        if self.revoked_until.is_none() {
            self.valid.retain(|_, expires| now.since(*expires) <= grace);
        }
    }

    /// The certificate that expires first, of all but this one.
    fn oldest_besides(&self, spared: &Serial) -> Option<(Serial, UnixTime)> {
        let others = self.valid.iter().filter(|(serial, _)| *serial != spared);
        let (serial, expires) = others.min_by_key(|(_, expires)| **expires)?;
        Some((serial.clone(), *expires))
    }

    fn revoke_until(&mut self, until: UnixTime, now: UnixTime, served: u64) {
        let kept = served.saturating_add(until.since(now).saturating_add(RENEWAL_GRACE).as_secs());
        self.kept_until_served = self.kept_until_served.max(kept);
        self.revoked_until = self.revoked_until.max(Some(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Binding;

    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn node() -> NodeName {
        "edge-1".parse().unwrap()
    }

    /// A certificate that an operator issued.
    fn ready(not_after: UnixTime) -> Credential {
        Credential {
            node: node(),
            serial: Serial::random(),
            not_before: NOW,
            not_after,
            binding: None,
        }
    }

    /// A certificate that a proxy issued after that revocation.
    fn made(revocation: UnixTime) -> Credential {
        Credential {
            binding: Some(Binding {
                uid: None,
                revocation,
            }),
            ..ready(NOW + 30 * DAY)
        }
    }

    #[test]
    fn removing_a_node_revokes_what_it_had_seen_or_not_and_a_new_certificate_is_good() {
        let mut ledger = Ledger::default();
        let old = ready(NOW + 40 * DAY);
        let unseen = ready(NOW + 20 * DAY);
        ledger.record(&old, RENEWAL_GRACE, NOW);
        ledger.revoke(&node(), NOW + 30 * DAY, NOW);
        assert_eq!(ledger.status(&old), CertificateStatus::Revoked);
        assert_eq!(ledger.status(&unseen), CertificateStatus::Revoked);
        // Issued right after the node came back, with a shorter lifetime than before.
        let new = ready(NOW + DAY);
        ledger.record(&new, RENEWAL_GRACE, NOW);
        assert_eq!(ledger.status(&new), CertificateStatus::Known);
        assert_eq!(ledger.status(&old), CertificateStatus::Revoked);
        let other = Credential {
            node: "edge-2".parse().unwrap(),
            ..old
        };
        assert_eq!(ledger.status(&other), CertificateStatus::New);
    }

    #[test]
    fn proxies_that_tell_each_other_end_with_the_later_removal_of_each_node() {
        let mut one = Ledger::default();
        let mut other = Ledger::default();
        one.revoke(&node(), NOW + DAY, NOW);
        other.revoke(&node(), NOW + 2 * DAY, NOW + 10 * DAY);
        let told = |ledger: &Ledger| -> Vec<_> {
            let all = ledger.revocations();
            all.map(|(node, at, until)| (node.clone(), at, until))
                .collect()
        };
        for (node, at, until) in told(&one) {
            assert!(!other.merge(&node, (at, until), NOW), "it has a later one");
        }
        for (node, at, until) in told(&other) {
            assert!(one.merge(&node, (at, until), NOW));
            assert!(!one.merge(&node, (at, until), NOW), "it knows it now");
        }
        assert_eq!(one.revocation(&node()), NOW + 10 * DAY);
    }

    #[test]
    fn a_removal_at_another_proxy_voids_what_was_seen_here_and_nothing_that_came_after_it() {
        let mut ledger = Ledger::default();
        let seen = made(UnixTime::default());
        let issued = ready(NOW + 40 * DAY);
        ledger.record(&seen, RENEWAL_GRACE, NOW);
        ledger.record(&issued, RENEWAL_GRACE, NOW);
        assert!(ledger.merge(&node(), (NOW + DAY, NOW + DAY), NOW));
        assert_eq!(ledger.status(&seen), CertificateStatus::Revoked);
        assert_eq!(ledger.status(&issued), CertificateStatus::Revoked);
        assert_eq!(
            ledger.status(&made(NOW + DAY)),
            CertificateStatus::New,
            "by the clock of the proxy that removed the node"
        );
    }

    #[test]
    fn a_removal_in_a_year_that_never_comes_is_none_and_a_ledger_grows_to_a_limit() {
        let mut ledger = Ledger::default();
        let forever = UnixTime::from_seconds(u64::MAX);
        assert!(!ledger.merge(&node(), (forever, forever), NOW));
        assert!(ledger.merge(&node(), (LATEST_REVOCATION, forever), NOW));
        for number in 0..MAX_NODES {
            let other = format!("other-{number}").parse().unwrap();
            ledger.merge(&other, (NOW, NOW), NOW);
        }
        assert_eq!(ledger.nodes.len(), MAX_NODES);
        assert!(!ledger.merge(&"one-more".parse().unwrap(), (NOW, NOW), NOW));
    }

    #[test]
    fn a_certificate_of_before_the_removal_is_void_however_often_and_wherever_it_was_renewed() {
        let mut ledger = Ledger::default();
        let never_removed = UnixTime::default();
        ledger.record(&made(never_removed), RENEWAL_GRACE, NOW);
        ledger.revoke(&node(), NOW + 30 * DAY, NOW);
        let renewed_elsewhere = Credential {
            not_after: NOW + 400 * DAY,
            ..made(never_removed)
        };
        assert_eq!(
            ledger.status(&renewed_elsewhere),
            CertificateStatus::Revoked
        );
        assert_eq!(
            ledger.status(&made(ledger.revocation(&node()))),
            CertificateStatus::New
        );
        // Neither time nor a clock that was set back removes the revocation.
        ledger.set_served(1000 * DAY);
        ledger.prune(RENEWAL_GRACE, NOW + 1000 * DAY);
        assert_eq!(
            ledger.status(&renewed_elsewhere),
            CertificateStatus::Revoked
        );
        let before = ledger.revocation(&node());
        ledger.revoke(&node(), NOW, NOW.before(DAY));
        assert!(ledger.revocation(&node()) > before);
    }

    #[test]
    fn a_node_that_renews_without_end_loses_its_oldest_certificates() {
        let mut ledger = Ledger::default();
        let first = ready(NOW);
        ledger.record(&first, RENEWAL_GRACE, NOW);
        for day in 1..=MAX_PER_NODE as u32 {
            ledger.record(&ready(NOW + day * DAY), RENEWAL_GRACE, NOW);
        }
        assert_eq!(ledger.status(&first), CertificateStatus::Revoked);
        assert_eq!(ledger.nodes[&node()].valid.len(), MAX_PER_NODE);
    }

    #[test]
    fn a_flood_of_renewals_revokes_nothing_that_a_proxy_made() {
        let mut ledger = Ledger::default();
        let first = made(UnixTime::default());
        ledger.record(&first, RENEWAL_GRACE, NOW);
        for _ in 0..200 {
            ledger.record(&made(UnixTime::default()), RENEWAL_GRACE, NOW);
        }
        assert_eq!(ledger.nodes[&node()].valid.len(), MAX_PER_NODE);
        assert_ne!(ledger.status(&first), CertificateStatus::Revoked);
        ledger.prune(DAY, NOW + 40 * DAY);
        assert!(ledger.nodes.is_empty(), "what has ended is forgotten");
    }

    #[test]
    fn a_revocation_by_date_is_kept_until_the_certificates_could_not_be_renewed() {
        let mut ledger = Ledger::default();
        let old = ready(NOW);
        ledger.record(&old, RENEWAL_GRACE, NOW);
        ledger.revoke(&node(), NOW, NOW);
        ledger.set_served(RENEWAL_GRACE);
        ledger.prune(RENEWAL_GRACE, NOW + RENEWAL_GRACE);
        assert_eq!(ledger.status(&old), CertificateStatus::Revoked);
        let over = RENEWAL_GRACE + DAY;
        ledger.set_served(over);
        ledger.prune(RENEWAL_GRACE, NOW + over);
        assert_eq!(ledger.status(&old), CertificateStatus::New);
    }

    #[test]
    fn a_clock_that_jumps_ahead_and_returns_readmits_nobody_and_locks_nobody_out() {
        let mut ledger = Ledger::default();
        let old = ready(NOW + 30 * DAY);
        let new = ready(NOW + 20 * DAY);
        ledger.record(&old, RENEWAL_GRACE, NOW);
        ledger.revoke(&node(), NOW + 30 * DAY, NOW);
        // The node is back, with a certificate that ends before the revoked ones.
        ledger.record(&new, RENEWAL_GRACE, NOW);
        ledger.set_served(DAY);
        for days in [120, 4000, 1] {
            ledger.prune(RENEWAL_GRACE, NOW + days * DAY);
            assert_eq!(
                ledger.status(&old),
                CertificateStatus::Revoked,
                "after {days} days"
            );
            assert_eq!(
                ledger.status(&new),
                CertificateStatus::Known,
                "after {days} days"
            );
        }
    }
}
