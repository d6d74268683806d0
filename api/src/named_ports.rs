//! The ports that a ConfigMap names: `culvert-ports`, or YurtTunnel's. The proxies steer them, and
//! agents dial those of `culvert-ports`. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::host_port::parse_port;

/// Name of Culvert's ConfigMap. Agents mount it as a folder.
pub const CULVERT_PORTS: &str = "culvert-ports";
/// The limit for one ConfigMap. With two of them and a node's own ports, a node stays within the
/// limit of the directory.
pub const MAX_PORTS: usize = 28;
/// The length at which an invalid text is cut in messages.
const SHOWN_CHARS: usize = 40;

/// The owner of a ConfigMap, or of a key of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// `culvert-ports`. Its ConfigMap may have YurtTunnel's keys too, as they were there.
    Culvert,
    /// `yurt-tunnel-server-cfg`.
    YurtTunnel,
}

/// The content of one ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedPorts {
    /// They replace the default ports. `None`: the ConfigMap does not mention them.
    pub ports: Option<BTreeSet<u16>>,
    /// They are added to the others.
    #[serde(default)]
    pub further: BTreeSet<u16>,
    /// Dialled on 127.0.0.1.
    pub localhost_ports: BTreeSet<u16>,
}

/// The reason why a ConfigMap is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPorts {
    /// An entry is not a port.
    #[error("{key}: {entry:?} is not a port: write 1 to 65535, with commas between them")]
    NoPort {
        /// Where it is.
        key: String,
        /// What it says.
        entry: String,
    },
    /// It is not read.
    #[error(
        "{key:?} is not a key of it: the keys are ports and localhost-ports, or those of YurtTunnel"
    )]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// More than a node can have.
    #[error(
        "{given} ports: at most {MAX_PORTS} are possible, and every port of a node is reached by \
         its name without this"
    )]
    TooMany {
        /// How many there are.
        given: usize,
    },
}

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ports,
    Further,
    LocalhostPorts,
}

struct Key {
    name: &'static str,
    owner: Owner,
    kind: Kind,
}

const fn key(name: &'static str, owner: Owner, kind: Kind) -> Key {
    Key { name, owner, kind }
}

const KEYS: [Key; 6] = [
    key("ports", Owner::Culvert, Kind::Ports),
    key("localhost-ports", Owner::Culvert, Kind::LocalhostPorts),
    key("dnat-ports-pair", Owner::YurtTunnel, Kind::Further),
    key("http-proxy-ports", Owner::YurtTunnel, Kind::Further),
    key("https-proxy-ports", Owner::YurtTunnel, Kind::Further),
    key(
        "localhost-proxy-ports",
        Owner::YurtTunnel,
        Kind::LocalhostPorts,
    ),
];

impl Key {
    /// YurtTunnel has entries such as `9100=10264`: connections to 9100 went to one of its own
    /// listeners. Culvert does not need the second port.
    fn port(&self, entry: &str) -> Option<u16> {
        match entry.split_once('=') {
            Some((left, right)) if self.owner == Owner::YurtTunnel => {
                parse_port(right.trim())?;
                parse_port(left.trim())
            }
            _ => parse_port(entry.trim()),
        }
    }
}

impl NamedPorts {
    /// The valid part of a ConfigMap's data, and the first problem of the rest.
    #[must_use]
    pub fn parse(owner: Owner, data: &BTreeMap<String, String>) -> (Self, Option<InvalidPorts>) {
        let mut given = Self::default();
        let mut problem = None;
        for key in &KEYS {
            if owner != Owner::Culvert && key.owner != owner {
                continue;
            }
            let Some(text) = data.get(key.name) else {
                continue;
            };
            let ports = given.of(key.kind);
            for entry in text.split([',', '\n']).map(str::trim) {
                if entry.is_empty() {
                    continue;
                }
                match key.port(entry) {
                    Some(port) => drop(ports.insert(port)),
                    None => drop(problem.get_or_insert_with(|| no_port(key, entry))),
                }
            }
        }
        if owner == Owner::Culvert {
            for name in data.keys() {
                if !KEYS.iter().any(|key| key.name == *name) {
                    problem.get_or_insert_with(|| InvalidPorts::UnknownKey { key: excerpt(name) });
                }
            }
        }
        let count = given.all().count() + given.localhost_ports.len();
        if count > MAX_PORTS {
            return (
                Self::default(),
                Some(InvalidPorts::TooMany { given: count }),
            );
        }
        (given, problem)
    }

