//! `/debug/installed`: what should be on this host and what the kernel has, for `culvert
//! check`.

use std::collections::BTreeMap;

use anyhow::Result;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use culvert_api::installed::{Installed, Neighbours, SteeredPackets};
use culvert_daemon::AdminPages;
use ipnet::IpNet;
use strum::VariantArray;
use tokio::sync::watch;

use super::debug::failed;
use super::marks::marks;
use crate::config::{Config, NodeIps};
use crate::directory::Feed;
use crate::mechanisms::bpf::{
    Hook, Pins, Surroundings, Tables, read_reserved, refusal_of_this_kernel,
};
use crate::mechanisms::nft;
use crate::mechanisms::vip_routes::{HostRoute, Routes, networks};
use crate::metrics::Drift;
use crate::own_networks::OwnNetworks;
use crate::steering::{InForce, RecentCounts, Steering};

/// How many edge addresses in networks of this host are listed.
const MAX_WITHHELD: usize = 100;

#[derive(Clone)]
struct Sources {
    pins: Pins,
    config: Config,
    node: watch::Receiver<NodeIps>,
    feed: watch::Receiver<Feed>,
    in_force: watch::Receiver<InForce>,
    recent: RecentCounts,
}

/// The page for the admin server.
pub(crate) fn route(
    config: Config,
    node: watch::Receiver<NodeIps>,
    feed: watch::Receiver<Feed>,
    steering: &Steering,
) -> AdminPages {
    let sources = Sources {
        pins: Pins::new(&config.bpffs),
        config,
        node,
        feed,
        in_force: steering.in_force(),
        recent: steering.recent(),
    };
    let content = "all that is in force on this host: what `culvert check` reads";
    AdminPages::new()
        .page("/debug/installed", content, get(installed))
        .with_state(sources)
}

async fn installed(State(sources): State<Sources>) -> Response {
    match sources.read().await {
        Ok(installed) => Json(installed).into_response(),
        Err(error) => failed(error),
    }
}

impl Sources {
    async fn read(&self) -> Result<Installed> {
        let config = &self.config;
        let node = *self.node.borrow();
        let in_force = self.in_force.borrow().clone();
        let hooks = self.hooks()?;
        let (packets, table_problem) = self.table().await;
        let [dropping_chains, owner_chains, zoning_chains] = foreign_chains().await;
        let kernel = Routes::open()?;
        let routes = kernel.ours().await?;
        let dns = config.dns.as_ref();
        Ok(Installed {
            mechanism: config.mechanism,
            in_force: Some(in_force.mechanism),
            fallback: in_force.fallback,
            unseen_pods: in_force.unseen_pods,
            hooks_see: Some(config.hook_scope),
            other_versions: self.other_versions(),
            neighbours: hooks.iter().filter_map(neighbours).collect(),
            hooks: hooks.iter().map(Hook::report).collect(),
            refusal: refusal_of_this_kernel().ok(),
            table: packets.is_some(),
            table_problem,
            keeper_problem: in_force.keeper_problem,
            ranges: self.ranges(node),
            routes_to_host: routes.iter().any(HostRoute::leads_to_host),
            routes: networks_of(routes),
            withheld: self.withheld(&kernel).await?,
            intercept_ports: config.intercept.ports.clone(),
            dns: dns.map(|dns| dns.addresses(node)).unwrap_or_default(),
            zone: dns.map(|dns| dns.zone.to_string()).unwrap_or_default(),
            forward: dns.map(|dns| dns.forward.clone()).unwrap_or_default(),
            steered: packets.map(|packets| packets.steered),
            unreserved: in_force.unreserved,
            guard_drops: packets.unwrap_or_default().guard_drops,
            refused_of_bridges: packets.unwrap_or_default().refused_of_bridges,
            dropping_chains,
            owner_chains,
            zoning_chains,
            outer_bridges: kernel.outer_bridges().await?,
            repairs: self.repairs(),
            marks: Some(marks(config.intercept.mark).await),
            ..self.of_maps()
        })
    }

    /// Does not ask the kernel if hooks are switched off: the redirector may lack the capability.
    fn hooks(&self) -> Result<Vec<Hook>> {
        if self.config.mechanism.has_ebpf() {
            Ok(Hook::read_steering(&self.pins)?)
        } else {
            Ok(Vec::new())
        }
    }

