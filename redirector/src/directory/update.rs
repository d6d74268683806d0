//! Applies the proxy's messages to the directory.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use culvert_api::proto::directory as proto;
use culvert_api::{InvalidNodeName, NodeName};

use super::{Address, Behind, Directory, Node, Ranges};

/// An update that cannot be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error("the proxy sent {text:?} as {what}")]
    Range { what: &'static str, text: String },
}

/// A node that is left out of an update.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error(transparent)]
    Name(#[from] InvalidNodeName),
    #[error("{text:?} is not {what}")]
    Field { what: &'static str, text: String },
}

impl Directory {
    /// Applies an update: a snapshot replaces everything, a delta changes some nodes. An invalid
    /// update changes nothing. An invalid node is left out with a warning, so that the others stay
    /// usable.
    pub(crate) fn update(&mut self, update: proto::Update) -> Result<(), UpdateError> {
        if let Some(ranges) = &update.snapshot {
            *self = Self {
                ranges: Ranges::from_proto(ranges)?,
                ..Self::default()
            };
        }
        self.revision = update.revision;
        for name in &update.removed {
            if let Ok(name) = name.parse::<NodeName>() {
                self.nodes.remove(&name);
            }
        }
        if let Some(clouds) = update.clouds {
            self.clouds.clear();
            for node in &clouds.nodes {
                match cloud_from_proto(node) {
                    Ok((name, addresses)) => {
                        self.clouds.insert(name, addresses);
                    }
                    Err(error) => {
                        tracing::warn!(
                            node = node.name,
                            %error,
                            "cloud node of the proxy's directory left out"
                        );
                    }
                }
            }
        }
        for node in update.nodes {
            let name = node.name.clone();
            match Node::from_proto(node) {
                Ok((name, node)) => {
                    self.nodes.insert(name, node);
                }
                Err(error) => {
                    tracing::warn!(node = name, %error, "node of the proxy's directory left out");
                }
            }
        }
        Ok(())
    }
}

fn cloud_from_proto(node: &proto::CloudNode) -> Result<(NodeName, Vec<IpAddr>), NodeError> {
    let name = node.name.parse()?;
    let mut addresses = Vec::new();
    for text in &node.addresses {
        addresses.push(field("an address", text)?);
    }
    Ok((name, addresses))
}

fn port(number: u32) -> Result<u16, NodeError> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(NodeError::Field {
            what: "a port",
            text: number.to_string(),
        }),
    }
}

impl Ranges {
    fn from_proto(ranges: &proto::Ranges) -> Result<Self, UpdateError> {
        Ok(Self {
            vip4: range("range of IPv4 VIPs", &ranges.vip4)?,
            vip6: range("range of IPv6 VIPs", &ranges.vip6)?,
        })
    }
}

fn range<T: FromStr>(what: &'static str, text: &str) -> Result<Option<T>, UpdateError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_why| UpdateError::Range {
        what,
        text: text.to_owned(),
    })
}

impl Node {
    fn from_proto(node: proto::Node) -> Result<(NodeName, Self), NodeError> {
        let name = node.name.parse()?;
        let node = Self {
            addresses: node
                .addresses
                .into_iter()
                .map(Address::from_proto)
                .collect::<Result<_, _>>()?,
            vip4: optional("an IPv4 VIP", &node.vip4)?,
            vip6: optional("an IPv6 VIP", &node.vip6)?,
            ports: node.ports.into_iter().map(port).collect::<Result<_, _>>()?,
            online: node.online,
            zone: optional("a zone", &node.zone)?,
            behind: node
                .behind
                .into_iter()
                .map(Behind::from_proto)
                .collect::<Result<_, _>>()?,
        };
        Ok((name, node))
    }
}

impl Behind {
    fn from_proto(behind: proto::Behind) -> Result<Self, NodeError> {
        let destination: SocketAddr = field("a destination", &behind.destination)?;
        Ok(Self {
            destination: SocketAddr::new(destination.ip().to_canonical(), destination.port()),
            routing: behind.routing().into(),
            reason: behind.reason,
        })
    }
}

impl Address {
    fn from_proto(address: proto::Address) -> Result<Self, NodeError> {
        let ip: IpAddr = field("an address", &address.ip)?;
        Ok(Self {
            ip: ip.to_canonical(),
            routing: address.routing().into(),
            reason: address.reason,
        })
    }
}

fn field<T: FromStr>(what: &'static str, text: &str) -> Result<T, NodeError> {
    text.parse().map_err(|_why| NodeError::Field {
        what,
        text: text.to_owned(),
    })
}

