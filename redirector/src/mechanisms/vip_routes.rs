//! A route for each VIP range, so that a connection to a VIP never leaves the host and never
//! reaches the host's own services. When nothing steers, it fails within seconds.
//!
//! The routes lead to a bridge without ports, which drops every packet and answers no ARP request,
//! so the kernel reports "no route to host" after three of them. `unreachable` routes would fail in
//! `connect()`, before nftables can steer. `local` routes would make the range addresses of this
//! host, for every service that listens on all addresses, and for ARP on every interface.

mod host_route;
mod message;
mod on_link;
mod uplinks;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::TryStreamExt;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::route::{RouteHeader, RouteMessage};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, RouteMessageBuilder, new_connection};
use tokio::task::JoinSet;

use crate::config::NodeIps;
use crate::directory::Ranges;
pub(crate) use host_route::HostRoute;
use host_route::{RouteTarget, overlap};
use message::message;
use on_link::on_link_networks;
use uplinks::{HostNetwork, Interface};

/// The table of local addresses.
const LOCAL_TABLE: u32 = 255;
/// The protocol number (rtnetlink(7)) of our routes; iproute2's rt_protos does not assign 77.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(77);

/// The bridge that the routes lead to.
pub(crate) const SINK: &str = "culvert0";
/// The longest MTU of a bridge, one less than that of the loopback interface: packets that nftables
/// steers leave by the loopback interface, but their sockets take the MTU of the VIP's route.
const SINK_MTU: u32 = 65_535;
/// Reads and writes the kernel's routes.
pub(crate) struct Routes {
    handle: Handle,
    /// This kernel has no bridges.
    no_sink: AtomicBool,
    /// Owns the task that moves the messages.
    _connection: JoinSet<()>,
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
        "the interface {SINK} is there, and is not a bridge of culvert-redirector: give it another \
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

    /// Makes our routes those of `ranges`, unless the host itself uses the ranges. Connections to a
    /// VIP then have `node`'s source address; otherwise the kernel would use the VIP as the source.
    pub(crate) async fn apply(&self, ranges: Ranges, node: NodeIps) -> Result<(), RouteError> {
        let routes = self.list().await?;
        let wanted = networks(ranges);
        for range in &wanted {
            if let Some(taken) = overlap(*range, &routes) {
                return Err(RouteError::Overlap {
                    range: *range,
                    taken: taken.clone(),
                });
            }
        }
        let target = if wanted.is_empty() {
            RouteTarget::Host
        } else {
            self.target().await?
        };
        for net in &wanted {
            let made = self
                .handle
                .route()
                .add(message(*net, node, target))
                .replace()
                .execute()
                .await;
            if let Err(source) = made
                && !may_be_absent(*net, node)
            {
                return Err(RouteError::Make { net: *net, source });
            }
        }
        for route in self.ours().await? {
            if !wanted.contains(&route.net) || route.target() != target {
                self.delete(&route).await?;
            }
        }
        Ok(())
    }

    /// Makes routes that were removed again. Returns whether any were missing.
    pub(crate) async fn restore(&self, ranges: Ranges, node: NodeIps) -> Result<bool, RouteError> {
        let mut restored = false;
        let target = self.target().await?;
        for net in networks(ranges) {
            match self
                .handle
                .route()
                .add(message(net, node, target))
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

    /// The routes that a redirector has made.
    pub(crate) async fn ours(&self) -> Result<Vec<HostRoute>, RouteError> {
        let mut routes = self.list().await?;
        routes.retain(|route| route.ours);
        Ok(routes)
    }

    /// Removes all of them, and the interface. Returns the removed routes.
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
        Ok(self.network().await?.uplinks())
    }

    /// The bridges among them.
    pub(crate) async fn outer_bridges(&self) -> Result<Vec<String>, RouteError> {
        Ok(self.network().await?.outer_bridges())
    }

    /// The networks whose hosts an interface reaches without a gateway, each with that interface.
    pub(crate) async fn on_link(&self) -> Result<Vec<(IpNet, String)>, RouteError> {
        let links = self.links().await?;
        Ok(on_link_networks(&self.messages().await?, &links))
    }

    async fn links(&self) -> Result<Vec<LinkMessage>, RouteError> {
        let links = self.handle.link().get().execute().try_collect().await;
        links.map_err(RouteError::ReadLinks)
    }

    async fn network(&self) -> Result<HostNetwork, RouteError> {
        let links = self.links().await?;
        let interfaces = links.iter().map(Interface::of).collect();
        Ok(HostNetwork {
            interfaces,
            routes: self.messages().await?,
        })
    }

    /// The target of our routes: the interface that drops all packets, which is made and set up if
    /// needed.
    async fn target(&self) -> Result<RouteTarget, RouteError> {
        if self.no_sink.load(Ordering::Relaxed) {
            return Ok(RouteTarget::Host);
        }
        if self.sink().await?.is_none() && !self.make_sink().await? {
            return Ok(RouteTarget::Host);
        }
        let sink = self.sink().await?.ok_or(RouteError::ForeignSink)?;
        let index = sink.header.index;
        if !sink.header.flags.contains(LinkFlags::Up) {
            self.handle
                .link()
                .set(LinkUnspec::new_with_index(index).up().build())
                .execute()
                .await
                .map_err(RouteError::MakeSink)?;
        }
        Ok(RouteTarget::Sink(index))
    }

    /// False on a kernel without bridges, which is remembered.
    async fn make_sink(&self) -> Result<bool, RouteError> {
        let bridge = LinkBridge::new(SINK)
            .append_extra_attribute(LinkAttribute::Mtu(SINK_MTU))
            .build();
        match self.handle.link().add(bridge).execute().await {
            Ok(()) => Ok(true),
            Err(error) if is(&error, nix::libc::EOPNOTSUPP) => {
                let reason = "the kernel makes no bridge; load the module bridge and restart";
                tracing::warn!(
                    reason,
                    "while nothing steers, this host's own services answer on VIPs"
                );
                self.no_sink.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(RouteError::MakeSink(error)),
        }
    }

    /// The interface that drops all packets, if it exists.
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
        let message = message(net, NodeIps::default(), route.target());
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

fn is(error: &rtnetlink::Error, code: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(found) if found.raw_code() == -code)
}

fn is_bridge(link: &LinkMessage) -> bool {
    for attribute in &link.attributes {
        if let LinkAttribute::LinkInfo(infos) = attribute
            && infos.contains(&LinkInfo::Kind(InfoKind::Bridge))
        {
            return true;
        }
    }
    false
}

/// The proxy's flag for a range of this family.
fn flag(range: IpNet) -> &'static str {
    match range {
        IpNet::V4(_) => "--vip4-range",
        IpNet::V6(_) => "--vip6-range",
    }
}

/// The networks that need a route.
pub(crate) fn networks(ranges: Ranges) -> Vec<IpNet> {
    let v4 = ranges.vip4.map(|range: Ipv4Net| IpNet::V4(range.trunc()));
    let v6 = ranges.vip6.map(|range: Ipv6Net| IpNet::V6(range.trunc()));
    v4.into_iter().chain(v6).collect()
}

/// A host without IPv6 cannot make the IPv6 route, and cannot connect to VIPs of IPv6 in any case.
fn may_be_absent(net: IpNet, node: NodeIps) -> bool {
    matches!(net, IpNet::V6(_)) && node.v6.is_none()
}
