//! What a client asked for, and why the directory could not say where it is.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use culvert_api::NodeName;

/// Longest DNS name in text, with a trailing dot.
const MAX_NAME_BYTES: usize = 254;

/// What a client dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// An edge node's address or VIP.
    Address(SocketAddr),
    /// A node's name, bare or followed by the zone, and the port.
    Name(String, u16),
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Whose agent dials.
    pub(crate) node: NodeName,
    /// What the agent dials; `None`: the directory has no address of the node, and the agent uses
    /// its loopback.
    pub(crate) address: Option<IpAddr>,
    /// The port it dials.
    pub(crate) port: u16,
}

/// Why a destination leads to no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    /// No node has the address.
    #[error(
        "no edge node has the address {address} (the directory has {nodes}): `culvert-proxy node \
         list` shows their addresses, and which of them are refused"
    )]
    UnknownAddress {
        /// What was dialled.
        address: IpAddr,
        /// How many nodes there are.
        nodes: NodeCount,
    },
    /// No node has the name.
    #[error(
        "no edge node is named {name:?} (the directory has {nodes}): see `culvert-proxy node list`"
    )]
    UnknownName {
        /// What was dialled.
        name: String,
        /// How many nodes there are.
        nodes: NodeCount,
    },
    /// The address is in a VIP range but no node's.
    #[error("{address} is in the VIP range but no node has it: look the node's name up again")]
    UnassignedVip {
        /// What was dialled.
        address: IpAddr,
    },
    /// Several nodes have the address.
    #[error("{address} belongs to {}: use their names", And(owners))]
    Shared {
        /// What was dialled.
        address: IpAddr,
        /// The nodes, in the order of their names.
        owners: Vec<NodeName>,
    },
    /// The address is a node's, and the cloud's too.
    #[error("{address} of {} {protection}: use the node's name", And(owners))]
    Protected {
        /// What was dialled.
        address: IpAddr,
        /// The nodes that have it.
        owners: Vec<NodeName>,
        /// What else it is.
        protection: String,
    },
    /// The address was a node's before a node of the cloud claimed it.
    #[error("{address} of {} {protection}: use the node's name", And(owners))]
    Contested {
        /// What was dialled.
        address: IpAddr,
        /// The edge nodes that have it.
        owners: Vec<NodeName>,
        /// What else it is said to be.
        protection: String,
    },
    /// Not a destination at all.
    #[error("{text:?} is no destination: {problem}")]
    BadInput {
        /// What was given, cut to a reasonable length.
        text: String,
        /// What is wrong with it and how it should look.
        problem: &'static str,
    },
}

impl ResolveError {
    /// Label for metrics and logs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::UnknownAddress { .. } | Self::UnknownName { .. } | Self::UnassignedVip { .. } => {
                "unknown_destination"
            }
            Self::Shared { .. } | Self::Contested { .. } => "shared_address",
            Self::Protected { .. } => "protected_address",
            Self::BadInput { .. } => "bad_destination",
        }
    }
}

/// How many nodes the directory has, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeCount(pub(crate) usize);

impl fmt::Display for NodeCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("no nodes"),
            1 => f.write_str("1 node"),
            count => write!(f, "{count} nodes"),
        }
    }
}

/// Names as people list them: `a`, `a and b`, `a, b and c`.
pub(crate) struct And<'a>(pub(crate) &'a [NodeName]);

impl fmt::Display for And<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            let separator = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{name}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl FromStr for Destination {
    type Err = ResolveError;

    /// `host:port` with a name, an IPv4 address or an IPv6 address in brackets.
    fn from_str(text: &str) -> Result<Self, ResolveError> {
        let bad = |problem| {
            Err(ResolveError::BadInput {
                text: text.chars().take(MAX_NAME_BYTES).collect(),
                problem,
            })
        };
        let Some((host, port)) = text.rsplit_once(':') else {
            return bad("write host:port");
        };
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let Some(port) = port.parse().ok().filter(|port| digits && *port != 0) else {
            return bad("the port must be a number from 1 to 65535");
        };
        if let Some(inner) = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
        {
            return match inner.parse() {
                Ok(ip) => Ok(Self::Address(SocketAddr::new(IpAddr::V6(ip), port))),
                Err(_) => bad("there is no IPv6 address between the brackets"),
            };
        }
        if let Ok(ip) = host.parse() {
            return Ok(Self::Address(SocketAddr::new(IpAddr::V4(ip), port)));
        }
        if host.contains(':') {
            return bad("write an IPv6 address in brackets, as in [2001:db8::7]:10250");
        }
        let character =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if host.is_empty() || host.len() > MAX_NAME_BYTES || !host.bytes().all(character) {
            return bad("the host must be a node's name or an IP address");
        }
        Ok(Self::Name(host.to_owned(), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read_as_curl_writes_them() {
        let address = |text: &str| Destination::Address(text.parse().unwrap());
        assert_eq!("10.0.3.7:9100".parse(), Ok(address("10.0.3.7:9100")));
        assert_eq!("[fd00::7]:9100".parse(), Ok(address("[fd00::7]:9100")));
        assert_eq!(
            "Edge-1.edge.internal.:80".parse(),
            Ok(Destination::Name("Edge-1.edge.internal.".into(), 80))
        );
    }

    #[test]
    fn what_is_no_destination_is_told_so() {
        let long = format!("{}:80", "a".repeat(255));
        for bad in [
            "",
            "edge-1",
            "edge-1:",
            "edge-1:0",
            "edge-1:+80",
            "edge-1:65536",
            ":80",
            "fd00::7:80",
            "[x]:80",
            "[]:80",
            "a b:80",
            "a/b:80",
            &long,
        ] {
            let error = bad.parse::<Destination>().unwrap_err();
            assert!(
                matches!(error, ResolveError::BadInput { .. }),
                "{bad:?}: {error}"
            );
        }
    }

    #[test]
    fn owners_are_listed_as_people_do() {
        let names: Vec<NodeName> = ["a", "b", "c"]
            .iter()
            .map(|name| name.parse().unwrap())
            .collect();
        assert_eq!(And(&names).to_string(), "a, b and c");
        assert_eq!(And(&names[..2]).to_string(), "a and b");
        assert_eq!(And(&names[..1]).to_string(), "a");
    }
}
