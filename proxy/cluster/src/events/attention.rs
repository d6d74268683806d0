//! Finds the conditions in the directory that need an Event. They must last for a while, so that an
//! agent that reconnects or a node that moves causes none. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use culvert_api::{NodeName, Routing};
use culvert_proxy_core::directory::{Event, LeftOut, NodeView, Source};

use super::occurrence::Occurrence;

/// A condition that lasts longer than this is reported. An agent that lost its tunnels retries every
/// 2 s for a minute.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// The current conditions of each node, with their start.
#[derive(Debug, Default)]
pub(super) struct Attention {
    nodes: BTreeMap<NodeName, Vec<OngoingCondition>>,
    left_out: BTreeSet<LeftOut>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Offline,
    Claimed(Destination),
    Refused(Destination),
}

/// What a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    Address(IpAddr),
    Behind(SocketAddr),
}

#[derive(Debug)]
struct OngoingCondition {
    condition: Condition,
    since: Instant,
    /// The owners of the address, in words; empty for a node that is offline.
    owners: String,
    report: ReportState,
}

impl OngoingCondition {
    fn is(&self, condition: Condition) -> bool {
        self.condition == condition
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportState {
    Unreported,
    Reported,
}

impl Attention {
    /// Takes the present state of the directory. Returns the occurrences to report immediately.
    pub(super) fn see(&mut self, event: &Event, now: Instant) -> Vec<Occurrence> {
        let changed = match event {
            Event::Snapshot { nodes, .. } => {
                let there: BTreeSet<&NodeName> = nodes.iter().map(|node| &node.name).collect();
                self.nodes.retain(|name, _| there.contains(name));
                nodes
            }
            Event::Change(change) => {
                for name in &change.removed {
                    self.nodes.remove(name);
                }
                &change.changed
            }
        };
        let mut occurrences = Vec::new();
        for node in changed {
            occurrences.extend(self.node(node, now));
        }
        occurrences
    }

    /// The parts of Nodes that are left out and were not reported yet.
    pub(super) fn left_out(&mut self, now: BTreeSet<LeftOut>) -> Vec<Occurrence> {
        let news = now
            .difference(&self.left_out)
            .map(|left| Occurrence::left_out(&left.node, &left.reason))
            .collect();
        self.left_out = now;
        news
    }

    /// The conditions that have lasted for the grace period and were not reported yet.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Occurrence> {
        let mut due = Vec::new();
        for (name, standings) in &mut self.nodes {
            for standing in standings {
                if standing.report == ReportState::Reported
                    || now.duration_since(standing.since) < GRACE
                {
                    continue;
                }
                standing.report = ReportState::Reported;
                due.push(match standing.condition {
                    Condition::Offline => Occurrence::offline(name),
                    Condition::Claimed(_) => Occurrence::claimed_twice(name, &standing.owners),
                    Condition::Refused(_) => Occurrence::left_out(name, &standing.owners),
                });
            }
        }
        due
    }

    /// The return of a node that was reported as offline is reported immediately. A node that is
    /// not in the cluster has no Events.
    fn node(&mut self, node: &NodeView, now: Instant) -> Option<Occurrence> {
        if node.source != Source::Cluster {
            return None;
        }
        let wrong = wrong(node);
        let ongoing = self.nodes.entry(node.name.clone()).or_default();
        let was_offline = ongoing.iter().any(|condition| {
            condition.is(Condition::Offline) && condition.report == ReportState::Reported
        });
        ongoing.retain(|ongoing| wrong.contains_key(&ongoing.condition));
        for (condition, owners) in wrong {
            let owners = owners.to_owned();
            match ongoing.iter_mut().find(|ongoing| ongoing.is(condition)) {
                Some(ongoing) => ongoing.owners = owners,
                None => ongoing.push(OngoingCondition {
                    condition,
                    since: now,
                    owners,
                    report: ReportState::Unreported,
                }),
            }
        }
        if was_offline && node.online {
            Some(Occurrence::online(&node.name))
        } else {
            None
        }
    }
}

/// The conditions that hold now, with the reason of each.
fn wrong(node: &NodeView) -> BTreeMap<Condition, &str> {
    let mut wrong = BTreeMap::new();
    for (destination, routing, reason) in destinations(node) {
        if let Some(condition) = condition(destination, routing) {
            wrong.insert(condition, reason);
        }
    }
    if !node.online {
        wrong.insert(Condition::Offline, "");
    }
    wrong
}

/// All that the node has, with what is done with it, and why.
fn destinations(node: &NodeView) -> impl Iterator<Item = (Destination, Routing, &str)> {
    let addresses = node.addresses.iter();
    let addresses =
        addresses.map(|view| (Destination::Address(view.ip), view.routing, &*view.reason));
    let behind = node.behind.iter();
    let behind = behind.map(|view| {
        (
            Destination::Behind(view.destination),
            view.routing,
            &*view.reason,
        )
    });
    addresses.chain(behind)
}

fn condition(place: Destination, routing: Routing) -> Option<Condition> {
    match routing {
        Routing::Routed => None,
        Routing::Shared => Some(Condition::Claimed(place)),
        Routing::Protected => Some(Condition::Refused(place)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use culvert_proxy_core::directory::{AddressView, BehindView, Change};

    use super::super::occurrence::Reason;
    use super::*;

    fn node(name: &str, online: bool, shared_with: &str) -> NodeView {
        let routing = if shared_with.is_empty() {
            Routing::Routed
        } else {
            Routing::Shared
        };
        let reason = if shared_with.is_empty() {
            String::new()
        } else {
            format!("of {name} and {shared_with}")
        };
        NodeView {
            name: name.parse().unwrap(),
            addresses: vec![AddressView {
                ip: "192.168.1.10".parse().unwrap(),
                routing,
                reason,
            }],
            vip4: "198.18.0.1".parse().unwrap(),
            vip6: "fd00::1".parse().unwrap(),
            ports: vec![9100],
            online,
            source: Source::Cluster,
            zone: None,
            behind: Vec::new(),
        }
    }

    fn changed(nodes: &[NodeView]) -> Event {
        Event::Change(Arc::new(Change {
            revision: 1,
            changed: nodes.to_vec(),
            removed: Vec::new(),
            clouds: None,
        }))
    }

    fn reasons(occurrences: &[Occurrence]) -> Vec<Reason> {
        occurrences
            .iter()
            .map(|occurrence| occurrence.reason)
            .collect()
    }

    #[test]
    fn a_destination_that_two_nodes_have_behind_them_is_an_event_of_both() {
        let mut attention = Attention::default();
        let start = Instant::now();
        let claimed = |name: &str| NodeView {
            behind: vec![BehindView {
                destination: "192.168.1.20:502".parse().unwrap(),
                routing: Routing::Shared,
                reason: "192.168.1.20:502 belongs to edge-1 and edge-2".into(),
            }],
            ..node(name, true, "")
        };
        attention.see(&changed(&[claimed("edge-1"), claimed("edge-2")]), start);
        let due = attention.due(start + GRACE);
        assert_eq!(reasons(&due), [Reason::AddressClaimedTwice; 2]);
        assert!(due[0].note.contains("192.168.1.20:502 belongs to"));
    }

    #[test]
    fn a_node_that_stays_away_is_told_once_and_its_return_at_once() {
        let mut attention = Attention::default();
        let start = Instant::now();
        assert_eq!(
            attention.see(&changed(&[node("edge-1", false, "")]), start),
            []
        );
        assert_eq!(attention.due(start + GRACE - Duration::from_secs(1)), []);
        assert_eq!(
            reasons(&attention.due(start + GRACE)),
            [Reason::EdgeOffline]
        );
        assert_eq!(attention.due(start + GRACE * 2), []);
        let back = attention.see(&changed(&[node("edge-1", true, "")]), start + GRACE * 3);
        assert_eq!(reasons(&back), [Reason::EdgeOnline]);
        assert_eq!(
            attention.see(&changed(&[node("edge-1", true, "")]), start + GRACE * 3),
            []
        );
    }

    #[test]
    fn a_reconnect_is_not_told() {
        let mut attention = Attention::default();
        let start = Instant::now();
        for cycle in 0..10 {
            let now = start + GRACE / 2 * cycle;
            assert_eq!(
                attention.see(&changed(&[node("edge-1", cycle % 2 == 0, "")]), now),
                []
            );
            assert_eq!(attention.due(now), []);
        }
    }

    #[test]
    fn an_address_of_two_is_told_for_both_once_however_its_owners_change() {
        let mut attention = Attention::default();
        let start = Instant::now();
        attention.see(
            &changed(&[
                node("edge-2", true, "edge-3"),
                node("edge-3", true, "edge-2"),
            ]),
            start,
        );
        let due = attention.due(start + GRACE);
        assert_eq!(reasons(&due), [Reason::AddressClaimedTwice; 2]);
        assert_eq!(due[0].note, "of edge-2 and edge-3");
        attention.see(
            &changed(&[node("edge-2", true, "edge-3 and edge-4")]),
            start + GRACE,
        );
        assert_eq!(attention.due(start + GRACE * 3), []);
        attention.see(&changed(&[node("edge-2", true, "")]), start + GRACE * 4);
        attention.see(
            &changed(&[node("edge-2", true, "edge-5")]),
            start + GRACE * 5,
        );
        assert_eq!(
            attention.due(start + GRACE * 6).len(),
            1,
            "it was well in between"
        );
    }

    #[test]
    fn an_address_that_is_not_steered_and_a_part_left_out_are_told_once() {
        let mut attention = Attention::default();
        let start = Instant::now();
        let mut claiming = node("edge-7", true, "");
        claiming.addresses[0].routing = Routing::Protected;
        claiming.addresses[0].reason = "10.96.0.1 of edge-7 is also a Service's".to_owned();
        attention.see(&changed(&[claiming]), start);
        let due = attention.due(start + GRACE);
        assert_eq!(
            (reasons(&due), due[0].note.contains("10.96.0.1")),
            (vec![Reason::ClaimRefused], true)
        );
        let left = LeftOut {
            node: "worker".parse().unwrap(),
            reason: "its address".to_owned(),
        };
        let reported: Vec<usize> = (0..2)
            .map(|_| attention.left_out([left.clone()].into()).len())
            .collect();
        assert_eq!(reported, [1, 0]);
        attention.left_out(BTreeSet::new());
        assert_eq!(
            reasons(&attention.left_out([left].into())),
            [Reason::ClaimRefused]
        );
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut attention = Attention::default();
        let start = Instant::now();
        attention.see(
            &changed(&[node("edge-1", false, ""), node("edge-2", false, "")]),
            start,
        );
        let removed = Change {
            revision: 2,
            changed: Vec::new(),
            removed: vec!["edge-1".parse().unwrap()],
            clouds: None,
        };
        attention.see(&Event::Change(Arc::new(removed)), start);
        let ranges = culvert_proxy_core::directory::VipRanges::checked(
            "198.18.0.0/15".parse().unwrap(),
            "fd00::/64".parse().unwrap(),
            &[],
        );
        attention.see(
            &Event::Snapshot {
                revision: 3,
                ranges: ranges.unwrap(),
                nodes: Vec::new(),
                clouds: Default::default(),
            },
            start,
        );
        assert_eq!(attention.due(start + GRACE), []);
    }
}
