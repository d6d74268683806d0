//! `/debug/{nodes,left-out,claims,tunnels,peers,streams,tasks}` of the admin server, as JSON.

use axum::routing::get;
use culvert_daemon::{AdminPages, RunningTasks, Runtimes, TaskCounts, page, tasks_page};
use culvert_proxy_core::directory::Directory;
use culvert_proxy_core::reported::Claims;
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::peers::PeerView;
use culvert_proxy_streams::registry::{Registered, Registry};
use culvert_proxy_streams::view::StreamView;
use culvert_site::cloud_host::Tunnel;
use serde::Serialize;

use crate::stream_list::{ListedStream, StreamList};

/// A tunnel as `/debug/tunnels` shows it.
#[derive(Debug, Serialize)]
struct TunnelView {
    #[serde(flatten)]
    tunnel: Tunnel,
    agent_addresses: Vec<String>,
}

/// Another proxy as `/debug/peers` shows it.
#[derive(Debug, Serialize)]
struct PeerPage {
    peer: String,
    host: String,
    version: String,
    /// Where agents may reach this very proxy.
    addresses: Vec<String>,
    age_seconds: f64,
    /// Tunnels of agents that end there, and nodes that have any.
    tunnels: usize,
    nodes: usize,
    /// Connections to it that carry streams, and these streams.
    links: usize,
    streams: u32,
    round_trip_seconds: Option<f64>,
    draining: bool,
}

impl From<PeerView> for PeerPage {
    fn from(view: PeerView) -> Self {
        Self {
            peer: view.info.instance.to_string(),
            host: view.info.host.clone(),
            version: view.info.version.clone(),
            addresses: view.info.addresses.clone(),
            age_seconds: view.since.elapsed().as_secs_f64(),
            tunnels: view.tunnels,
            nodes: view.nodes,
            links: view.links,
            streams: view.streams,
            round_trip_seconds: view.round_trip.map(|round_trip| round_trip.as_secs_f64()),
            draining: view.draining,
        }
    }
}

/// A stream as `/debug/streams` shows it, with the time since the last byte in each direction, to
/// within a second.
#[derive(Debug, Serialize)]
struct StreamPage {
    #[serde(flatten)]
    stream: StreamView,
    idle_to_backend_seconds: f64,
    idle_to_client_seconds: f64,
    /// How long the backend has had the last bytes, and has not answered.
    waits_seconds: Option<f64>,
}

impl From<ListedStream> for StreamPage {
    fn from(listed: ListedStream) -> Self {
        Self {
            idle_to_backend_seconds: listed.idle_to_backend.as_secs_f64(),
            idle_to_client_seconds: listed.idle_to_client.as_secs_f64(),
            waits_seconds: listed.waits().map(|wait| wait.as_secs_f64()),
            stream: listed.stream,
        }
    }
}

impl From<&Registered> for TunnelView {
    fn from(registered: &Registered) -> Self {
        Self {
            tunnel: tunnel(registered),
            agent_addresses: registered.described.addresses.clone(),
        }
    }
}

/// As `culvert` reads it.
pub(crate) fn tunnel(registered: &Registered) -> Tunnel {
    let round_trip = registered.tunnel.round_trip();
    Tunnel {
        tunnel: registered.generation,
        node: registered.node.to_string(),
        agent: registered.agent.to_string(),
        agent_version: registered.described.version.clone(),
        age_seconds: registered.since.elapsed().as_secs_f64(),
        streams: registered.tunnel.streams(),
        round_trip_seconds: round_trip.map(|round_trip| round_trip.as_secs_f64()),
    }
}

/// The proxy's own pages.
pub fn routes(
    claims: Claims,
    directory: Directory,
    registry: Registry,
    streams: StreamList,
) -> AdminPages {
    let left_out = directory.clone();
    let peers_of = registry.clone();
    AdminPages::new()
        .page(
            "/debug/claims",
            "settings that decide which of the nodes' own claims count",
            get(async move || page(move || claims.clone()).await),
        )
        .page(
            "/debug/left-out",
            "claims of nodes that do not count, and why",
            get(async move || page(move || left_out.left_out()).await),
        )
        .page(
            "/debug/nodes",
            "the directory: names, addresses, ports, VIPs",
            get(async move || page(move || directory.nodes()).await),
        )
        .page(
            "/debug/tunnels",
            "tunnels of agents that end here",
            get(async move || page(move || tunnels(&registry)).await),
        )
        .page(
            "/debug/peers",
            "the other proxies",
            get(async move || page(move || peers(&peers_of)).await),
        )
        .page(
            "/debug/streams",
            "clients' connections under way",
            get(async move || page(move || pages(&streams)).await),
        )
}

/// The page `/debug/tasks`.
pub fn tasks(
    runtimes: Runtimes,
    running: RunningTasks,
    registry: Registry,
    streams: Streams,
) -> AdminPages {
    tasks_page(runtimes, running, move || {
        let [clients, forwarded] = streams.totals();
        let links = registry.peers().iter().map(|peer| peer.links).sum();
        TaskCounts::from([
            ("tunnels", registry.all().len()),
            ("links", links),
            ("streams", clients),
            ("forwarded_streams", forwarded),
        ])
    })
}

fn peers(registry: &Registry) -> Vec<PeerPage> {
    registry.peers().into_iter().map(PeerPage::from).collect()
}

fn tunnels(registry: &Registry) -> Vec<TunnelView> {
    registry
        .all()
        .iter()
        .map(|registered| TunnelView::from(registered.as_ref()))
        .collect()
}

fn pages(streams: &StreamList) -> Vec<StreamPage> {
    streams.all().into_iter().map(StreamPage::from).collect()
}
