//! Puts the running proxy together: opens its state, binds all sockets, and serves under one
//! supervisor.

mod agents;
mod cluster;
mod forwards;
mod frontends;
mod names;
mod open;
mod operators;
mod others;
mod succession;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use culvert_daemon::{
    Listeners, Logs, Readiness, SocketUse, Supervisor, Workers, raise_open_file_limit,
    report_to_systemd,
};
use culvert_proxy_cluster::NameService;
use culvert_proxy_core::advertise::Advertised;
use culvert_proxy_core::daemon_set::DaemonSetStatus;
use culvert_proxy_core::directory::{Directory, Editor, FactsWriter};
use culvert_proxy_core::forward::Forward;
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::listed_peer::ListedPeer;
use culvert_proxy_core::metrics::Metrics;
use culvert_proxy_core::state::StateDir;
use culvert_proxy_operators::spans::SpanExporter;
use culvert_proxy_peers::own_info;
use culvert_proxy_streams::elsewhere::PeerInfo;
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::route::Router;
use culvert_proxy_streams::sockets::listen;
use culvert_proxy_streams::sockets::local_socket::{Access, LocalSocket};
use culvert_proxy_trust::Trust;
use culvert_proxy_trust::tokens::Tokens;
use culvert_tunnel::{Budget, STREAM_WINDOW_RANGE};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use self::cluster::JoinedCluster;
use self::frontends::Frontends;
use self::operators::OperatorSockets;
use crate::args::RunArgs;
use crate::handover::Departure;

/// The sockets for operators; subcommands connect to them.
pub(crate) struct Sockets {
    pub(crate) control: PathBuf,
    pub(crate) admin: PathBuf,
}

/// Runs the proxy until a signal or a failure.
pub(crate) async fn run(args: RunArgs, sockets: Sockets, logs: Logs) -> Result<()> {
    ensure!(
        STREAM_WINDOW_RANGE.contains(&args.stream_window),
        "--stream-window is {} bytes: choose 256KiB to 16MiB",
        args.stream_window
    );
    names::check(&args)?;
    forwards::check(&args)?;
    raise_open_file_limit();
    let mut supervisor = Supervisor::new(args.grace)?;
    let readiness = Readiness::default();
    let listening = readiness.gate("listeners");
    supervisor.spawn_observer(
        "systemd",
        report_to_systemd(readiness.clone(), &[], supervisor.drain()),
    );
    let Some(opened) = Box::pin(supervisor.start(open::open(args))).await else {
        return Ok(());
    };
    let (mut proxy, takeover) = opened?;
    // Until this proxy serves, the one that runs is the one that goes on if this one fails.
    let frozen = takeover.has_predecessor().then(|| proxy.state.freeze());
    let bound = proxy.bind(&sockets)?;
    let streams = proxy.spawn_stream_list(&mut supervisor);
    let admin = proxy.admin(
        &supervisor,
        &readiness,
        logs,
        sockets.admin,
        streams.clone(),
    )?;
    proxy.spawn_maintenance(&mut supervisor, &readiness);
    proxy.spawn_spans(&mut supervisor);
    proxy.spawn_cluster(&mut supervisor, &readiness);
    let peers = proxy.peers(&supervisor, &readiness)?;
    proxy.spawn_peers(
        &mut supervisor,
        peers.as_ref(),
        bound.peers,
        streams.clone(),
    );
    if supervisor.start(proxy.wait_for_others()).await.is_none() {
        return Ok(());
    }
    proxy.spawn_agents(&mut supervisor, bound.agents, peers.clone());
    match supervisor.start(takeover.reach(&proxy.registry)).await {
        Some(came) => came?,
        None => return Ok(()),
    }
    takeover.confirm().await?;
    drop(frozen);
    let served = proxy.departure.clone().until_succeeded(admin.serve());
    supervisor.spawn_observer("admin server", served);
    proxy.spawn_operators(&mut supervisor, bound.operators, peers.as_ref(), streams);
    proxy.spawn_frontends(&mut supervisor, &readiness, bound.frontends);
    proxy.spawn_first_tunnel(&mut supervisor, &readiness);
    supervisor.spawn_observer("predecessor", takeover.hold());
    listening.open();
    proxy.report_serving();
    proxy.spawn_departure(&mut supervisor, listening, bound.handover);
    supervisor.run().await
}

