//! The hosts of a lab and their addresses.

use std::net::{IpAddr, Ipv4Addr};

/// A host of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// Runs Prometheus, the proxy and the redirector.
    Cloud,
    /// An edge node with a unique address.
    Edge1,
    /// An edge node with the same address as [`Host::Edge3`].
    Edge2,
    /// An edge node with the same address as [`Host::Edge2`].
    Edge3,
}

impl Host {
    /// All hosts, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Cloud, Self::Edge1, Self::Edge2, Self::Edge3];
    /// The edge nodes.
    pub const EDGES: [Self; 3] = [Self::Edge1, Self::Edge2, Self::Edge3];

    /// The host name. For an edge it is also the node name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Edge1 => "edge-1",
            Self::Edge2 => "edge-2",
            Self::Edge3 => "edge-3",
        }
    }

    /// The host's own address. An edge's address is known only in its own site.
    pub fn address(self) -> IpAddr {
        IpAddr::V4(match self {
            Self::Cloud => Ipv4Addr::new(203, 0, 113, 1),
            Self::Edge1 => Ipv4Addr::new(10, 0, 3, 7),
            Self::Edge2 | Self::Edge3 => Ipv4Addr::new(192, 168, 1, 10),
        })
    }

    /// The host with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|host| host.name() == name)
    }

    /// The host's address in the internet and the router's end of the link, as CIDRs of one /30.
    pub(crate) fn wan(self) -> (String, String) {
        match self {
            Self::Cloud => ("203.0.113.1/30".into(), "203.0.113.2/30".into()),
            Self::Edge1 | Self::Edge2 | Self::Edge3 => pair((self as u8 - 1) * 4),
        }
    }

    /// The same after an edge has moved.
    pub(crate) fn second_wan(self) -> (String, String) {
        pair(128 + self as u8 * 4)
    }

    /// The router's interface towards the host.
    pub(crate) fn router_link(self) -> String {
        format!("site{}", self as u8)
    }
}

fn pair(base: u8) -> (String, String) {
    (
        format!("198.51.100.{}/30", base + 1),
        format!("198.51.100.{}/30", base + 2),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_keep_to_their_own_links() {
        assert_eq!(
            Host::Edge3.wan(),
            ("198.51.100.9/30".into(), "198.51.100.10/30".into())
        );
        assert_eq!(Host::Edge3.router_link(), "site3");
        assert_eq!(Host::from_name("edge-2"), Some(Host::Edge2));
    }
}
