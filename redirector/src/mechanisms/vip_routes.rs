//! A route for each VIP range, so that a connection to a VIP never leaves the host and reaches none
//! of its own services: with all mechanisms gone it fails within seconds.
//!
//! The routes lead to a bridge without ports, which drops what comes. It answers no ARP request
//! either, so that after three of them the kernel says "no route to host". Not `unreachable`
//! routes: those fail in `connect()`, before nftables could steer. Not `local` ones: they make the
//! range addresses of this host, for every service that listens on all, and for ARP on every
//! interface.

mod uplinks;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::TryStreamExt;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nix::net::if_::if_indextoname;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, RouteMessageBuilder, new_connection};
use tokio::task::JoinSet;

use crate::config::NodeIps;
use crate::directory::Ranges;
use uplinks::{Link, Network};

/// The bridge that the routes lead to.
pub(crate) const SINK: &str = "culvert0";
/// As the loopback interface has it, less one, which is the longest that a bridge takes: packets
/// that nftables steers leave by the loopback interface, but their sockets have asked the route to
/// the VIP.
const SINK_MTU: u32 = 65_535;
/// Who made a route, as rtnetlink(7) counts; 77 is nobody else's in iproute2's rt_protos.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(77);
/// The table of local addresses.
const LOCAL_TABLE: u32 = 255;
/// `lo` is the first interface of every network namespace.
const LOOPBACK: u32 = 1;
/// Shorter prefixes are default routes in disguise (VPNs use two of /1), not networks.
const SHORTEST_NETWORK: u8 = 8;

/// Speaks to the kernel's routing tables.
pub(crate) struct Routes {
    handle: Handle,
    /// This kernel makes no bridges.
    no_sink: AtomicBool,
    /// Owns the task that moves the messages.
    _connection: JoinSet<()>,
}

/// A route, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostRoute {
    pub(crate) net: IpNet,
    kind: RouteType,
    table: u32,
    index: u32,
    interface: Option<String>,
    ours: bool,
}

/// Where a route of ours leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Towards {
    /// The bridge with this index, which drops all.
    Sink(u32),
    /// This host, where the kernel makes no bridge.
    Host,
}

/// A route that cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    #[error("open a netlink socket")]
    Open(#[source] std::io::Error),
    #[error("read the routes")]
    Read(#[source] rtnetlink::Error),
    #[error("make the route to {net}; needs root, or CAP_NET_ADMIN")]
    Make {
        net: IpNet,
        source: rtnetlink::Error,
    },
    #[error("read the network interfaces")]
    ReadLinks(#[source] rtnetlink::Error),
    #[error("make the interface {SINK}; needs root, or CAP_NET_ADMIN")]
    MakeSink(#[source] rtnetlink::Error),
    #[error(
        "the interface {SINK} is there, and is no bridge of culvert-redirector: give it another \
         name"
    )]
    ForeignSink,
    #[error("remove the interface {SINK}")]
    RemoveSink(#[source] rtnetlink::Error),
    #[error("remove the route to {net}")]
    Remove {
        net: IpNet,
        source: rtnetlink::Error,
    },
    #[error(
        "the range of VIPs {range} overlaps {taken}: give the proxy another range ({})",
        flag(*range)
    )]
    Overlap { range: IpNet, taken: HostRoute },
}

impl Routes {
    pub(crate) fn open() -> Result<Self, RouteError> {
        let (connection, handle, _messages) = new_connection().map_err(RouteError::Open)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        Ok(Self {
            handle,
            no_sink: AtomicBool::new(false),
            _connection: tasks,
        })
    }

