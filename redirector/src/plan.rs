//! The plan: what is to be steered, worked out from the directory. Pure: kernel maps, nftables and
//! `explain` all follow this one plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use culvert_api::Routing;
use culvert_redirector_common::names::DESTINATIONS_MAX;
use culvert_redirector_common::{DestinationKey, DestinationValue, Endpoint};

use crate::directory::{Directory, Node, Ranges};

/// A destination whose connections are steered to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Destination {
    /// One port of an edge address, or of a device behind a node.
    Edge(SocketAddr),
    /// All ports of a VIP.
    Vip(IpAddr),
}

/// Whether the node has a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// It has a tunnel, or its state is not known.
    Online,
    /// It has no tunnel.
    Offline,
}

/// Everything that is steered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) ranges: Ranges,
    /// At most as many as fit into the hooks' map.
    pub(crate) destinations: BTreeMap<Destination, Liveness>,
    /// Ports of edge addresses that exceed that capacity: only nftables can steer them.
    pub(crate) nftables_only: BTreeSet<SocketAddr>,
}

/// Whether the directory's view of tunnels is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The proxy streams it.
    Live,
    /// It is from disk or from before the proxy went away: every node counts as online.
    Stale,
}

/// What is steered for `directory`. An address of several nodes is steered too: the proxy refuses
/// it and names them.
pub(crate) fn plan(directory: &Directory, freshness: Freshness) -> Plan {
    let mut destinations = BTreeMap::new();
    for node in directory.nodes.values() {
        let liveness = liveness(node, freshness);
        for vip in node
            .vip4
            .map(IpAddr::V4)
            .into_iter()
            .chain(node.vip6.map(IpAddr::V6))
        {
            destinations.insert(Destination::Vip(vip), liveness);
        }
        for address in &node.addresses {
            let liveness = match address.routing {
                Routing::Routed => liveness,
                Routing::Shared => Liveness::Online,
                Routing::Protected => continue,
            };
            for port in &node.ports {
                destinations.insert(
                    Destination::Edge(SocketAddr::new(address.ip, *port)),
                    liveness,
                );
            }
        }
    }
    // After the addresses: what another node has behind it may be a port of an address too.
    for node in directory.nodes.values() {
        for behind in &node.behind {
            let liveness = match behind.routing {
                Routing::Routed => liveness(node, freshness),
                Routing::Shared => Liveness::Online,
                Routing::Protected => continue,
            };
            destinations.insert(Destination::Edge(behind.destination), liveness);
        }
    }
    let nftables_only = remove_excess(&mut destinations);
    Plan {
        ranges: directory.ranges,
        destinations,
        nftables_only,
    }
}

fn liveness(node: &Node, freshness: Freshness) -> Liveness {
    match freshness {
        Freshness::Live if !node.online => Liveness::Offline,
        Freshness::Live | Freshness::Stale => Liveness::Online,
    }
}

/// Removes the destinations that exceed the capacity of the hooks' map, VIPs first, and returns the
/// edge addresses among them. A VIP without an entry is still
/// steered by its range; it is only never refused as offline.
fn remove_excess(destinations: &mut BTreeMap<Destination, Liveness>) -> BTreeSet<SocketAddr> {
    let Some(first) = destinations.keys().nth(DESTINATIONS_MAX).copied() else {
        return BTreeSet::new();
    };
    let mut excess = BTreeSet::new();
    for destination in destinations.split_off(&first).into_keys() {
        if let Destination::Edge(address) = destination {
            excess.insert(address);
        }
    }
    excess
}

impl Destination {
    pub(crate) fn ip(self) -> IpAddr {
        match self {
            Self::Vip(ip) => ip,
            Self::Edge(address) => address.ip(),
        }
    }

    /// Its key in the kernel's map.
    pub(crate) fn key(self) -> DestinationKey {
        match self {
            Self::Edge(address) => DestinationKey::exact(Endpoint::from(address)),
            Self::Vip(ip) => DestinationKey::vip(ip.into()),
        }
    }

    /// The destination of a key in the kernel's map.
    pub(crate) fn of_key(key: &DestinationKey) -> Self {
        match u16::from_be(key.port) {
            0 => Self::Vip(key.addr.ip()),
            port => Self::Edge(SocketAddr::new(key.addr.ip(), port)),
        }
    }
}

impl Liveness {
    /// Its value in the kernel's map.
    pub(crate) fn value(self) -> DestinationValue {
        match self {
            Self::Online => DestinationValue::ONLINE_VALUE,
            Self::Offline => DestinationValue::OFFLINE_VALUE,
        }
    }

    /// The liveness of a value in the kernel's map.
    pub(crate) fn of_value(value: DestinationValue) -> Self {
        if value.is_offline() {
            Self::Offline
        } else {
            Self::Online
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge(address) => write!(f, "{address}"),
            Self::Vip(ip) => write!(f, "{ip}"),
        }
    }
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Online => "online",
            Self::Offline => "offline",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::directory::{Behind, examples};

    fn planned(freshness: Freshness) -> Plan {
        plan(&examples::directory(), freshness)
    }

