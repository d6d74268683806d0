//! The ports of the Service of name-routed ports: which there should be, and what they mean. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The most own ports: each is a listening socket, which is handed over to the next proxy. These
/// take half of the sockets of a hand-over.
const MAX_PORTS: u16 = 64;

/// A value of `--name-ports`: the proxy's own ports that the Service may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPorts {
    first: u16,
    last: u16,
}

/// A text that is no range of ports.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: write FIRST-LAST, such as 7450-7489, at most {MAX_PORTS} ports from 1 to 65535")]
pub struct InvalidPorts(String);

impl FromStr for OwnPorts {
    type Err = InvalidPorts;

    fn from_str(text: &str) -> Result<Self, InvalidPorts> {
        parse(text).ok_or_else(|| InvalidPorts(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<OwnPorts> {
    let (first, last) = text.split_once('-')?;
    let first = first.parse().ok()?;
    let last = last.parse().ok()?;
    if !(1..=last).contains(&first) || last - first >= MAX_PORTS {
        return None;
    }
    Some(OwnPorts { first, last })
}

impl OwnPorts {
    /// All of them.
    pub fn all(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }

    /// Whether it is one.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// A port that is not used: the first one after all that are, so that a port that was given up
    /// does not soon lead to another one.
    fn free(self, used: &BTreeSet<u16>) -> Option<u16> {
        let highest = used.iter().rev().find(|port| self.contains(**port));
        let after = highest.map_or(self.first, |port| port.saturating_add(1));
        (after..=self.last)
            .chain(self.first..after)
            .find(|port| !used.contains(port))
    }
}

/// The Service's ports as they should be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NeededPorts {
    pub(super) entries: Vec<ServicePort>,
    /// Ports for which there is no room.
    pub(super) left_out: Vec<u16>,
}

/// What the entries mean: for each own port of the proxy, the port of the nodes.
pub(super) fn meaning(entries: &[ServicePort], own: OwnPorts) -> BTreeMap<u16, u16> {
    let mut meaning = BTreeMap::new();
    for entry in entries {
        if !is_tcp(entry) {
            continue;
        }
        if let Some(target) = target_of(entry, own)
            && let Ok(port) = u16::try_from(entry.port)
        {
            // If two entries have one target, the first one counts.
            meaning.entry(target).or_insert(port);
        }
    }
    meaning
}

/// Brings the entries in step with `ports`: each gets an entry `p-PORT` with an own port of the
/// proxy. Entries of other names stay as they are, and so do those that are right already.
pub(super) fn needed(before: &[ServicePort], ports: &BTreeSet<u16>, own: OwnPorts) -> NeededPorts {
    let mut used = BTreeSet::new();
    let mut entries: Vec<ServicePort> = Vec::new();
    for entry in before {
        let is_right = match own_entry(entry) {
            None => true,
            Some(port) => match target_of(entry, own) {
                Some(target) => ports.contains(&port) && !used.contains(&target),
                None => false,
            },
        };
        if is_right {
            used.extend(target(entry));
            entries.push(entry.clone());
        }
    }
    let mut left_out = Vec::new();
    for port in ports {
        if entries.iter().any(|entry| is_for(entry, *port)) {
            continue;
        }
        match own.free(&used) {
            Some(target) => {
                used.insert(target);
                entries.push(made(*port, target));
            }
            None => left_out.push(*port),
        }
    }
    // A Service has at least one port.
    if entries.is_empty() {
        entries = before.to_vec();
    }
    NeededPorts { entries, left_out }
}

/// The entry's target, if it is one of the proxy's own ports.
fn target_of(entry: &ServicePort, own: OwnPorts) -> Option<u16> {
    let target = target(entry)?;
    if own.contains(target) {
        Some(target)
    } else {
        None
    }
}

fn is_for(entry: &ServicePort, port: u16) -> bool {
    is_tcp(entry) && entry.port == i32::from(port) || entry.name.as_ref() == Some(&name(port))
}

fn name(port: u16) -> String {
    format!("p-{port}")
}

/// The port of an entry that a proxy keeps; the entry's name says so.
fn own_entry(entry: &ServicePort) -> Option<u16> {
    let port = u16::try_from(entry.port).ok()?;
    (entry.name.as_deref() == Some(&name(port)) && is_tcp(entry)).then_some(port)
}

fn is_tcp(entry: &ServicePort) -> bool {
    entry.protocol.as_deref().unwrap_or("TCP") == "TCP"
}

/// Without a target it is the port itself.
fn target(entry: &ServicePort) -> Option<u16> {
    match &entry.target_port {
        Some(IntOrString::Int(target)) => u16::try_from(*target).ok(),
        Some(IntOrString::String(_)) => None,
        None => u16::try_from(entry.port).ok(),
    }
}

fn made(port: u16, target: u16) -> ServicePort {
    ServicePort {
        name: Some(name(port)),
        port: port.into(),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(target.into())),
        ..ServicePort::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> OwnPorts {
        "7450-7452".parse().unwrap()
    }

    fn ports<const N: usize>(ports: [u16; N]) -> BTreeSet<u16> {
        ports.into()
    }

    fn step(before: &[ServicePort], wanted_ports: BTreeSet<u16>) -> Vec<ServicePort> {
        needed(before, &wanted_ports, own()).entries
    }

    #[test]
    fn each_port_has_an_own_port_and_keeps_it() {
        let first = step(&[], ports([9100, 10250]));
        assert_eq!(meaning(&first, own()), [(7450, 9100), (7451, 10250)].into());
        assert_eq!(step(&first, ports([9100, 10250])), first, "in step");
        let more = step(&first, ports([9099, 9100, 10250]));
        assert_eq!(
            meaning(&more, own()),
            [(7450, 9100), (7451, 10250), (7452, 9099)].into()
        );
        let less = step(&more, ports([10250]));
        assert_eq!(meaning(&less, own()), [(7451, 10250)].into());
        assert_eq!(
            meaning(&step(&less, ports([80, 10250])), own()),
            [(7451, 10250), (7452, 80)].into(),
            "not the one that stood for 9100 a moment ago"
        );
    }

    #[test]
    fn entries_of_others_stay_and_keep_their_ports() {
        let mut foreign = made(9100, 7450);
        foreign.name = Some("exporters".into());
        let udp = ServicePort {
            protocol: Some("UDP".into()),
            ..made(10250, 7451)
        };
        let before = [foreign.clone(), udp.clone()];
        let after = step(&before, ports([9100, 10250]));
        assert_eq!(after[..2], before);
        assert_eq!(
            meaning(&after, own()),
            [(7450, 9100)].into(),
            "p-10250 is the name of an entry already"
        );
        assert_eq!(step(&before, ports([])), before);
    }

    #[test]
    fn what_has_no_room_is_told() {
        let wanted = needed(&[], &ports([1, 2, 3, 4, 5]), own());
        assert_eq!((wanted.entries.len(), wanted.left_out), (3, vec![4, 5]));
    }

    #[test]
    fn an_entry_outside_of_the_own_ports_is_made_anew() {
        let entries = step(&[made(9100, 9100), made(10250, 7450)], ports([9100, 10250]));
        assert_eq!(
            meaning(&entries, own()),
            [(7450, 10250), (7451, 9100)].into()
        );
    }

    #[test]
    fn the_last_port_stays() {
        let before = [made(9100, 7450)];
        assert_eq!(step(&before, ports([])), before);
    }

    #[test]
    fn a_range_has_two_ends_and_a_limit() {
        assert_eq!(own().all().collect::<Vec<_>>(), [7450, 7451, 7452]);
        for wrong in ["7450", "7452-7450", "0-9", "1-65", "7450-x", ""] {
            let error = wrong.parse::<OwnPorts>().unwrap_err().to_string();
            assert!(error.contains("FIRST-LAST"), "{error}");
        }
    }
}
