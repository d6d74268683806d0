//! What an operator may ask about: anything that a client could dial, with or without a port.

use std::net::{IpAddr, SocketAddr};

use culvert_api::{NodeName, Zone};

/// A destination, perhaps without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) host: Host,
    pub(super) port: Option<u16>,
}

/// What stands before the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Address(IpAddr),
    Node(NodeName),
}

/// A text that nobody could dial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryError {
    #[error("{0:?} is not a port: write a number from 1 to 65535")]
    Port(String),
    #[error("{0:?} is neither an address nor a node's name")]
    Host(String),
}

impl Query {
    /// Reads `IP`, `IP:PORT`, a node's name or `NAME:PORT`; names may end in the zone.
    pub(super) fn parse(text: &str, zone: &Zone) -> Result<Self, QueryError> {
        let text = text.trim();
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self {
                host: Host::Address(ip.to_canonical()),
                port: None,
            });
        }
        if let Ok(address) = text.parse::<SocketAddr>()
            && address.port() != 0
        {
            return Ok(Self {
                host: Host::Address(address.ip().to_canonical()),
                port: Some(address.port()),
            });
        }
        let (name, port) = match text.rsplit_once(':') {
            None => (text, None),
            Some((name, port)) => (name, Some(parse_port(port)?)),
        };
        let lower = name.trim_end_matches('.').to_ascii_lowercase();
        let node = lower
            .strip_suffix(&format!(".{zone}"))
            .unwrap_or(&lower)
            .parse();
        let host = node
            .map(Host::Node)
            .map_err(|_| QueryError::Host(text.to_owned()))?;
        Ok(Self { host, port })
    }
}

fn parse_port(text: &str) -> Result<u16, QueryError> {
    text.parse()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| QueryError::Port(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Query, QueryError> {
        Query::parse(text, &"edge.internal".parse().unwrap())
    }

    #[test]
    fn a_port_may_be_left_out() {
        let address = |text: &str| Host::Address(text.parse().unwrap());
        let node = |text: &str| Host::Node(text.parse().unwrap());
        for (text, host, port) in [
            ("10.0.3.7:9100", address("10.0.3.7"), Some(9100)),
            ("10.0.3.7", address("10.0.3.7"), None),
            ("::ffff:10.0.3.7", address("10.0.3.7"), None),
            ("[::ffff:10.0.3.7]:9100", address("10.0.3.7"), Some(9100)),
            ("[fd00::7]", address("fd00::7"), None),
            ("fd00::7", address("fd00::7"), None),
            ("edge-1", node("edge-1"), None),
            ("Edge-1.Edge.Internal.", node("edge-1"), None),
            ("edge-1.edge.internal:80", node("edge-1"), Some(80)),
        ] {
            assert_eq!(parsed(text), Ok(Query { host, port }), "{text}");
        }
    }

    #[test]
    fn what_nobody_could_dial_is_named() {
        for bad in [
            "edge-1:http",
            "edge-1:0",
            "edge-1:",
            "10.0.3.7:99999",
            "10.0.3.7:0",
        ] {
            assert!(matches!(parsed(bad), Err(QueryError::Port(_))), "{bad}");
        }
        for bad in ["", "a_b", "a b:80"] {
            assert!(matches!(parsed(bad), Err(QueryError::Host(_))), "{bad:?}");
        }
    }
}
