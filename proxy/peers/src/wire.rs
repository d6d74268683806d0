//! Proxies, revocations and nodes in the messages of proxies. What another proxy says is checked here.

use std::collections::BTreeMap;

use culvert_api::NodeName;
use culvert_api::proto::peer as proto;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::{
    Facts, MAX_ADDRESSES, MAX_BEHIND, MAX_PORTS, NodeSpec, VipRanges,
};
use culvert_proxy_streams::peers::PeerInfo;
use culvert_proxy_trust::Revoked;

/// Longest text of a peer.
const TEXT_MAX: usize = 256;
/// The addresses that another proxy says agents may dial.
const MAX_PEER_ADDRESSES: usize = 16;
/// Revocations of one message. A proxy keeps fewer.
const MAX_REVOKED: usize = 200_000;

/// Why the directory of another proxy is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadDirectory {
    #[error("{0:?} is no range of VIPs")]
    Range(String),
    #[error("{0:?} is no name of a node")]
    Name(String),
    #[error("the node {0} is listed twice")]
    Twice(NodeName),
    #[error("{what} of {node}: {text:?}")]
    Property {
        node: NodeName,
        what: &'static str,
        text: String,
    },
}

/// What this proxy says about itself.
pub(super) fn proxy_message(own: &PeerInfo) -> proto::Proxy {
    proto::Proxy {
        instance: own.instance.to_string(),
        host: own.host.clone(),
        version: own.version.clone(),
        addresses: own.addresses.clone(),
    }
}

/// What another proxy says about itself.
pub(super) fn peer_info(proxy: &proto::Proxy) -> PeerInfo {
    let addresses = proxy.addresses.iter().take(MAX_PEER_ADDRESSES);
    PeerInfo {
        instance: printable(&proxy.instance).as_str().into(),
        host: printable(&proxy.host),
        version: printable(&proxy.version),
        certificate_ends: None,
        addresses: addresses.map(|one| printable(one)).collect(),
    }
}

fn printable(text: &str) -> String {
    let printable = text.chars().filter(|character| !character.is_control());
    printable.take(TEXT_MAX).collect()
}

/// A revocation as other proxies are told of it.
pub(super) fn revocation_message(revoked: &Revoked) -> proto::Revocation {
    let uid = revoked.uid.as_ref();
    proto::Revocation {
        node: revoked.node.to_string(),
        uid: uid.map(ToString::to_string).unwrap_or_default(),
        at: revoked.at.seconds(),
        until: revoked.until.seconds(),
    }
}

/// The revocations of a message. What names no node is left out.
pub(super) fn revoked(told: Vec<proto::Revocation>) -> Vec<Revoked> {
    let read = |told: proto::Revocation| {
        let uid = match told.uid.as_str() {
            "" => None,
            uid => Some(uid.parse().ok()?),
        };
        Some(Revoked {
            node: told.node.parse().ok()?,
            uid,
            at: UnixTime::from_seconds(told.at),
            until: UnixTime::from_seconds(told.until),
        })
    };
    let told = told.into_iter().take(MAX_REVOKED);
    told.filter_map(read).collect()
}

/// The directory as followers get it.
pub(super) fn directory_message(facts: &Facts) -> proto::Directory {
    let node = |(name, (spec, host_part)): (&NodeName, &(NodeSpec, u32))| proto::Node {
        name: name.to_string(),
        addresses: spec.addresses.iter().map(ToString::to_string).collect(),
        ports: spec.ports.iter().copied().map(u32::from).collect(),
        zone: spec
            .zone
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        host_part: *host_part,
        behind: spec.behind.iter().map(ToString::to_string).collect(),
    };
    proto::Directory {
        vip4_range: facts.ranges.vip4.to_string(),
        vip6_range: facts.ranges.vip6.to_string(),
        nodes: facts.nodes.iter().map(node).collect(),
    }
}

