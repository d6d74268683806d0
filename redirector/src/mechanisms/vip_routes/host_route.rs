//! The host's routes, and those that a range of VIPs would overlap. Pure.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use nix::net::if_::if_indextoname;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};

use super::{LOCAL_TABLE, PROTOCOL};

/// Shorter prefixes are default routes in disguise (VPNs use two of /1), not networks.
pub(super) const SHORTEST_NETWORK: u8 = 8;

/// The fields of a route that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostRoute {
    pub(crate) net: IpNet,
    kind: RouteType,
    table: u32,
    index: u32,
    interface: Option<String>,
    pub(super) ours: bool,
}

/// The target of one of our routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteTarget {
    /// The bridge with this index, which drops all packets.
    Sink(u32),
    /// This host, on a kernel without bridges.
    Host,
}

impl HostRoute {
    /// Whether it is the host's own, and has addresses of `range`.
    fn is_in_the_way_of(&self, range: IpNet) -> bool {
        let overlaps = self.net.contains(&range) || range.contains(&self.net);
        !self.ours && self.net.prefix_len() >= SHORTEST_NETWORK && overlaps
    }

    /// A route that forwards packets; `None` for one that refuses them, and for a default route.
    pub(super) fn of(message: &RouteMessage) -> Option<Self> {
        let header = &message.header;
        if matches!(
            header.kind,
            RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit
        ) {
            return None;
        }
        let mut destination = None;
        let mut table = u32::from(header.table);
        let mut index = 0;
        for attribute in &message.attributes {
            if let RouteAttribute::Destination(RouteAddress::Inet(v4)) = attribute {
                destination = Some(IpAddr::V4(*v4));
            } else if let RouteAttribute::Destination(RouteAddress::Inet6(v6)) = attribute {
                destination = Some(IpAddr::V6(*v6));
            } else if let RouteAttribute::Table(number) = attribute {
                table = *number;
            } else if let RouteAttribute::Oif(interface) = attribute {
                index = *interface;
            }
        }
        Some(Self {
            net: IpNet::new(destination?, header.destination_prefix_length).ok()?,
            kind: header.kind,
            table,
            index,
            interface: name_of_interface(index),
            ours: header.protocol == PROTOCOL && table == LOCAL_TABLE,
        })
    }

    /// Whether unsteered packets would reach this host's own services.
    pub(crate) fn leads_to_host(&self) -> bool {
        self.kind == RouteType::Local
    }

    /// The target, if it is one of our routes.
    pub(super) fn target(&self) -> RouteTarget {
        if self.leads_to_host() {
            RouteTarget::Host
        } else {
            RouteTarget::Sink(self.index)
        }
    }
}

impl fmt::Display for HostRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            net, kind, table, ..
        } = self;
        let interface = self.interface.as_deref().unwrap_or("no single interface");
        if *kind == RouteType::Local {
            return write!(f, "{net}, this host's own on {interface}");
        }
        write!(
            f,
            "{net}, which this host routes by {interface} (ip route show table {table})"
        )
    }
}

fn name_of_interface(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}

/// The host's own route that overlaps `range`, if any: preferably the route of an address, from
/// which the others follow.
pub(super) fn overlap(range: IpNet, routes: &[HostRoute]) -> Option<&HostRoute> {
    routes
        .iter()
        .filter(|route| route.is_in_the_way_of(range))
        .min_by_key(|route| route.kind != RouteType::Local)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanisms::vip_routes::RouteError;

    fn route(net: &str) -> HostRoute {
        let interface = Some("eth0".to_owned());
        HostRoute {
            net: net.parse().unwrap(),
            kind: RouteType::Unicast,
            table: 254,
            index: 2,
            interface,
            ours: false,
        }
    }

    fn overlapping(range: &str, routes: &[HostRoute]) -> Option<String> {
        overlap(range.parse().unwrap(), routes).map(|route| route.net.to_string())
    }

    #[test]
    fn a_range_that_the_host_uses_is_found_whichever_is_larger() {
        let routes = [
            route("10.0.0.0/16"),
            route("198.18.3.0/24"),
            route("fd00::/8"),
        ];
        assert_eq!(
            overlapping("198.18.0.0/15", &routes).as_deref(),
            Some("198.18.3.0/24")
        );
        assert_eq!(
            overlapping("10.0.128.0/17", &routes).as_deref(),
            Some("10.0.0.0/16")
        );
        assert_eq!(
            overlapping("fd12::/64", &routes).as_deref(),
            Some("fd00::/8")
        );
        assert_eq!(overlapping("172.31.0.0/16", &routes), None);
    }

    #[test]
    fn a_clash_is_told_with_its_interface_and_the_flag_of_its_family() {
        let address = HostRoute {
            kind: RouteType::Local,
            ..route("198.18.3.1/32")
        };
        let routes = [route("198.18.3.0/24"), address];
        let told = |range: &str, routes: &[HostRoute]| {
            let range: IpNet = range.parse().unwrap();
            RouteError::Overlap {
                range,
                taken: overlap(range, routes).unwrap().clone(),
            }
            .to_string()
        };
        assert_eq!(
            told("198.18.0.0/15", &routes),
            "the range of VIPs 198.18.0.0/15 overlaps 198.18.3.1/32, this host's own on eth0: \
             give the proxy another range (--vip4-range)"
        );
        assert_eq!(
            told("fd12::/64", &[route("fd00::/8")]),
            "the range of VIPs fd12::/64 overlaps fd00::/8, which this host routes by eth0 (ip \
             route show table 254): \
             give the proxy another range (--vip6-range)"
        );
    }

    #[test]
    fn default_routes_and_our_own_do_not_count() {
        let ours = HostRoute {
            ours: true,
            ..route("198.18.0.0/15")
        };
        assert_eq!(
            overlapping(
                "198.18.0.0/15",
                &[route("0.0.0.0/0"), route("128.0.0.0/1"), ours]
            ),
            None
        );
    }
}
