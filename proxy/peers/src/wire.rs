//! Proxies, revocations and nodes in the messages of proxies. What another proxy says is checked here.

use std::collections::BTreeMap;
use std::str::FromStr;

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

/// Why the directory of another proxy is not applied.
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

/// A revocation as other proxies receive it.
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
pub(super) fn revoked(messages: Vec<proto::Revocation>) -> Vec<Revoked> {
    let mut revoked = Vec::new();
    for message in messages.into_iter().take(MAX_REVOKED) {
        revoked.extend(revocation(&message));
    }
    revoked
}

fn revocation(message: &proto::Revocation) -> Option<Revoked> {
    let mut uid = None;
    if !message.uid.is_empty() {
        uid = Some(message.uid.parse().ok()?);
    }
    Some(Revoked {
        node: message.node.parse().ok()?,
        uid,
        at: UnixTime::from_seconds(message.at),
        until: UnixTime::from_seconds(message.until),
    })
}

/// The directory as followers get it.
pub(super) fn directory_message(facts: &Facts) -> proto::Directory {
    let mut nodes = Vec::new();
    for (name, (spec, host_part)) in &facts.nodes {
        nodes.push(node_message(name, spec, *host_part));
    }
    proto::Directory {
        vip4_range: facts.ranges.vip4.to_string(),
        vip6_range: facts.ranges.vip6.to_string(),
        nodes,
    }
}

fn node_message(name: &NodeName, spec: &NodeSpec, host_part: u32) -> proto::Node {
    let zone = spec.zone.as_ref();
    proto::Node {
        name: name.to_string(),
        addresses: spec.addresses.iter().map(ToString::to_string).collect(),
        ports: spec.ports.iter().copied().map(u32::from).collect(),
        zone: zone.map(ToString::to_string).unwrap_or_default(),
        host_part,
        behind: spec.behind.iter().map(ToString::to_string).collect(),
    }
}

/// The directory of the primary.
pub(super) fn facts(directory: proto::Directory) -> Result<Facts, BadDirectory> {
    let ranges = VipRanges {
        vip4: range(&directory.vip4_range)?,
        vip6: range(&directory.vip6_range)?,
    };
    let mut nodes = BTreeMap::new();
    for node in directory.nodes {
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

fn range<T: FromStr>(text: &str) -> Result<T, BadDirectory> {
    text.parse()
        .map_err(|_| BadDirectory::Range(shortened(text)))
}

fn spec(name: &NodeName, node: &proto::Node) -> Result<NodeSpec, BadDirectory> {
    let mut spec = NodeSpec::default();
    for text in node.addresses.iter().take(MAX_ADDRESSES) {
        spec.addresses.push(property(name, "an address", text)?);
    }
    for port in node.ports.iter().take(MAX_PORTS) {
        spec.ports
            .push(property(name, "a port", &port.to_string())?);
    }
    if !node.zone.is_empty() {
        spec.zone = Some(property(name, "the zone", &node.zone)?);
    }
    for text in node.behind.iter().take(MAX_BEHIND) {
        spec.behind.push(property(name, "a destination", text)?);
    }
    Ok(spec)
}

/// One property of the node `name`.
fn property<T: FromStr>(
    name: &NodeName,
    what: &'static str,
    text: &str,
) -> Result<T, BadDirectory> {
    text.parse().map_err(|_| BadDirectory::Property {
        node: name.clone(),
        what,
        text: shortened(text),
    })
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> proto::Directory {
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
        let facts = facts(sample()).unwrap();
        assert_eq!(directory_message(&facts), sample());
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
            let mut told = sample();
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