    /// The fields that the maps of the hooks tell.
    fn of_maps(&self) -> Installed {
        let mut fields = Installed::default();
        if !self.config.mechanism.has_ebpf() {
            return fields;
        }
        if let Ok(tables) = Tables::open(&self.pins)
            && let Ok(counts) = tables.judged_counts()
        {
            let [begun, admitted, refused_binds] = self.recent.hooks.moved(counts);
            fields.hooked = Some(SteeredPackets { begun, admitted });
            fields.refused_binds = refused_binds;
        }
        if let Ok(reserved) = read_reserved(&self.pins) {
            fields.reserved_for = Some(reserved.owner);
        }
        fields
    }

    /// What was put right lately.
    fn repairs(&self) -> BTreeMap<String, u64> {
        let counts = self.recent.repairs.moved_until_now();
        let mut repairs = BTreeMap::new();
        for (drift, count) in Drift::VARIANTS.iter().zip(counts) {
            if count > 0 {
                let what: &'static str = drift.into();
                repairs.insert(what.to_owned(), count);
            }
        }
        repairs
    }

    fn other_versions(&self) -> Vec<String> {
        let links = self.pins.other_links();
        links
            .iter()
            .map(|link| link.display().to_string())
            .collect()
    }

    /// What the table has counted lately, if it exists, and the error if it cannot be read.
    async fn table(&self) -> (Option<TablePackets>, Option<String>) {
        if !self.config.mechanism.has_nftables() {
            return (None, None);
        }
        match nft::read_counts().await {
            Ok(Some(counts)) => {
                let [begun, admitted, guard_drops, refused_of_bridges] =
                    self.recent.table.moved(counts);
                let steered = SteeredPackets { begun, admitted };
                let packets = TablePackets {
                    steered,
                    guard_drops,
                    refused_of_bridges,
                };
                (Some(packets), None)
            }
            Ok(None) => (None, None),
            Err(error) => (None, Some(error.to_string())),
        }
    }

    /// Edge addresses in networks of this host, each with the reason.
    async fn withheld(&self, routes: &Routes) -> Result<Vec<String>> {
        let own = OwnNetworks::read(routes, &self.config.steered_networks).await?;
        let Some(directory) = self.feed.borrow().directory.clone() else {
            return Ok(Vec::new());
        };
        let withheld = own.withheld(&directory);
        let listed = withheld.iter().take(MAX_WITHHELD);
        Ok(listed.map(ToString::to_string).collect())
    }

    /// The ranges that need a route. A host without IPv6 needs none for IPv6.
    fn ranges(&self, node: NodeIps) -> Vec<IpNet> {
        let directory = self.feed.borrow().directory.clone();
        let Some(directory) = directory else {
            return Vec::new();
        };
        let mut ranges = networks(directory.ranges);
        ranges.retain(|range| matches!(range, IpNet::V4(_)) || node.v6.is_some());
        ranges
    }
}

/// What the table has counted lately.
#[derive(Clone, Copy, Debug, Default)]
struct TablePackets {
    steered: SteeredPackets,
    /// Packets of other hosts to the intercept ports that were dropped.
    guard_drops: u64,
    /// Packets to edge nodes that outer bridges forwarded and that were refused.
    refused_of_bridges: u64,
}

/// Chains of others that drop packets to this host, that drop what some users send, and that set
/// zones of connection tracking. Without nft, or on a kernel without nftables, there are none.
async fn foreign_chains() -> [Vec<String>; 3] {
    [
        nft::dropping_chains().await.unwrap_or_default(),
        nft::owner_chains().await.unwrap_or_default(),
        nft::zoning_chains().await.unwrap_or_default(),
    ]
}

/// Other programs at the hook's attach point; `None` if ours is alone there.
fn networks_of(routes: Vec<HostRoute>) -> Vec<IpNet> {
    routes.into_iter().map(|route| route.net).collect()
}

fn neighbours(hook: &Hook) -> Option<Neighbours> {
    let Surroundings { before, after, .. } = hook.surroundings()?;
    if before.is_empty() && after.is_empty() {
        return None;
    }
    Some(Neighbours {
        program: hook.program.to_owned(),
        before,
        after,
    })
}
