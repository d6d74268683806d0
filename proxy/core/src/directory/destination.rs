//! The destination of a client, and why the directory cannot resolve it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use culvert_api::{Host, HostPort, InvalidHostPort, NodeName, OtherMeaning, Routing};

/// The destination that a client dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An edge node's address or VIP.
    Address(SocketAddr),
    /// A name that a client gave, alone or followed by a zone, and the port.
    Name(String, u16),
    /// A node by exactly its name, and the port.
    Node(NodeName, u16),
}

/// The target of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The node whose agent dials.
    pub node: NodeName,
    /// The address that the agent dials. `None`: the directory has no address of the node, and the
    /// agent uses its loopback.
    pub address: Option<IpAddr>,
    /// The addresses that the agent dials if the first one does not answer: the client dialled the
    /// node, not an address.
    pub instead: Vec<IpAddr>,
    /// The port that the agent dials.
    pub port: u16,
}

/// The reason why a destination leads to no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No node has the address.
    #[error(
        "no edge node has the address {address} (the directory has {nodes}): `culvert nodes` \
         shows their addresses, and which of them are refused"
    )]
    UnknownAddress {
        /// What was dialled.
        address: IpAddr,
        /// The number of nodes.
        nodes: NodeCount,
    },
    /// No node has the name.
    #[error("no edge node is named {name:?} (the directory has {nodes}): see `culvert nodes`")]
    UnknownName {
        /// What was dialled.
        name: String,
        /// The number of nodes.
        nodes: NodeCount,
    },
    /// A node has the name, but the name means something else too.
    #[error("{name} {meaning}: it does not lead to node {node}; {advice}")]
    OtherMeaning {
        /// What was dialled.
        name: String,
        /// The node of this name.
        node: NodeName,
        /// What it means.
        meaning: OtherMeaning,
        /// What to dial in its place.
        advice: String,
    },
    /// The address is in a VIP range, but no node has it.
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
        /// The nodes, sorted by name.
        owners: Vec<NodeName>,
    },
    /// The address belongs to a node and to the cloud.
    #[error("{address} of {} {protection}: use the node's name", And(owners))]
    Protected {
        /// What was dialled.
        address: IpAddr,
        /// The nodes that have it.
        owners: Vec<NodeName>,
        /// The other owner, in words.
        protection: String,
    },
    /// The address was a node's before a cloud node claimed it.
    #[error("{address} of {} {protection}: use the node's name", And(owners))]
    Contested {
        /// What was dialled.
        address: IpAddr,
        /// The edge nodes that have it.
        owners: Vec<NodeName>,
        /// The other owner, in words.
        protection: String,
    },
    /// The destination is behind a node, and is another's too.
    #[error("{reason}")]
    Behind {
        /// The nodes that have it.
        owners: Vec<NodeName>,
        /// Why it leads to none of them.
        reason: String,
        /// What a redirector does with it.
        routing: Routing,
    },
}

impl ResolveError {
    /// The nodes that have the address.
    pub fn owners(&self) -> &[NodeName] {
        match self {
            Self::Shared { owners, .. }
            | Self::Protected { owners, .. }
            | Self::Contested { owners, .. }
            | Self::Behind { owners, .. } => owners,
            Self::OtherMeaning { node, .. } => std::slice::from_ref(node),
            Self::UnknownAddress { .. } | Self::UnknownName { .. } | Self::UnassignedVip { .. } => {
                &[]
            }
        }
    }

    /// Label for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownAddress { .. }
            | Self::UnknownName { .. }
            | Self::OtherMeaning { .. }
            | Self::UnassignedVip { .. } => "unknown_destination",
            Self::Protected { .. }
            | Self::Behind {
                routing: Routing::Protected,
                ..
            } => "protected_address",
            Self::Shared { .. } | Self::Contested { .. } | Self::Behind { .. } => "shared_address",
        }
    }
}

/// The number of nodes in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCount(pub(crate) usize);

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
            Self::Node(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl From<HostPort> for Destination {
    fn from(HostPort { host, port }: HostPort) -> Self {
        match host {
            Host::Address(ip) => Self::Address(SocketAddr::new(ip, port)),
            Host::Name(name) => Self::Name(name, port),
        }
    }
}

impl FromStr for Destination {
    type Err = InvalidHostPort;

    fn from_str(text: &str) -> Result<Self, InvalidHostPort> {
        Ok(text.parse::<HostPort>()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
