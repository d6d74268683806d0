//! Destinations behind nodes, such as cameras and PLCs: which lead to a node, and the reasons why
//! others do not. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use culvert_api::NodeName;

use super::addresses::{AddressState, Protected};
use super::destination::And;
use super::node::NodeSpec;

/// The state of every destination that a node has behind it. A node that has the address itself is
/// one of its owners.
pub(super) fn behind_states(
    nodes: &BTreeMap<NodeName, NodeSpec>,
    protected: &Protected,
) -> BTreeMap<SocketAddr, AddressState> {
    let mut owners: BTreeMap<SocketAddr, BTreeSet<&NodeName>> = BTreeMap::new();
    for (name, spec) in nodes {
        for destination in &spec.behind {
            owners.entry(*destination).or_default().insert(name);
        }
    }
    let mut own: BTreeMap<IpAddr, Vec<&NodeName>> = owners
        .keys()
        .map(|destination| (destination.ip(), Vec::new()))
        .collect();
    for (name, spec) in nodes {
        for address in &spec.addresses {
            own.entry(*address).and_modify(|names| names.push(name));
        }
    }
    owners
        .into_iter()
        .map(|(destination, mut names)| {
            names.extend(&own[&destination.ip()]);
            let names = names.into_iter().cloned().collect();
            (destination, protected.state(destination.ip(), names))
        })
        .collect()
}

/// The reason why a destination does not route, with all its owners; empty if it routes.
pub(super) fn reason(destination: SocketAddr, state: &AddressState) -> String {
    let owners = And(state.owners());
    match state {
        AddressState::Routed(_) => String::new(),
        AddressState::Shared(_) => {
            format!("{destination} belongs to {owners}: leave it to one of them")
        }
        AddressState::Contested { by, .. } => {
            format!("{destination} behind {owners} {}", by.contesting())
        }
        AddressState::Protected { by, .. } => format!("{destination} behind {owners} {by}"),
    }
}

#[cfg(test)]
mod tests {
    use culvert_api::Routing;

    use super::*;

    /// The states for nodes with these addresses and these destinations behind them.
    fn states(nodes: &[(&str, &[&str], &[&str])]) -> BTreeMap<String, (Routing, String)> {
        let spec = |addresses: &[&str], behind: &[&str]| NodeSpec {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            behind: behind.iter().map(|text| text.parse().unwrap()).collect(),
            ..NodeSpec::with_default_ports()
        };
        let nodes = nodes
            .iter()
            .map(|(name, addresses, behind)| (name.parse().unwrap(), spec(addresses, behind)))
            .collect();
        let protected = Protected {
            ranges: vec!["10.96.0.0/12".parse().unwrap()],
            vips: vec!["198.18.0.0/15".parse().unwrap()],
            ..Protected::default()
        };
        behind_states(&nodes, &protected)
            .into_iter()
            .map(|(destination, state)| {
                let told = (state.routing(), reason(destination, &state));
                (destination.to_string(), told)
            })
            .collect()
    }

    #[test]
    fn a_destination_of_one_node_routes_and_others_at_its_address_are_others() {
        let states = states(&[
            ("edge-1", &[], &["192.168.1.20:502"]),
            ("edge-2", &[], &["192.168.1.20:80"]),
        ]);
        let routed = (Routing::Routed, String::new());
        assert!(states.values().all(|state| *state == routed), "{states:?}");
        assert_eq!(states.len(), 2);
    }

    #[test]
    fn what_two_nodes_claim_is_refused_for_both() {
        let states = states(&[
            ("edge-1", &[], &["192.168.1.20:502", "10.0.3.8:80"]),
            ("edge-2", &["10.0.3.8"], &["192.168.1.20:502"]),
        ]);
        for destination in ["192.168.1.20:502", "10.0.3.8:80"] {
            let (routing, reason) = &states[destination];
            assert_eq!(*routing, Routing::Shared);
            assert!(
                reason.contains("belongs to edge-1 and edge-2: leave"),
                "{reason}"
            );
        }
    }

    #[test]
    fn what_the_cloud_uses_is_behind_no_node() {
        let states = states(&[("edge-1", &[], &["10.96.0.1:443", "198.18.0.2:80"])]);
        for (destination, why) in [
            ("10.96.0.1:443", "protected range"),
            ("198.18.0.2:80", "VIP"),
        ] {
            let (routing, reason) = &states[destination];
            assert_eq!(*routing, Routing::Protected);
            assert!(
                reason.contains("behind edge-1") && reason.contains(why),
                "{reason}"
            );
        }
    }
}