    fn edge(text: &str) -> Destination {
        Destination::Edge(text.parse().unwrap())
    }

    fn vip(text: &str) -> Destination {
        Destination::Vip(text.parse().unwrap())
    }

    #[test]
    fn a_routed_address_is_steered_on_its_ports_and_a_vip_on_all() {
        let plan = planned(Freshness::Live);
        for steered in ["10.0.3.7:9100", "10.0.3.7:10250", "[fd00::7]:9100"] {
            assert_eq!(
                plan.destinations.get(&edge(steered)),
                Some(&Liveness::Online),
                "{steered}"
            );
        }
        assert_eq!(plan.destinations.get(&edge("10.0.3.7:22")), None);
        assert_eq!(
            plan.destinations.get(&vip("198.18.0.1")),
            Some(&Liveness::Online)
        );
    }

    #[test]
    fn what_is_behind_a_node_is_steered_by_its_port_alone() {
        let mut directory = examples::directory();
        let behind = |destination: &str, routing| Behind {
            destination: destination.parse().unwrap(),
            routing,
            reason: String::new(),
        };
        let offline = directory.nodes.values_mut().find(|node| !node.online);
        offline.unwrap().behind = vec![
            behind("192.168.1.20:502", Routing::Routed),
            behind("192.168.1.21:502", Routing::Shared),
            behind("10.0.3.7:9100", Routing::Shared),
            behind("10.96.0.1:443", Routing::Protected),
        ];
        let destinations = plan(&directory, Freshness::Live).destinations;
        let of = |text: &str| destinations.get(&edge(text));
        assert_eq!(of("192.168.1.20:502"), Some(&Liveness::Offline));
        assert_eq!(of("192.168.1.20:9100"), None);
        for refused_by_the_proxy in ["192.168.1.21:502", "10.0.3.7:9100"] {
            assert_eq!(of(refused_by_the_proxy), Some(&Liveness::Online));
        }
        assert_eq!(of("10.96.0.1:443"), None);
    }

    #[test]
    fn a_shared_address_is_steered_and_never_called_offline() {
        assert_eq!(
            planned(Freshness::Live).destinations[&edge("192.168.1.10:9100")],
            Liveness::Online
        );
    }

    #[test]
    fn a_protected_address_is_left_alone_and_its_node_keeps_its_vip() {
        let plan = planned(Freshness::Live);
        assert!(!plan.destinations.contains_key(&edge("10.0.0.1:9100")));
        assert!(plan.destinations.contains_key(&vip("198.18.0.4")));
    }

    #[test]
    fn a_node_without_tunnel_is_offline_only_on_the_proxys_present_word() {
        assert_eq!(
            planned(Freshness::Live).destinations[&vip("198.18.0.3")],
            Liveness::Offline
        );
        assert_eq!(
            planned(Freshness::Stale).destinations[&vip("198.18.0.3")],
            Liveness::Online
        );
    }

    #[test]
    fn keys_and_values_go_to_the_kernel_and_back() {
        for destination in [
            edge("10.0.3.7:9100"),
            edge("[fd00::7]:9100"),
            vip("198.18.0.1"),
            vip("fd00::1"),
        ] {
            assert_eq!(Destination::of_key(&destination.key()), destination);
        }
        for liveness in [Liveness::Online, Liveness::Offline] {
            assert_eq!(Liveness::of_value(liveness.value()), liveness);
        }
    }

    #[test]
    fn what_the_hooks_have_no_room_for_is_left_to_nftables() {
        let directory = directory_with(16, u16::MAX);
        let plan = plan(&directory, Freshness::Live);
        assert_eq!(plan.destinations.len(), DESTINATIONS_MAX);
        // VIPs need no entry.
        assert_eq!(
            plan.destinations.len() + plan.nftables_only.len(),
            16 * usize::from(u16::MAX)
        );
        assert!(
            plan.nftables_only
                .iter()
                .all(|excess| !plan.destinations.contains_key(&Destination::Edge(*excess)))
        );
    }

    #[test]
    fn a_full_table_has_every_edge_address_before_the_first_vip() {
        let room = u16::try_from(DESTINATIONS_MAX / 16).unwrap();
        let plan = plan(&directory_with(16, room), Freshness::Live);
        assert_eq!(plan.destinations.len(), DESTINATIONS_MAX);
        assert!(plan.nftables_only.is_empty());
    }

    /// The example with as many edge addresses in all, each with the ports up to that one.
    fn directory_with(addresses: u8, ports: u16) -> Directory {
        let mut directory = examples::directory();
        let node = directory.nodes[&"edge-2".parse().unwrap()].clone();
        // The example has 10.0.3.7, fd00::7 and 192.168.1.10.
        for number in 3..addresses {
            let mut another = node.clone();
            another.addresses[0].ip = Ipv4Addr::new(10, 64, 0, number).into();
            let name = format!("another-{number}");
            directory.nodes.insert(name.parse().unwrap(), another);
        }
        for node in directory.nodes.values_mut() {
            node.ports = (1..=ports).collect();
        }
        directory
    }
}
