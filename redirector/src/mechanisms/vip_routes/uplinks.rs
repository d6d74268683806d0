//! Finds the interfaces that lead to other hosts, not to pods of this one. Pure.
//!
//! Pods' interfaces come and go, and a pod's first connection has to be steered; so the rules name
//! the other interfaces, which stay. A pod's packets come in by the host's end of a veth pair or
//! netkit, by the bridge that those are ports of, or by a port of Open vSwitch. Everything else
//! leads out: network cards, VLANs and bonds on them, tunnels. So does a bridge that such an
//! interface is a port of, and whatever has a default route by another host's gateway, as a
//! container's only interface has.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};

/// A kind of interface that the rtnetlink crate has no name for.
const OPEN_VSWITCH: &str = "openvswitch";

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    index: u32,
    name: String,
    /// The bridge or bond that it is a port of.
    controller: Option<u32>,
    kind: InterfaceKind,
}

/// What an interface leads to, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InterfaceKind {
    Loopback,
    Bridge,
    Pods,
    Others,
}

/// This host's interfaces and routes.
#[derive(Debug)]
pub(super) struct HostNetwork {
    pub(super) interfaces: Vec<Interface>,
    pub(super) routes: Vec<RouteMessage>,
}

impl Interface {
    pub(super) fn of(message: &LinkMessage) -> Self {
        let loopback = message.header.flags.contains(LinkFlags::Loopback);
        let kind = if loopback {
            InterfaceKind::Loopback
        } else {
            InterfaceKind::Others
        };
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            controller: None,
            kind,
        };
        for attribute in &message.attributes {
            if let LinkAttribute::IfName(name) = attribute {
                link.name.clone_from(name);
            } else if let LinkAttribute::Controller(controller) = attribute {
                link.controller = Some(*controller);
            } else if let LinkAttribute::LinkInfo(infos) = attribute {
                link.kind = infos.iter().find_map(kind_of).unwrap_or(link.kind);
            }
        }
        link
    }
}

fn kind_of(info: &LinkInfo) -> Option<InterfaceKind> {
    let LinkInfo::Kind(kind) = info else {
        return None;
    };
    let has_pods =
        matches!(kind, InfoKind::Veth | InfoKind::Netkit) || kind.to_string() == OPEN_VSWITCH;
    if has_pods {
        Some(InterfaceKind::Pods)
    } else if *kind == InfoKind::Bridge {
        Some(InterfaceKind::Bridge)
    } else {
        None
    }
}

impl HostNetwork {
    /// The names of the interfaces that lead to other hosts.
    pub(super) fn uplinks(&self) -> BTreeSet<String> {
        let leading_out = self.leading_out();
        leading_out.map(|link| link.name.clone()).collect()
    }

    /// The names of the bridges among them.
    pub(super) fn outer_bridges(&self) -> Vec<String> {
        self.leading_out()
            .filter(|link| link.kind == InterfaceKind::Bridge)
            .map(|link| link.name.clone())
            .collect()
    }

    fn leading_out(&self) -> impl Iterator<Item = &Interface> {
        let with_default_route = self.interfaces_of_default_routes();
        self.interfaces
            .iter()
            .filter(move |link| self.leads_out(link, &with_default_route))
    }

    fn leads_out(&self, link: &Interface, with_default_route: &BTreeSet<u32>) -> bool {
        match link.kind {
            InterfaceKind::Loopback => false,
            InterfaceKind::Others => true,
            InterfaceKind::Pods => with_default_route.contains(&link.index),
            InterfaceKind::Bridge => {
                with_default_route.contains(&link.index) || self.has_a_port_that_leads_out(link)
            }
        }
    }

    fn has_a_port_that_leads_out(&self, bridge: &Interface) -> bool {
        self.interfaces
            .iter()
            .any(|link| link.controller == Some(bridge.index) && link.kind == InterfaceKind::Others)
    }

    fn interfaces_of_default_routes(&self) -> BTreeSet<u32> {
        let own = self.own_addresses();
        let mut interfaces = BTreeSet::new();
        for route in &self.routes {
            if route.header.destination_prefix_length != 0 {
                continue;
            }
            for hop in hops(&route.attributes) {
                if !own.contains(&hop.gateway) {
                    interfaces.insert(hop.interface);
                }
            }
        }
        interfaces
    }