    /// Makes our routes those of `ranges`, unless the host uses the ranges itself. The source
    /// address of connections to a VIP is then `node`'s; without one the VIP itself would be taken.
    pub(crate) async fn apply(&self, ranges: Ranges, node: NodeIps) -> Result<(), RouteError> {
        let routes = self.list().await?;
        let wanted = wanted(ranges);
        for range in &wanted {
            if let Some(taken) = overlap(*range, &routes) {
                return Err(RouteError::Overlap {
                    range: *range,
                    taken: taken.clone(),
                });
            }
        }
        let towards = if wanted.is_empty() {
            Towards::Host
        } else {
            self.towards().await?
        };
        for net in &wanted {
            let made = self
                .handle
                .route()
                .add(message(*net, node, towards))
                .replace()
                .execute()
                .await;
            if let Err(source) = made
                && !may_be_absent(*net, node)
            {
                return Err(RouteError::Make { net: *net, source });
            }
        }
        for stale in self
            .ours()
            .await?
            .iter()
            .filter(|route| !wanted.contains(&route.net) || route.towards() != towards)
        {
            self.delete(stale).await?;
        }
        Ok(())
    }

    /// Makes those of our routes that somebody has removed; says whether there were any.
    pub(crate) async fn restore(&self, ranges: Ranges, node: NodeIps) -> Result<bool, RouteError> {
        let mut restored = false;
        let towards = self.towards().await?;
        for net in wanted(ranges) {
            match self
                .handle
                .route()
                .add(message(net, node, towards))
                .execute()
                .await
            {
                Ok(()) => restored = true,
                Err(error) if is(&error, nix::libc::EEXIST) => {}
                Err(_without_ipv6) if may_be_absent(net, node) => {}
                Err(source) => return Err(RouteError::Make { net, source }),
            }
        }
        Ok(restored)
    }

    /// The routes that we have made.
    pub(crate) async fn ours(&self) -> Result<Vec<HostRoute>, RouteError> {
        Ok(self
            .list()
            .await?
            .into_iter()
            .filter(|route| route.ours)
            .collect())
    }

    /// Removes all of them, and the interface; returns what routes there were.
    pub(crate) async fn remove(&self) -> Result<Vec<HostRoute>, RouteError> {
        let ours = self.ours().await?;
        for route in &ours {
            self.delete(route).await?;
        }
        if let Some(sink) = self.sink().await? {
            self.handle
                .link()
                .del(sink.header.index)
                .execute()
                .await
                .map_err(RouteError::RemoveSink)?;
        }
        Ok(ours)
    }

    /// The interfaces by which other hosts' packets come in; see [`uplinks`].
    pub(crate) async fn uplinks(&self) -> Result<BTreeSet<String>, RouteError> {
        let links: Vec<LinkMessage> = self
            .handle
            .link()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(RouteError::ReadLinks)?;
        let links = links.iter().map(Link::of).collect();
        Ok(Network {
            links,
            routes: self.messages().await?,
        }
        .uplinks())
    }

