//! Which addresses lead to a node, and why the others do not. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use culvert_tunnel::NodeName;
use ipnet::IpNet;

use super::destination::And;
use super::node::{NodeSpec, never_a_nodes};

/// What becomes of a connection to an address that nodes have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressState {
    /// One node has it, and nobody else.
    Routed(NodeName),
    /// Several nodes have it: refused by address.
    Shared(Vec<NodeName>),
    /// The cloud uses it too: never steered.
    Protected {
        /// The nodes that have it.
        owners: Vec<NodeName>,
        /// What else it is.
        by: Protection,
    },
}

impl AddressState {
    /// Why the address does not route, naming all who have it; empty if it routes.
    pub(crate) fn reason(&self, address: IpAddr) -> String {
        match self {
            Self::Routed(_) => String::new(),
            Self::Shared(owners) => format!("{address} belongs to {}: use their names", And(owners)),
            Self::Protected { owners, by } => format!("{address} of {} is also {by}: use the node's name", And(owners)),
        }
    }
}

/// Why an address is the cloud's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// An interface of the proxy's host has it.
    ProxyHost,
    /// The operator protects the range.
    Range(IpNet),
    /// A cloud node has it.
    CloudNode(NodeName),
    /// It is a kind of address that every host uses for itself.
    Everyones(&'static str),
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProxyHost => f.write_str("an address of this proxy's host"),
            Self::Range(range) => write!(f, "in the protected range {range}"),
            Self::CloudNode(node) => write!(f, "the address of the cloud node {node}"),
            Self::Everyones(what) => f.write_str(what),
        }
    }
}

/// Addresses that never route, whichever node claims them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Protected {
    /// `--protect`.
    pub(crate) ranges: Vec<IpNet>,
    /// Addresses of the interfaces of the proxy's host.
    pub(crate) host: BTreeSet<IpAddr>,
    /// Addresses of the cluster's cloud nodes.
    pub(crate) clouds: BTreeMap<IpAddr, NodeName>,
}

impl Protected {
    fn by(&self, address: IpAddr) -> Option<Protection> {
        if let Some(what) = never_a_nodes(address) {
            return Some(Protection::Everyones(what));
        }
        if let Some(node) = self.clouds.get(&address) {
            return Some(Protection::CloudNode(node.clone()));
        }
        if self.host.contains(&address) {
            return Some(Protection::ProxyHost);
        }
        self.ranges.iter().find(|range| range.contains(&address)).map(|range| Protection::Range(*range))
    }
}

/// The state of every address that a node has.
pub(crate) fn address_states(
    nodes: &BTreeMap<NodeName, NodeSpec>,
    protected: &Protected,
) -> BTreeMap<IpAddr, AddressState> {
    let mut owners: BTreeMap<IpAddr, Vec<NodeName>> = BTreeMap::new();
    for (name, spec) in nodes {
        for address in &spec.addresses {
            owners.entry(*address).or_default().push(name.clone());
        }
    }
    owners.into_iter().map(|(address, owners)| (address, state(owners, protected.by(address)))).collect()
}

fn state(mut owners: Vec<NodeName>, protection: Option<Protection>) -> AddressState {
    match (protection, owners.len()) {
        (Some(by), _) => AddressState::Protected { owners, by },
        (None, 1) => AddressState::Routed(owners.remove(0)),
        (None, _) => AddressState::Shared(owners),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(nodes: &[(&str, &[&str])], protected: &Protected) -> BTreeMap<IpAddr, AddressState> {
        let node = |(name, addresses): &(&str, &[&str])| {
            let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
            (name.parse().unwrap(), NodeSpec { addresses, ports: vec![9100], zone: None })
        };
        address_states(&nodes.iter().map(node).collect(), protected)
    }

    fn reason(states: &BTreeMap<IpAddr, AddressState>, address: &str) -> String {
        let address = address.parse().unwrap();
        states[&address].reason(address)
    }

    #[test]
    fn an_address_of_one_node_routes() {
        let states = states(&[("edge-1", &["10.0.3.7", "fd00::7"]), ("edge-2", &[])], &Protected::default());
        assert_eq!(states.len(), 2);
        assert!(states.values().all(|state| *state == AddressState::Routed("edge-1".parse().unwrap())));
        assert_eq!(reason(&states, "10.0.3.7"), "");
    }

    #[test]
    fn an_address_of_two_nodes_is_shared_and_names_both() {
        let states = states(&[("edge-3", &["192.168.1.10"]), ("edge-2", &["192.168.1.10"])], &Protected::default());
        assert_eq!(reason(&states, "192.168.1.10"), "192.168.1.10 belongs to edge-2 and edge-3: use their names");
    }

    #[test]
    fn an_address_of_the_cloud_never_routes_and_names_both_owners() {
        let protected = Protected {
            ranges: vec!["10.96.0.0/12".parse().unwrap()],
            host: ["10.0.0.1".parse().unwrap()].into(),
            clouds: [("10.0.0.2".parse().unwrap(), "master-1".parse().unwrap())].into(),
        };
        let states = states(&[("edge-1", &["10.96.0.1", "10.0.0.1", "10.0.0.2", "10.0.3.7"])], &protected);
        assert_eq!(
            reason(&states, "10.0.0.2"),
            "10.0.0.2 of edge-1 is also the address of the cloud node master-1: use the node's name"
        );
        assert_eq!(
            reason(&states, "10.96.0.1"),
            "10.96.0.1 of edge-1 is also in the protected range 10.96.0.0/12: use the node's name"
        );
        assert_eq!(
            reason(&states, "10.0.0.1"),
            "10.0.0.1 of edge-1 is also an address of this proxy's host: use the node's name"
        );
        assert_eq!(reason(&states, "10.0.3.7"), "");
    }

    #[test]
    fn a_protected_address_stays_protected_when_it_is_shared_too() {
        let protected = Protected { ranges: vec!["192.168.1.0/24".parse().unwrap()], ..Protected::default() };
        let states = states(&[("a", &["192.168.1.10"]), ("b", &["192.168.1.10"])], &protected);
        assert!(reason(&states, "192.168.1.10").contains("of a and b is also in the protected range"));
    }
}
