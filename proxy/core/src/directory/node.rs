//! An operator's description of a node, and its validation.

use std::net::{IpAddr, SocketAddr};

use culvert_api::ports::NODE_PORTS;
use culvert_api::{OtherMeaning, Zone};
use serde::{Deserialize, Serialize};

/// A host with more addresses is described wrongly.
pub const MAX_ADDRESSES: usize = 16;
/// Each port of each address is an entry in the kernel's tables.
pub const MAX_PORTS: usize = 64;
/// Each of them is such an entry too.
pub const MAX_BEHIND: usize = 64;

/// A node as the operator describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// The node's own addresses, the preferred one first. Without any, clients reach it by name
    /// only, and its agent dials its loopback.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Ports on these addresses that the redirector steers into the proxy.
    #[serde(default = "default_ports")]
    pub ports: Vec<u16>,
    /// A further zone: `<node>.<zone>` is the node too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Zone>,
    /// Destinations in the node's network that its agent reaches, such as a camera. They are
    /// steered by their address and port, and one node has each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<SocketAddr>,
}

fn default_ports() -> Vec<u16> {
    NODE_PORTS.to_vec()
}

/// The reason why a description is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNode {
    #[error(
        "{address} is {what}, which no node has to itself: give the address that it has in its \
         own network, or none"
    )]
    Address { address: IpAddr, what: &'static str },
    #[error(
        "{destination} is {what}, which is behind no node: give the address that the device has in \
         the node's network"
    )]
    Behind {
        destination: SocketAddr,
        what: &'static str,
    },
    #[error("{given} {what}, at most {most} are possible")]
    TooMany {
        given: usize,
        what: &'static str,
        most: usize,
    },
    #[error("the name {meaning}: name the node otherwise")]
    Name { meaning: OtherMeaning },
    #[error("0 is not a port: write 1 to 65535")]
    Port,
}

impl NodeSpec {
    /// A node without addresses, with the default ports.
    pub(crate) fn with_default_ports() -> Self {
        Self {
            addresses: Vec::new(),
            ports: default_ports(),
            zone: None,
            behind: Vec::new(),
        }
    }

    /// The same node in a canonical form: v4-mapped addresses as IPv4, without duplicates, and with
    /// sorted ports.
    pub(crate) fn checked(self) -> Result<Self, InvalidNode> {
        let mut addresses = Vec::new();
        for address in self.addresses.iter().map(IpAddr::to_canonical) {
            if let Some(what) = never_a_nodes(address) {
                return Err(InvalidNode::Address { address, what });
            }
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let mut ports = self.ports;
        ports.sort_unstable();
        ports.dedup();
        let mut behind = self
            .behind
            .iter()
            .map(|given| checked_behind(*given))
            .collect::<Result<Vec<_>, _>>()?;
        behind.sort_unstable();
        behind.dedup();
        if ports.first() == Some(&0) {
            return Err(InvalidNode::Port);
        }
        if behind.len() > MAX_BEHIND {
            return Err(InvalidNode::TooMany {
                given: behind.len(),
                what: "destinations behind the node",
                most: MAX_BEHIND,
            });
        }
        if addresses.len() > MAX_ADDRESSES {
            return Err(InvalidNode::TooMany {
                given: addresses.len(),
                what: "addresses",
                most: MAX_ADDRESSES,
            });
        }
        if ports.len() > MAX_PORTS {
            return Err(InvalidNode::TooMany {
                given: ports.len(),
                what: "ports",
                most: MAX_PORTS,
            });
        }
        Ok(Self {
            addresses,
            ports,
            zone: self.zone,
            behind,
        })
    }
}

/// A destination behind a node in its canonical form.
pub fn checked_behind(given: SocketAddr) -> Result<SocketAddr, InvalidNode> {
    let destination = SocketAddr::new(given.ip().to_canonical(), given.port());
    match never_a_nodes(destination.ip()) {
        _ if destination.port() == 0 => Err(InvalidNode::Port),
        Some(what) => Err(InvalidNode::Behind { destination, what }),
        None => Ok(destination),
    }
}

/// The kind of an address that cannot identify a node; `None` for all others.
pub fn never_a_nodes(address: IpAddr) -> Option<&'static str> {
    let (link_local, broadcast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.is_broadcast()),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), false),
    };
    match () {
        () if address.is_loopback() => Some("a loopback address"),
        () if address.is_unspecified() => Some("the unspecified address"),
        () if address.is_multicast() => Some("a multicast address"),
        () if link_local => Some("a link-local address"),
        () if broadcast => Some("the broadcast address"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(addresses: &[&str], ports: &[u16]) -> NodeSpec {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        NodeSpec {
            addresses,
            ports: ports.to_vec(),
            zone: None,
            behind: Vec::new(),
        }
    }

    #[test]
    fn a_node_is_written_one_way() {
        let checked = spec(
            &["::ffff:10.0.3.7", "fd00::7", "10.0.3.7"],
            &[9100, 10250, 9100],
        )
        .checked()
        .unwrap();
        assert_eq!(checked, spec(&["10.0.3.7", "fd00::7"], &[9100, 10250]));
    }

    #[test]
    fn what_is_behind_a_node_is_an_address_and_a_port_of_one_device() {
        let behind = |text: &str| NodeSpec {
            behind: vec![text.parse().unwrap()],
            ..spec(&[], &[])
        };
        let checked = behind("[::ffff:192.168.1.20]:502").checked().unwrap();
        assert_eq!(checked, behind("192.168.1.20:502"));
        for bad in ["127.0.0.1:80", "169.254.169.254:80", "[::]:80"] {
            let error = behind(bad).checked().unwrap_err();
            assert!(matches!(error, InvalidNode::Behind { .. }), "{bad}");
        }
        assert_eq!(behind("192.168.1.20:0").checked(), Err(InvalidNode::Port));
    }

    #[test]
    fn addresses_that_every_host_has_identify_no_node() {
        for bad in [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "169.254.1.1",
            "fe80::1",
            "255.255.255.255",
            "::ffff:127.0.0.1",
        ] {
            assert!(
                matches!(
                    spec(&[bad], &[1]).checked(),
                    Err(InvalidNode::Address { .. })
                ),
                "{bad}"
            );
        }
        assert_eq!(spec(&[], &[0]).checked(), Err(InvalidNode::Port));
        let ports: Vec<u16> = (1..=65).collect();
        assert!(matches!(
            spec(&[], &ports).checked(),
            Err(InvalidNode::TooMany { .. })
        ));
    }
}