    /// Cilium's routes have such gateways.
    fn own_addresses(&self) -> BTreeSet<IpAddr> {
        let mut addresses = BTreeSet::new();
        for route in &self.routes {
            if route.header.kind != RouteType::Local {
                continue;
            }
            for attribute in &route.attributes {
                if let RouteAttribute::Destination(address) = attribute {
                    addresses.extend(ip(address));
                }
            }
        }
        addresses
    }
}

/// The next host of a route.
struct Hop {
    interface: u32,
    gateway: IpAddr,
}

fn hops(attributes: &[RouteAttribute]) -> Vec<Hop> {
    let mut interface = None;
    let mut gateway = None;
    let mut found = Vec::new();
    for attribute in attributes {
        if let RouteAttribute::Oif(index) = attribute {
            interface = Some(*index);
        } else if let Some(found) = gateway_of(attribute) {
            gateway = Some(found);
        } else if let RouteAttribute::MultiPath(paths) = attribute {
            for path in paths {
                let gateways = path.attributes.iter().filter_map(gateway_of);
                for gateway in gateways {
                    found.push(Hop {
                        interface: path.interface_index,
                        gateway,
                    });
                }
            }
        }
    }
    if let Some(interface) = interface
        && let Some(gateway) = gateway
    {
        found.push(Hop { interface, gateway });
    }
    found
}

fn gateway_of(attribute: &RouteAttribute) -> Option<IpAddr> {
    if let RouteAttribute::Gateway(address) = attribute {
        ip(address)
    } else {
        None
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(v4) = address {
        return Some(IpAddr::V4(*v4));
    }
    if let RouteAddress::Inet6(v6) = address {
        Some(IpAddr::V6(*v6))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rtnetlink::RouteMessageBuilder;

    use super::*;

    fn link(index: u32, name: &str, kind: InterfaceKind) -> Interface {
        Interface {
            index,
            name: name.to_owned(),
            controller: None,
            kind,
        }
    }

    fn port(of: u32, link: Interface) -> Interface {
        Interface {
            controller: Some(of),
            ..link
        }
    }

    fn default_route(interface: u32, gateway: &str) -> RouteMessage {
        let builder = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(interface);
        builder.gateway(gateway.parse().unwrap()).build()
    }

    fn address(ip: &str) -> RouteMessage {
        let builder = RouteMessageBuilder::<Ipv4Addr>::new().kind(RouteType::Local);
        builder.destination_prefix(ip.parse().unwrap(), 32).build()
    }

    fn uplinks(links: Vec<Interface>, routes: Vec<RouteMessage>) -> Vec<String> {
        HostNetwork {
            interfaces: links,
            routes,
        }
        .uplinks()
        .into_iter()
        .collect()
    }

    #[test]
    fn cards_and_tunnels_lead_out_and_what_pods_are_behind_does_not() {
        let links = vec![
            link(1, "lo", InterfaceKind::Loopback),
            link(2, "eth0", InterfaceKind::Others),
            link(3, "eth1", InterfaceKind::Others),
            link(4, "flannel.1", InterfaceKind::Others),
            link(5, "cni0", InterfaceKind::Bridge),
            port(5, link(6, "veth0", InterfaceKind::Pods)),
            link(7, "cali0", InterfaceKind::Pods),
        ];
        assert_eq!(
            uplinks(links, vec![default_route(2, "10.9.0.2")]),
            ["eth0", "eth1", "flannel.1"]
        );
    }

    #[test]
    fn a_bridge_with_a_card_leads_out_and_so_does_a_veth_with_the_default_route() {
        let bridged = vec![
            link(2, "br0", InterfaceKind::Bridge),
            port(2, link(3, "eth0", InterfaceKind::Others)),
        ];
        let network = HostNetwork {
            interfaces: bridged.clone(),
            routes: Vec::new(),
        };
        assert_eq!(network.outer_bridges(), ["br0"]);
        assert_eq!(uplinks(bridged, Vec::new()), ["br0", "eth0"]);
        let container = vec![
            link(2, "eth0", InterfaceKind::Pods),
            link(3, "cali0", InterfaceKind::Pods),
        ];
        assert_eq!(
            uplinks(container, vec![default_route(2, "172.18.0.1")]),
            ["eth0"]
        );
    }

    #[test]
    fn a_default_route_by_an_address_of_this_host_leads_to_pods_still() {
        let links = vec![link(2, "cilium_host", InterfaceKind::Pods)];
        let routes = vec![default_route(2, "10.0.0.95"), address("10.0.0.95")];
        assert_eq!(uplinks(links, routes), [""; 0]);
    }
}
