//! `/debug/installed`: what should be on this host and what the kernel has of it, for
//! `culvert-proxy check`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use ipnet::IpNet;
use serde::Serialize;
use tokio::sync::watch;

use crate::args::HookScope;
use crate::config::{Config, NodeIps};
use crate::directory::Feed;
use crate::mechanisms::bpf::{Hook, Pins, Refusal};
use crate::mechanisms::nft;
use crate::mechanisms::vip_routes::{HostRoute, Routes, wanted};
use crate::operators::debug::failed;
use crate::steering::InForce;

#[derive(Clone)]
struct Sources {
    pins: Pins,
    config: Config,
    node: watch::Receiver<NodeIps>,
    feed: watch::Receiver<Feed>,
    in_force: watch::Receiver<InForce>,
}

/// The route for the admin server.
pub(crate) fn route(
    config: Config,
    node: watch::Receiver<NodeIps>,
    feed: watch::Receiver<Feed>,
    in_force: watch::Receiver<InForce>,
) -> Router {
    let sources = Sources {
        pins: Pins::new(&config.bpffs),
        config,
        node,
        feed,
        in_force,
    };
    Router::new()
        .route("/debug/installed", get(installed))
        .with_state(sources)
}

#[derive(Serialize)]
struct Installed {
    /// As `--mechanism` is written.
    mechanism: &'static str,
    #[serde(flatten)]
    in_force: InForce,
    /// As `--hooks` is written.
    hooks_see: &'static str,
    /// Links that another version has left: what they steer the proxy cannot take.
    other_versions: Vec<PathBuf>,
    hooks: Vec<Hook>,
    /// The error of a connect that the hooks refuse; none where the kernel cannot be asked.
    refusal: Option<Refusal>,
    table: bool,
    /// Why it is not known whether there is one.
    table_problem: Option<String>,
    /// Those that a route is wanted for.
    ranges: Vec<IpNet>,
    /// Those that have one.
    routes: Vec<IpNet>,
    /// They lead to this host itself, for the kernel makes no bridge.
    routes_to_host: bool,
    intercept_ports: Vec<u16>,
    dns: Vec<SocketAddr>,
    zone: String,
    /// Whom it asks for names that are not its own.
    forward: Vec<SocketAddr>,
    /// Programs of others at the same places as ours.
    neighbours: Vec<Neighbours>,
    /// Chains of others that drop packets to this host, as far as nft can be asked.
    dropping_chains: Vec<String>,
}

/// Programs of others, by the kernel's numbers, in the order in which they run.
#[derive(Serialize)]
struct Neighbours {
    program: &'static str,
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Neighbours {
    fn of(hook: &Hook) -> Option<Self> {
        let around = hook
            .surroundings()
            .filter(|around| !around.before.is_empty() || !around.after.is_empty())?;
        Some(Self {
            program: hook.program,
            before: around.before,
            after: around.after,
        })
    }
}

async fn installed(State(sources): State<Sources>) -> Response {
    match read(&sources).await {
        Ok(installed) => Json(installed).into_response(),
        Err(error) => failed(error),
    }
}

async fn read(sources: &Sources) -> anyhow::Result<Installed> {
    let Sources {
        pins,
        config,
        node,
        feed,
        in_force,
    } = sources;
    let node = *node.borrow();
    let directory = feed.borrow().directory.clone();
    let mut ranges = directory
        .map(|directory| wanted(directory.ranges))
        .unwrap_or_default();
    // A host without IPv6 has no use for the route.
    ranges.retain(|range| matches!(range.addr(), IpAddr::V4(_)) || node.v6.is_some());
    let table = if config.mechanism.has_nftables() {
        nft::read().await.map(|parts| parts.is_some())
    } else {
        Ok(false)
    };
    let routes = Routes::open()?.ours().await?;
    // Without hooks the redirector may lack the right to ask for them.
    let hooks = if config.mechanism.has_ebpf() {
        Hook::read_all(pins)?
    } else {
        Vec::new()
    };
    let in_force = in_force.borrow().clone();
    Ok(Installed {
        mechanism: config.mechanism.name(),
        in_force,
        hooks_see: match config.hook_scope {
            HookScope::All => "all",
            HookScope::Host => "host",
        },
        other_versions: pins.other_links(),
        neighbours: hooks.iter().filter_map(Neighbours::of).collect(),
        hooks,
        refusal: Refusal::of_this_kernel().ok(),
        table: *table.as_ref().unwrap_or(&false),
        table_problem: table.err().map(|error| error.to_string()),
        ranges,
        routes_to_host: routes.iter().any(HostRoute::leads_to_host),
        routes: routes
            .into_iter()
            .map(|route: HostRoute| route.net)
            .collect(),
        intercept_ports: config.intercept.ports.clone(),
        dns: config
            .dns
            .iter()
            .flat_map(|dns| dns.addresses(node))
            .collect(),
        zone: config
            .dns
            .as_ref()
            .map(|dns| dns.zone.to_string())
            .unwrap_or_default(),
        forward: config
            .dns
            .iter()
            .flat_map(|dns| dns.forward.clone())
            .collect(),
        // Without nft, or on a kernel without nftables, there is nothing to say.
        dropping_chains: nft::dropping_chains().await.unwrap_or_default(),
    })
}