fn optional<T: FromStr>(what: &'static str, text: &str) -> Result<Option<T>, NodeError> {
    if text.is_empty() {
        Ok(None)
    } else {
        field(what, text).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ip: &str, online: bool) -> proto::Node {
        proto::Node {
            name: name.to_owned(),
            addresses: vec![proto::Address {
                ip: ip.to_owned(),
                routing: proto::Routing::Routed.into(),
                reason: String::new(),
            }],
            vip4: "198.18.0.1".to_owned(),
            vip6: String::new(),
            ports: vec![9100],
            online,
            zone: String::new(),
            behind: Vec::new(),
        }
    }

    fn snapshot(nodes: Vec<proto::Node>) -> proto::Update {
        let ranges = proto::Ranges {
            vip4: "198.18.0.0/15".to_owned(),
            vip6: String::new(),
        };
        proto::Update {
            revision: 1,
            snapshot: Some(ranges),
            nodes,
            removed: Vec::new(),
            clouds: None,
        }
    }

    fn updated(nodes: Vec<proto::Node>) -> Directory {
        let mut directory = Directory::default();
        directory.update(snapshot(nodes)).unwrap();
        directory
    }

    fn names(directory: &Directory) -> Vec<&str> {
        directory.nodes.keys().map(NodeName::as_str).collect()
    }

    #[test]
    fn a_snapshot_replaces_and_a_delta_changes() {
        let mut directory = updated(vec![
            node("a", "10.0.0.1", true),
            node("b", "10.0.0.2", true),
        ]);
        let ranges = directory.ranges;
        let delta = proto::Update {
            revision: 2,
            snapshot: None,
            nodes: vec![node("b", "10.0.0.2", false), node("c", "10.0.0.3", true)],
            removed: vec!["a".to_owned(), "never there".to_owned()],
            clouds: None,
        };
        directory.update(delta).unwrap();
        assert_eq!(names(&directory), ["b", "c"]);
        assert!(!directory.nodes[&"b".parse().unwrap()].online);
        assert_eq!((directory.revision, directory.ranges), (2, ranges));
        directory
            .update(snapshot(vec![node("d", "10.0.0.4", true)]))
            .unwrap();
        assert_eq!(names(&directory), ["d"]);
    }

    #[test]
    fn a_node_that_makes_no_sense_leaves_the_others_alone() {
        let bad_port = proto::Node {
            ports: vec![70_000],
            ..node("p", "10.0.0.3", true)
        };
        let nodes = vec![
            node("Bad", "10.0.0.1", true),
            node("x", "ten", true),
            bad_port,
            node("ok", "10.0.0.2", true),
        ];
        assert_eq!(names(&updated(nodes)), ["ok"]);
    }

    #[test]
    fn cloud_nodes_are_replaced_whole_and_an_older_proxy_has_none() {
        let cloud = |name: &str, address: &str| proto::CloudNode {
            name: name.into(),
            addresses: vec![address.into()],
        };
        let update = |nodes: Option<Vec<proto::CloudNode>>| proto::Update {
            clouds: nodes.map(|nodes| proto::Clouds { nodes }),
            snapshot: None,
            ..snapshot(Vec::new())
        };
        let mut directory = updated(vec![node("a", "10.0.0.1", true)]);
        directory
            .update(update(Some(vec![
                cloud("m", "10.1.0.1"),
                cloud("x", "ten"),
                cloud("n", "fd00::1"),
            ])))
            .unwrap();
        directory.update(update(None)).unwrap();
        assert_eq!(
            directory
                .clouds
                .keys()
                .map(NodeName::as_str)
                .collect::<Vec<_>>(),
            ["m", "n"]
        );
        directory
            .update(update(Some(vec![cloud("o", "10.1.0.1")])))
            .unwrap();
        assert_eq!(
            directory
                .clouds
                .keys()
                .map(NodeName::as_str)
                .collect::<Vec<_>>(),
            ["o"]
        );
        directory.update(snapshot(Vec::new())).unwrap();
        assert!(directory.clouds.is_empty());
    }

    #[test]
    fn a_range_that_makes_no_sense_is_named() {
        let mut update = snapshot(Vec::new());
        update.snapshot = Some(proto::Ranges {
            vip4: "198.18/15".to_owned(),
            vip6: String::new(),
        });
        let mut directory = updated(vec![node("a", "10.0.0.1", true)]);
        let error = directory.update(update).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the proxy sent \"198.18/15\" as range of IPv4 VIPs"
        );
        assert_eq!(names(&directory), ["a"], "and what was there stays");
    }
}
