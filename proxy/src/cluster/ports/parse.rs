//! Parses the ports in a ConfigMap of Culvert or of YurtTunnel. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::directory::ClusterPorts;

/// The limit for one ConfigMap. With two of them and a node's own ports, a node stays within the
/// limit of the directory.
const MAX_PORTS: usize = 28;
/// The length at which an invalid text is cut in messages.
const SHOWN_CHARS: usize = 40;

/// The owner of the ConfigMap's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `culvert-ports`.
    Culvert,
    /// `yurt-tunnel-server-cfg`.
    YurtTunnel,
}

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ports,
    LocalhostPorts,
}

/// The content of one ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedPorts {
    /// `None`: the ConfigMap does not mention them.
    pub(super) ports: Option<BTreeSet<u16>>,
    pub(super) localhost_ports: BTreeSet<u16>,
}

/// The reason why a ConfigMap is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("{key}: {entry:?} is not a port: write 1 to 65535, with commas between them")]
    NoPort { key: String, entry: String },
    #[error("{key:?} is not a key of it: the keys are ports and localhost-ports")]
    UnknownKey { key: String },
    #[error(
        "{given} ports: at most {MAX_PORTS} are possible, and every port of a node is reached by \
         its name without this"
    )]
    TooMany { given: usize },
}

impl Format {
    fn keys(self) -> &'static [(&'static str, Kind)] {
        match self {
            Self::Culvert => &[
                ("ports", Kind::Ports),
                ("localhost-ports", Kind::LocalhostPorts),
            ],
            Self::YurtTunnel => &[
                ("dnat-ports-pair", Kind::Ports),
                ("http-proxy-ports", Kind::Ports),
                ("https-proxy-ports", Kind::Ports),
                ("localhost-proxy-ports", Kind::LocalhostPorts),
            ],
        }
    }

    /// YurtTunnel has entries such as `9100=10264`: connections to 9100 went to one of its own
    /// listeners. Culvert does not need the second port.
    fn port(self, entry: &str) -> Option<u16> {
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port != 0);
        match entry.split_once('=') {
            Some((left, right)) if self == Self::YurtTunnel => port(right).and(port(left)),
            _ => port(entry),
        }
    }
}

/// The valid part of the ConfigMap's data, and the problems of the rest.
pub(super) fn parse(
    format: Format,
    data: &BTreeMap<String, String>,
) -> (NamedPorts, Option<Problem>) {
    let mut given = NamedPorts::default();
    let mut problem = None;
    for (key, kind) in format.keys() {
        let Some(text) = data.get(*key) else { continue };
        let ports = match kind {
            Kind::Ports => given.ports.get_or_insert_default(),
            Kind::LocalhostPorts => &mut given.localhost_ports,
        };
        for entry in text
            .split([',', '\n'])
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            match format.port(entry) {
                Some(port) => drop(ports.insert(port)),
                None => drop(problem.get_or_insert_with(|| no_port(key, entry))),
            }
        }
    }
    let known = |key: &&String| format.keys().iter().any(|(known, _)| known == *key);
    if let (Format::Culvert, Some(key)) = (format, data.keys().find(|key| !known(key))) {
        problem.get_or_insert_with(|| Problem::UnknownKey { key: shown(key) });
    }
    let count = given.localhost_ports.len() + given.ports.as_ref().map_or(0, BTreeSet::len);
    if count > MAX_PORTS {
        return (
            NamedPorts::default(),
            Some(Problem::TooMany { given: count }),
        );
    }
    (given, problem)
}

fn no_port(key: &str, entry: &str) -> Problem {
    Problem::NoPort {
        key: key.to_owned(),
        entry: shown(entry),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

/// The ports of both ConfigMaps. YurtTunnel's are added to its default ones. Culvert's replace the
/// defaults.
pub(super) fn combined(culvert: &NamedPorts, yurt_tunnel: &NamedPorts) -> ClusterPorts {
    let mut ports = culvert
        .ports
        .clone()
        .unwrap_or(ClusterPorts::default().ports);
    ports.extend(yurt_tunnel.ports.iter().flatten());
    let localhost_ports: BTreeSet<u16> = culvert
        .localhost_ports
        .union(&yurt_tunnel.localhost_ports)
        .copied()
        .collect();
    ports.retain(|port| !localhost_ports.contains(port));
    ClusterPorts {
        ports,
        localhost_ports,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: Format, data: &[(&str, &str)]) -> (NamedPorts, Option<Problem>) {
        parse(
            format,
            &data
                .iter()
                .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
                .collect(),
        )
    }

    fn given(ports: Option<&[u16]>, localhost_ports: &[u16]) -> NamedPorts {
        let ports = ports.map(|ports| ports.iter().copied().collect());
        NamedPorts {
            ports,
            localhost_ports: localhost_ports.iter().copied().collect(),
        }
    }

    #[test]
    fn ports_are_numbers_with_commas_between_them() {
        let data = [
            ("ports", "10250, 9100,\n8080,"),
            ("localhost-ports", "10255"),
        ];
        assert_eq!(
            read(Format::Culvert, &data),
            (given(Some(&[8080, 9100, 10250]), &[10255]), None)
        );
        assert_eq!(read(Format::Culvert, &[]), (given(None, &[]), None));
        assert_eq!(
            read(Format::Culvert, &[("ports", "")]),
            (given(Some(&[]), &[]), None)
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
        let understood = given(Some(&[9051, 9100, 9445, 10250]), &[10266, 10267]);
        assert_eq!(read(Format::YurtTunnel, &data), (understood, None));
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
            let (given, problem) = read(Format::Culvert, &[data]);
            assert_eq!(given.ports, Some(BTreeSet::from([9100])));
            assert!(
                problem.clone().unwrap().to_string().contains(told),
                "{problem:?}"
            );
        }
        let (_, problem) = read(Format::Culvert, &[("port", "9100")]);
        assert!(
            problem
                .unwrap()
                .to_string()
                .contains("\"port\" is not a key")
        );
        let (_, problem) = read(Format::YurtTunnel, &[("dnat-ports-pair", "9100=x")]);
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
        let (none, problem) = read(Format::Culvert, &[("ports", &many.join(","))]);
        assert_eq!(
            (none, problem),
            (NamedPorts::default(), Some(Problem::TooMany { given: 29 }))
        );
        let (_, problem) = read(Format::Culvert, &[("ports", &"x".repeat(100_000))]);
        assert!(problem.unwrap().to_string().len() < 200);
    }

    #[test]
    fn culverts_ports_replace_the_default_ones_and_yurt_tunnels_come_to_them() {
        let default = ClusterPorts::default();
        assert_eq!(
            combined(&NamedPorts::default(), &NamedPorts::default()),
            default
        );
        let both = combined(
            &given(Some(&[10250, 9100]), &[8080]),
            &given(Some(&[9445, 8080]), &[9100]),
        );
        assert_eq!(both.ports, BTreeSet::from([9445, 10250]));
        assert_eq!(
            both.localhost_ports,
            BTreeSet::from([8080, 9100]),
            "a port is dialled in one way only"
        );
        let yurt = combined(&NamedPorts::default(), &given(Some(&[9445]), &[]));
        assert!(yurt.ports.is_superset(&default.ports) && yurt.ports.contains(&9445));
    }
}