    /// Where our routes lead: to the interface that drops all, which is made and set up if it is
    /// not.
    async fn towards(&self) -> Result<Towards, RouteError> {
        if self.no_sink.load(Ordering::Relaxed) {
            return Ok(Towards::Host);
        }
        let failed = |error| RouteError::MakeSink(error);
        if self.sink().await?.is_none() {
            let bridge = LinkBridge::new(SINK)
                .append_extra_attribute(LinkAttribute::Mtu(SINK_MTU))
                .build();
            match self.handle.link().add(bridge).execute().await {
                Ok(()) => {}
                Err(error) if is(&error, nix::libc::EOPNOTSUPP) => {
                    let reason = "the kernel makes no bridge; load the module bridge and restart";
                    tracing::warn!(
                        reason,
                        "while nothing steers, this host's own services answer on VIPs"
                    );
                    self.no_sink.store(true, Ordering::Relaxed);
                    return Ok(Towards::Host);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let sink = self.sink().await?.ok_or(RouteError::ForeignSink)?;
        let index = sink.header.index;
        if !sink.header.flags.contains(LinkFlags::Up) {
            self.handle
                .link()
                .set(LinkUnspec::new_with_index(index).up().build())
                .execute()
                .await
                .map_err(failed)?;
        }
        Ok(Towards::Sink(index))
    }

    /// The interface that drops all, if it is there.
    async fn sink(&self) -> Result<Option<LinkMessage>, RouteError> {
        match self
            .handle
            .link()
            .get()
            .match_name(SINK)
            .execute()
            .try_next()
            .await
        {
            Ok(Some(link)) if is_bridge(&link) => Ok(Some(link)),
            Ok(Some(_)) => Err(RouteError::ForeignSink),
            Ok(None) => Ok(None),
            Err(error) if is(&error, nix::libc::ENODEV) => Ok(None),
            Err(error) => Err(RouteError::ReadLinks(error)),
        }
    }

    async fn delete(&self, route: &HostRoute) -> Result<(), RouteError> {
        let net = route.net;
        let message = message(net, NodeIps::default(), route.towards());
        let deleted = self.handle.route().del(message).execute().await;
        deleted.map_err(|source| RouteError::Remove { net, source })
    }

    async fn list(&self) -> Result<Vec<HostRoute>, RouteError> {
        Ok(self
            .messages()
            .await?
            .iter()
            .filter_map(HostRoute::of)
            .collect())
    }

    /// The routes of all tables.
    async fn messages(&self) -> Result<Vec<RouteMessage>, RouteError> {
        let mut found = Vec::new();
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        for mut family in [v4, v6] {
            // Zero: all tables.
            family.header.table = RouteHeader::RT_TABLE_UNSPEC;
            let routes: Vec<RouteMessage> = self
                .handle
                .route()
                .get(family)
                .execute()
                .try_collect()
                .await
                .map_err(RouteError::Read)?;
            found.extend(routes);
        }
        Ok(found)
    }
}

impl HostRoute {
    /// A route that takes packets somewhere; not one that refuses them, and no default route.
    fn of(message: &RouteMessage) -> Option<Self> {
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

    /// Whether what it has comes to this host's own services where nothing steers it.
    pub(crate) fn leads_to_host(&self) -> bool {
        self.kind == RouteType::Local
    }

    /// Of a route of ours.
    fn towards(&self) -> Towards {
        if self.leads_to_host() {
            Towards::Host
        } else {
            Towards::Sink(self.index)
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

fn is(error: &rtnetlink::Error, code: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(found) if found.raw_code() == -code)
}

fn is_bridge(link: &LinkMessage) -> bool {
    let of_bridge = |info: &LinkInfo| matches!(info, LinkInfo::Kind(InfoKind::Bridge));
    let is = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(of_bridge));
    link.attributes.iter().any(is)
}

fn name_of_interface(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}

/// The host's own route that meets `range`, if any: rather that of an address, which has made the
/// others.
fn overlap(range: IpNet, routes: &[HostRoute]) -> Option<&HostRoute> {
    let meets = |net: &IpNet| net.contains(&range) || range.contains(net);
    let counts = |route: &&HostRoute| {
        !route.ours && route.net.prefix_len() >= SHORTEST_NETWORK && meets(&route.net)
    };
    routes
        .iter()
        .filter(counts)
        .min_by_key(|route| route.kind != RouteType::Local)
}

/// What sets a range of this family, of the proxy.
fn flag(range: IpNet) -> &'static str {
    match range {
        IpNet::V4(_) => "--vip4-range",
        IpNet::V6(_) => "--vip6-range",
    }
}

/// The networks that get a route.
pub(crate) fn wanted(ranges: Ranges) -> Vec<IpNet> {
    let v4 = ranges.vip4.map(|range: Ipv4Net| IpNet::V4(range.trunc()));
    let v6 = ranges.vip6.map(|range: Ipv6Net| IpNet::V6(range.trunc()));
    v4.into_iter().chain(v6).collect()
}

/// A host without IPv6 cannot make the IPv6 route, and its connections to VIPs of IPv6 go nowhere
/// in any case.
fn may_be_absent(net: IpNet, node: NodeIps) -> bool {
    matches!(net, IpNet::V6(_)) && node.v6.is_none()
}

/// `NET dev culvert0 table local proto 77 src NODE`, or `local NET dev lo ...`. In the table of
/// local addresses, which the kernel asks before all others: a default route of another table never
/// takes a VIP.
fn message(net: IpNet, node: NodeIps, towards: Towards) -> RouteMessage {
    let (interface, kind, scope) = match towards {
        Towards::Sink(index) => (index, RouteType::Unicast, RouteScope::Link),
        Towards::Host => (LOOPBACK, RouteType::Local, RouteScope::Host),
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

#[cfg(test)]
mod tests {
    use super::*;

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
