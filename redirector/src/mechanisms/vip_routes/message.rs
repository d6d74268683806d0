//! One of our routes as an rtnetlink message. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{RouteMessage, RouteScope, RouteType};

use super::host_route::RouteTarget;
use super::{LOCAL_TABLE, PROTOCOL};
use crate::config::NodeIps;

/// `lo` is the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// `NET dev culvert0 table local proto 77 src NODE`, or `local NET dev lo ...`. It is in the table
/// of local addresses, which the kernel asks first, so a default route of another table never takes
/// a VIP.
pub(super) fn message(net: IpNet, node: NodeIps, target: RouteTarget) -> RouteMessage {
    let (interface, kind, scope) = match target {
        RouteTarget::Sink(index) => (index, RouteType::Unicast, RouteScope::Link),
        RouteTarget::Host => (LOOPBACK, RouteType::Local, RouteScope::Host),
    };
    match net {
        IpNet::V4(net) => {
            let builder = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .output_interface(interface)
                .table_id(LOCAL_TABLE)
                .kind(kind)
                .scope(scope)
                .protocol(PROTOCOL);
            match node.v4 {
                Some(source) => builder.pref_source(source).build(),
                None => builder.build(),
            }
        }
        IpNet::V6(net) => {
            let builder = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .output_interface(interface)
                .table_id(LOCAL_TABLE)
                .kind(kind)
                .protocol(PROTOCOL);
            match node.v6 {
                Some(source) => builder.pref_source(source).build(),
                None => builder.build(),
            }
        }
    }
}
