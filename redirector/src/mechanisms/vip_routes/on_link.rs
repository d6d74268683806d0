//! Networks whose hosts an interface reaches without a gateway. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};

use super::SINK;
use super::host_route::SHORTEST_NETWORK;

/// A route without a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OnLink {
    net: IpNet,
    index: u32,
    /// The kernel made it, with an address of the interface.
    is_of_address: bool,
}

/// The networks that routes of the main table lead to directly, each with its interface. Behind the
/// other end of a point-to-point interface is no neighbour of this host, so there only routes count
/// that come with an address.
pub(super) fn on_link_networks(
    routes: &[RouteMessage],
    links: &[LinkMessage],
) -> Vec<(IpNet, String)> {
    let mut networks = Vec::new();
    for route in routes.iter().filter_map(OnLink::of) {
        let link = links.iter().find(|link| link.header.index == route.index);
        if let Some(link) = link
            && let Some(name) = name(link)
            && name != SINK
            && route.has_neighbours_on(link)
        {
            networks.push((route.net, name.to_owned()));
        }
    }
    networks
}

impl OnLink {
    /// `None` for a route with a gateway or several next hosts, one that refuses packets, one of
    /// another table, and a default route.
    fn of(message: &RouteMessage) -> Option<Self> {
        let header = &message.header;
        if header.kind != RouteType::Unicast
            || header.table != RouteHeader::RT_TABLE_MAIN
            || header.destination_prefix_length < SHORTEST_NETWORK
        {
            return None;
        }
        let mut destination = None;
        let mut index = None;
        for attribute in &message.attributes {
            if let RouteAttribute::Destination(RouteAddress::Inet(v4)) = attribute {
                destination = Some(IpAddr::V4(*v4));
            } else if let RouteAttribute::Destination(RouteAddress::Inet6(v6)) = attribute {
                destination = Some(IpAddr::V6(*v6));
            } else if let RouteAttribute::Oif(interface) = attribute {
                index = Some(*interface);
            } else if matches!(
                attribute,
                RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_)
            ) {
                return None;
            }
        }
        Some(Self {
            net: IpNet::new(destination?, header.destination_prefix_length).ok()?,
            index: index?,
            is_of_address: header.protocol == RouteProtocol::Kernel,
        })
    }

    fn has_neighbours_on(self, link: &LinkMessage) -> bool {
        let flags = link.header.flags;
        let has_one_other_end = flags.contains(LinkFlags::Pointopoint);
        flags.contains(LinkFlags::Up)
            && !flags.contains(LinkFlags::Loopback)
            && (self.is_of_address || !has_one_other_end)
    }
}

fn name(link: &LinkMessage) -> Option<&str> {
    for attribute in &link.attributes {
        if let LinkAttribute::IfName(name) = attribute {
            return Some(name);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(net: &str, index: u32, protocol: RouteProtocol) -> RouteMessage {
        let net: IpNet = net.parse().unwrap();
        let address = match net.addr() {
            IpAddr::V4(v4) => RouteAddress::Inet(v4),
            IpAddr::V6(v6) => RouteAddress::Inet6(v6),
        };
        let mut message = RouteMessage::default();
        message.header.kind = RouteType::Unicast;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = protocol;
        message.header.destination_prefix_length = net.prefix_len();
        message.attributes = vec![
            RouteAttribute::Destination(address),
            RouteAttribute::Oif(index),
        ];
        message
    }

    fn link(index: u32, name: &str, flags: LinkFlags) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = flags;
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        message
    }

    fn found(route: RouteMessage) -> Option<String> {
        let links = [
            link(1, "lo", LinkFlags::Up | LinkFlags::Loopback),
            link(2, "pod1", LinkFlags::Up),
            link(3, "wg0", LinkFlags::Up | LinkFlags::Pointopoint),
            link(4, "off0", LinkFlags::empty()),
            link(5, SINK, LinkFlags::Up),
        ];
        let networks = on_link_networks(&[route], &links);
        networks.first().map(|(net, name)| format!("{net} {name}"))
    }

    #[test]
    fn routes_without_a_gateway_lead_to_neighbours() {
        let pod = route("10.0.3.7/32", 2, RouteProtocol::Boot);
        assert_eq!(found(pod).as_deref(), Some("10.0.3.7/32 pod1"));
        let six = route("fd00::/64", 2, RouteProtocol::Static);
        assert_eq!(found(six).as_deref(), Some("fd00::/64 pod1"));
        let own = route("10.8.0.0/24", 3, RouteProtocol::Kernel);
        assert_eq!(found(own).as_deref(), Some("10.8.0.0/24 wg0"));
    }

    #[test]
    fn other_routes_do_not() {
        let mut by_gateway = route("10.0.3.0/24", 2, RouteProtocol::Boot);
        let gateway = RouteAddress::Inet("10.9.0.2".parse().unwrap());
        by_gateway.attributes.push(RouteAttribute::Gateway(gateway));
        let mut refusing = route("10.0.3.0/24", 2, RouteProtocol::Boot);
        refusing.header.kind = RouteType::Unreachable;
        let mut of_another_table = route("10.0.3.0/24", 2, RouteProtocol::Boot);
        of_another_table.header.table = 7;
        for other in [
            by_gateway,
            refusing,
            of_another_table,
            route("10.0.0.0/7", 2, RouteProtocol::Boot),
            route("10.0.3.0/24", 1, RouteProtocol::Boot),
            route("10.0.3.0/24", 3, RouteProtocol::Boot),
            route("10.0.3.0/24", 4, RouteProtocol::Boot),
            route("198.18.0.0/15", 5, RouteProtocol::Boot),
            route("10.0.3.0/24", 6, RouteProtocol::Boot),
        ] {
            let text = format!("{other:?}");
            assert_eq!(found(other), None, "{text}");
        }
    }
}