/// All sockets but those of the admin server, bound and not yet served.
struct Bound {
    agents: TcpListener,
    /// If there may be other proxies.
    peers: Option<TcpListener>,
    operators: OperatorSockets,
    frontends: Frontends,
    handover: LocalSocket,
}

/// The parts of the running proxy.
struct Proxy {
    args: RunArgs,
    state: StateDir,
    advertised: Advertised,
    trust: Trust,
    tokens: Tokens,
    directory: Directory,
    registry: Registry,
    router: Router,
    streams: Streams,
    metrics: Metrics,
    workers: Arc<Workers>,
    budget: Budget,
    editor: Editor,
    /// Set if the proxy follows another one.
    facts: Option<FactsWriter>,
    instance: Instance,
    /// Set with --otlp-endpoint, until it is spawned.
    spans: Option<SpanExporter>,
    /// The other proxies of the cluster.
    listed_tx: watch::Sender<BTreeSet<ListedPeer>>,
    /// What the Service of --name-service says.
    name_service_tx: watch::Sender<NameService>,
    /// What ConfigMap culvert-forwards says.
    forwards_tx: watch::Sender<Vec<Forward>>,
    /// Whether the DaemonSet of redirectors has been deleted.
    daemon_set_tx: watch::Sender<DaemonSetStatus>,
    listeners: Listeners,
    departure: Departure,
    /// What serves clients. Tunnels stay until it has ended.
    clients: TaskTracker,
    /// The cluster that the proxy is a part of.
    cluster: Option<JoinedCluster>,
}

impl Proxy {
    /// Takes sockets over, or binds them. If one cannot be had, a proxy that runs goes on.
    fn bind(&self, sockets: &Sockets) -> Result<Bound> {
        let listen = &self.args.listen;
        let listeners = &self.listeners;
        let tcp = |address, used_by| listen::bind(listeners, address, used_by);
        let host = |path| listeners.local(path, Access::Owner, SocketUse::Programs);
        let peers = self
            .may_have_peers()
            .then(|| tcp(self.args.peers.peer_listen, SocketUse::Programs))
            .transpose()?;
        if let (Some(peers), Some(bytes)) = (&peers, listen.tunnel_mss) {
            culvert_tunnel::limit_segments(peers, bytes);
        }
        Ok(Bound {
            agents: self.bind_agents()?,
            peers,
            operators: OperatorSockets {
                control: host(&sockets.control)?,
                directory: host(&listen.directory_socket)?,
            },
            frontends: self.bind_frontends()?,
            handover: listeners.local(
                &self.state.join(succession::SOCKET),
                Access::Owner,
                SocketUse::Admin,
            )?,
        })
    }

    /// Whether nodes come from a file.
    fn has_directory_file(&self) -> bool {
        self.args.directory.directory_file.is_some()
    }

    /// Whoever has started the first proxy of a site has no node yet. In a cluster, with a file of
    /// nodes or a primary, nodes come by themselves.
    fn report_serving(&self) {
        tracing::info!(agents.addr = %self.args.listen.agent_listen, "serving agents and clients");
        let waits_for_nodes =
            self.cluster.is_some() || self.facts.is_some() || self.has_directory_file();
        if !waits_for_nodes && self.directory.nodes().is_empty() {
            tracing::info!(
                "there is no node yet; next, on this host: culvert-proxy token create NODE, which \
                 prints the command that joins it"
            );
        }
    }

    fn spawn_maintenance(&self, supervisor: &mut Supervisor, readiness: &Readiness) {
        let drain = supervisor.drain();
        let registry = self.registry.clone();
        let trust = self.trust.clone();
        let editor = self.editor.clone();
        if self.has_directory_file() && editor.file_problem().is_none() {
            trust.departed_meanwhile();
        }
        let gone = move |node: &_| {
            trust.departed(node);
            registry.close(node);
        };
        let kept_up = editor.maintain(readiness.gate("directory"), gone, drain.clone());
        supervisor.spawn("directory", kept_up);
        readiness.gate("certificates").open();
        supervisor.spawn("certificates", self.trust.clone().maintain(drain));
    }

    fn spawn_spans(&mut self, supervisor: &mut Supervisor) {
        if let Some(exporter) = self.spans.take() {
            let exported = exporter.run(self.streams.clone(), supervisor.drain());
            supervisor.spawn("spans", exported);
        }
    }

    /// What this proxy says about itself.
    fn own_info(&self) -> PeerInfo {
        let addresses = self.advertised.given.iter().map(ToString::to_string);
        own_info(self.instance.clone(), addresses.collect())
    }
}