    /// All but those on 127.0.0.1. A port may come twice.
    pub fn all(&self) -> impl Iterator<Item = u16> {
        self.ports.iter().flatten().chain(&self.further).copied()
    }

    fn of(&mut self, kind: Kind) -> &mut BTreeSet<u16> {
        match kind {
            Kind::Ports => self.ports.get_or_insert_default(),
            Kind::Further => &mut self.further,
            Kind::LocalhostPorts => &mut self.localhost_ports,
        }
    }
}

fn no_port(key: &Key, entry: &str) -> InvalidPorts {
    InvalidPorts::NoPort {
        key: key.name.to_owned(),
        entry: excerpt(entry),
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(owner: Owner, data: &[(&str, &str)]) -> (NamedPorts, Option<InvalidPorts>) {
        NamedPorts::parse(
            owner,
            &data
                .iter()
                .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
                .collect(),
        )
    }

    fn expected(ports: Option<&[u16]>, localhost_ports: &[u16]) -> NamedPorts {
        let ports = ports.map(|ports| ports.iter().copied().collect());
        NamedPorts {
            ports,
            localhost_ports: localhost_ports.iter().copied().collect(),
            ..NamedPorts::default()
        }
    }

    #[test]
    fn ports_are_numbers_with_commas_between_them() {
        let data = [
            ("ports", "10250, 9100,\n8080,"),
            ("localhost-ports", "10255"),
        ];
        assert_eq!(
            read(Owner::Culvert, &data),
            (expected(Some(&[8080, 9100, 10250]), &[10255]), None)
        );
        assert_eq!(read(Owner::Culvert, &[]), (expected(None, &[]), None));
        assert_eq!(
            read(Owner::Culvert, &[("ports", "")]),
            (expected(Some(&[]), &[]), None)
        );
    }

    #[test]
    fn yurt_tunnels_keys_are_understood_with_its_pairs_and_without_its_listeners() {
        let data = [
            ("dnat-ports-pair", "9100=10264, 10250=10250, 9051"),
            ("http-proxy-ports", "9445, 9051"),
            ("https-proxy-ports", " 9100 "),
            ("localhost-proxy-ports", "10266, 10267"),
            ("of-a-later-version", "x"),
        ];
        let understood = NamedPorts {
            further: [9051, 9100, 9445, 10250].into(),
            ..expected(None, &[10266, 10267])
        };
        assert_eq!(read(Owner::YurtTunnel, &data), (understood.clone(), None));
        assert_eq!(
            read(Owner::Culvert, &data[..4]),
            (understood, None),
            "copied into culvert-ports they mean the same"
        );
    }

    #[test]
    fn what_is_wrong_is_named_and_the_rest_is_read() {
        for (data, told) in [
            (("ports", "9100, 91o0"), "ports: \"91o0\" is not a port"),
            (("ports", "9100, 0"), "\"0\" is not a port"),
            (("ports", "9100, 65536"), "\"65536\" is not a port"),
            (
                ("ports", "9100, 10250=10250"),
                "\"10250=10250\" is not a port",
            ),
            (("ports", "9100 9200, 9100"), "\"9100 9200\" is not a port"),
        ] {
            let (given, problem) = read(Owner::Culvert, &[data]);
            assert_eq!(given.ports, Some(BTreeSet::from([9100])));
            assert!(
                problem.clone().unwrap().to_string().contains(told),
                "{problem:?}"
            );
        }
        let (_, problem) = read(Owner::Culvert, &[("port", "9100")]);
        assert!(
            problem
                .unwrap()
                .to_string()
                .contains("\"port\" is not a key")
        );
        let (_, problem) = read(Owner::YurtTunnel, &[("dnat-ports-pair", "9100=x")]);
        assert!(
            problem
                .unwrap()
                .to_string()
                .contains("\"9100=x\" is not a port")
        );
    }

    #[test]
    fn texts_without_end_are_neither_taken_nor_repeated() {
        let many: Vec<String> = (1..=29).map(|port: u16| port.to_string()).collect();
        let (none, problem) = read(Owner::Culvert, &[("ports", &many.join(","))]);
        assert_eq!(
            (none, problem),
            (
                NamedPorts::default(),
                Some(InvalidPorts::TooMany { given: 29 })
            )
        );
        let (_, problem) = read(Owner::Culvert, &[("ports", &"x".repeat(100_000))]);
        assert!(problem.unwrap().to_string().len() < 200);
    }
}
