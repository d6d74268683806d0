//! The nodes of the cluster: their names, addresses and numbers.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use anyhow::{Error, Result, bail};

/// The prefix of all names that the machine's other programs see.
pub(crate) const NAME: &str = "culvert-cluster";

/// A node, which is a host of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// The cloud node with the control plane.
    Master,
    /// `cloud-2` to `cloud-9`.
    Cloud(u8),
    /// `edge-1` to `edge-3`.
    Edge(u8),
}

impl Node {
    pub(crate) fn is_cloud(self) -> bool {
        !matches!(self, Self::Edge(_))
    }

    /// Its address in the cluster. That of an edge node is known in its own site only; edge-2 and
    /// edge-3 share one.
    pub(crate) fn address(self) -> Ipv4Addr {
        match self {
            Self::Master => Ipv4Addr::new(203, 0, 113, 1),
            Self::Cloud(number) => Ipv4Addr::new(203, 0, 113, number * 4 + 1),
            Self::Edge(1) => Ipv4Addr::new(10, 0, 3, 7),
            Self::Edge(_) => Ipv4Addr::new(192, 168, 1, 10),
        }
    }

    /// Its address in the internet, and the internet's end of the link: both of one /30.
    pub(crate) fn wan(self) -> (Ipv4Addr, Ipv4Addr) {
        let own = match self {
            Self::Master | Self::Cloud(_) => self.address(),
            Self::Edge(number) => Ipv4Addr::new(198, 51, 100, number * 4 + 1),
        };
        (own, Ipv4Addr::from_bits(own.to_bits() + 1))
    }

    /// The network of its pods.
    pub(crate) fn pods(self) -> String {
        format!("10.244.{}.0/24", self.number())
    }

    /// The third byte of its pods' network, which also tells links apart.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Master => 0,
            Self::Edge(number) => number,
            Self::Cloud(number) => number + 40,
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Master => f.write_str("master"),
            Self::Cloud(number) => write!(f, "cloud-{number}"),
            Self::Edge(number) => write!(f, "edge-{number}"),
        }
    }
}

impl FromStr for Node {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let node = match name.rsplit_once('-') {
            None if name == "master" => Some(Self::Master),
            Some(("cloud", number)) => number.parse().ok().map(Self::Cloud),
            Some(("edge", number)) => number.parse().ok().map(Self::Edge),
            _ => None,
        };
        match node {
            Some(node @ (Self::Master | Self::Cloud(2..=9) | Self::Edge(1..=3))) => Ok(node),
            _ => bail!("{name:?} is none of master, cloud-2 to cloud-9 and edge-1 to edge-3"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_those_of_the_picture() {
        let addresses = |name: &str| {
            let node: Node = name.parse().unwrap();
            assert_eq!(node.to_string(), name);
            (
                node.address().to_string(),
                node.wan().0.to_string(),
                node.wan().1.to_string(),
            )
        };
        let three = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(
            addresses("master"),
            three("203.0.113.1", "203.0.113.1", "203.0.113.2")
        );
        assert_eq!(
            addresses("cloud-3"),
            three("203.0.113.13", "203.0.113.13", "203.0.113.14")
        );
        assert_eq!(
            addresses("edge-3"),
            three("192.168.1.10", "198.51.100.13", "198.51.100.14")
        );
        for other in ["", "edge-0", "edge-4", "cloud-1", "master-1", "edge"] {
            assert!(other.parse::<Node>().is_err(), "{other}");
        }
    }
}