/// The directory of the primary.
pub(super) fn facts(told: proto::Directory) -> Result<Facts, BadDirectory> {
    let ranges = VipRanges {
        vip4: range(&told.vip4_range)?,
        vip6: range(&told.vip6_range)?,
    };
    let mut nodes = BTreeMap::new();
    for node in told.nodes {
        let name: NodeName = node
            .name
            .parse()
            .map_err(|_| BadDirectory::Name(shortened(&node.name)))?;
        let spec = spec(&name, &node)?;
        let host_part = node.host_part;
        if nodes.insert(name.clone(), (spec, host_part)).is_some() {
            return Err(BadDirectory::Twice(name));
        }
    }
    Ok(Facts { ranges, nodes })
}

fn range<T: std::str::FromStr>(text: &str) -> Result<T, BadDirectory> {
    text.parse()
        .map_err(|_| BadDirectory::Range(shortened(text)))
}

fn spec(name: &NodeName, node: &proto::Node) -> Result<NodeSpec, BadDirectory> {
    let bad = |what, text: &dyn std::fmt::Display| BadDirectory::Property {
        node: name.clone(),
        what,
        text: shortened(&text.to_string()),
    };
    let addresses = node.addresses.iter().take(MAX_ADDRESSES);
    let addresses = addresses.map(|text| text.parse().map_err(|_| bad("an address", text)));
    let ports = node.ports.iter().take(MAX_PORTS);
    let ports = ports.map(|port| u16::try_from(*port).map_err(|_| bad("a port", port)));
    let behind = node.behind.iter().take(MAX_BEHIND);
    let behind = behind.map(|text| text.parse().map_err(|_| bad("a destination", text)));
    let zone = (!node.zone.is_empty()).then(|| {
        let zone = node.zone.parse();
        zone.map_err(|_| bad("the zone", &node.zone))
    });
    Ok(NodeSpec {
        addresses: addresses.collect::<Result<_, _>>()?,
        ports: ports.collect::<Result<_, _>>()?,
        zone: zone.transpose()?,
        behind: behind.collect::<Result<_, _>>()?,
    })
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> proto::Directory {
        proto::Directory {
            vip4_range: "198.18.0.0/15".into(),
            vip6_range: "fd00:c::/64".into(),
            nodes: vec![proto::Node {
                name: "edge-1".into(),
                addresses: vec!["10.0.3.7".into()],
                ports: vec![9100],
                zone: "site-1.example".into(),
                host_part: 7,
                behind: vec!["192.168.1.20:502".into()],
            }],
        }
    }

    #[test]
    fn a_directory_is_read_as_it_was_written() {
        let facts = facts(told()).unwrap();
        assert_eq!(directory_message(&facts), told());
    }

    #[test]
    fn a_directory_with_anything_wrong_in_it_is_not_taken() {
        let broken: [fn(&mut proto::Directory); 7] = [
            |told| told.vip6_range = "198.18.0.0/15".into(),
            |told| told.nodes[0].name = "Edge 1".into(),
            |told| told.nodes[0].addresses = vec!["10.0.3".into()],
            |told| told.nodes[0].ports = vec![1 << 16],
            |told| told.nodes[0].zone = "..".into(),
            |told| told.nodes[0].behind = vec!["192.168.1.20".into()],
            |told| told.nodes.push(told.nodes[0].clone()),
        ];
        for (number, change) in broken.iter().enumerate() {
            let mut told = told();
            change(&mut told);
            assert!(facts(told).is_err(), "number {number}");
        }
    }

    #[test]
    fn a_revocation_without_a_node_is_left_out_and_the_others_are_read_as_they_were_written() {
        let with = |node: &str, uid: &str| proto::Revocation {
            node: node.into(),
            uid: uid.into(),
            at: 1_700_000_000,
            until: 0,
        };
        let read = revoked(vec![
            with("edge-1", ""),
            with("", ""),
            with("edge-2", "a-1"),
        ]);
        let written: Vec<_> = read.iter().map(revocation_message).collect();
        assert_eq!(written, [with("edge-1", ""), with("edge-2", "a-1")]);
    }
}
