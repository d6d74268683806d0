//! Puts the running proxy together: opens its state, binds all sockets, and serves under one
//! supervisor.

mod agents;
mod cluster;
mod forwards;
mod frontends;
mod intercept_port;
mod names;
mod open;
mod operators;
mod optional_port;
mod others;
mod succession;
mod view;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use culvert_api::NodeName;
use culvert_daemon::{
    Listeners, Logs, OptionalPort, Readiness, SocketUse, Supervisor, TakenPorts, Workers,
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
use culvert_proxy_core::state::{Frozen, StateDir};
use culvert_proxy_operators::spans::SpanExporter;
use culvert_proxy_peers::own_info;
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::peers::PeerInfo;
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::route::Router;
use culvert_proxy_streams::sockets::local_socket::{Access, LocalSocket};
use culvert_proxy_trust::Trust;
use culvert_proxy_trust::tokens::Tokens;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use self::cluster::JoinedCluster;
use self::frontends::Frontends;
use self::operators::OperatorSockets;
use self::view::ViewSockets;
use crate::config::Config;
use crate::handover::{Departure, Takeover};

/// The sockets for operators; subcommands connect to them.
pub(crate) struct Sockets {
    pub(crate) control: PathBuf,
    pub(crate) admin: PathBuf,
}

/// Runs the proxy until a signal or a failure.
pub(crate) async fn run(config: Config, sockets: Sockets, logs: Logs) -> Result<()> {
    let mut supervisor = Supervisor::new(config.grace)?;
    let readiness = Readiness::default();
    let listening = readiness.gate("listeners");
    supervisor.spawn_observer(
        "systemd",
        report_to_systemd(readiness.clone(), &[], supervisor.drain()),
    );
    let Some(opened) = Box::pin(supervisor.start(open::open(config))).await else {
        return Ok(());
    };
    let (mut proxy, takeover) = opened?;
    let frozen = proxy.freeze_for(&takeover);
    let bound = proxy.bind(&sockets, &readiness)?;
    let streams = proxy.spawn_stream_list(&mut supervisor);
    let admin = proxy.admin(
        &mut supervisor,
        &readiness,
        logs,
        sockets.admin,
        streams.clone(),
    )?;
    proxy.spawn_background(&mut supervisor, &readiness);
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
    proxy.spawn_admin(&mut supervisor, admin);
    proxy.spawn_operators(&mut supervisor, bound.operators, peers.as_ref(), streams);
    proxy.spawn_frontends(&mut supervisor, &readiness, bound.frontends);
    proxy.spawn_first_tunnel(&mut supervisor, &readiness);
    supervisor.spawn_observer("predecessor", takeover.stay_connected());
    listening.open();
    proxy.spawn_departure(&mut supervisor, listening, bound.handover);
    supervisor.run().await
}

/// All sockets but those of the admin server, bound and not yet served.
struct Bound {
    agents: TcpListener,
    /// If there may be other proxies.
    peers: Option<OptionalPort>,
    operators: OperatorSockets,
    frontends: Frontends,
    handover: Option<LocalSocket>,
}

/// The parts of the running proxy.
struct Proxy {
    config: Config,
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
    fn bind(&self, sockets: &Sockets, readiness: &Readiness) -> Result<Bound> {
        let taken = TakenPorts::new(readiness, "ports");
        let directory = &self.config.listen.directory_socket;
        Ok(Bound {
            agents: self.bind_agents()?,
            peers: self.bind_peers(&taken)?,
            operators: OperatorSockets {
                control: self.bind_local(&sockets.control)?,
                directory: self.bind_local(directory)?,
                view: ViewSockets {
                    view: self.bind_view(&taken)?,
                    admin: sockets.admin.clone(),
                },
            },
            frontends: self.bind_frontends(&taken)?,
            handover: self.bind_handover(),
        })
    }

    /// Until this proxy serves, the one that runs is the one that goes on if this one fails: what it
    /// writes must stay.
    fn freeze_for(&self, takeover: &Takeover) -> Option<Frozen> {
        if takeover.has_predecessor() {
            Some(self.state.freeze())
        } else {
            None
        }
    }

    fn bind_local(&self, path: &Path) -> Result<LocalSocket> {
        self.listeners
            .local(path, Access::Owner, SocketUse::Programs)
    }

    /// Starts what neither clients nor agents see.
    fn spawn_background(&mut self, supervisor: &mut Supervisor, readiness: &Readiness) {
        self.spawn_maintenance(supervisor, readiness);
        self.spawn_spans(supervisor);
        self.spawn_cluster(supervisor, readiness);
    }

    /// Whether nodes come from a file.
    fn has_directory_file(&self) -> bool {
        self.config.directory.directory_file.is_some()
    }

    /// The first proxy of a site has no node yet. In a cluster, with a file of
    /// nodes or a primary, nodes come by themselves.
    fn report_serving(&self) {
        tracing::info!(agents.addr = %self.config.listen.agent_listen, "serving agents and clients");
        let waits_for_nodes =
            self.cluster.is_some() || self.facts.is_some() || self.has_directory_file();
        if !waits_for_nodes && self.directory.nodes().is_empty() {
            tracing::info!(
                "there is no node yet; next, on this host: culvert token create NODE, which \
                 prints the command that joins it"
            );
        }
    }

    fn spawn_maintenance(&self, supervisor: &mut Supervisor, readiness: &Readiness) {
        let drain = supervisor.drain();
        if self.has_directory_file() && self.editor.file_problem().is_none() {
            self.trust.departed_meanwhile();
        }
        let gate = readiness.gate("directory");
        let editor = self.editor.clone();
        let kept_up = editor.maintain(gate, self.remove_gone(), drain.clone());
        supervisor.spawn("directory", kept_up);
        readiness.gate("certificates").open();
        supervisor.spawn("certificates", self.trust.clone().maintain(drain));
    }

    /// What is done for each node that is gone.
    fn remove_gone(&self) -> impl Fn(&NodeName) + Send + 'static {
        let registry = self.registry.clone();
        let trust = self.trust.clone();
        move |node| {
            trust.departed(node);
            registry.close(node);
        }
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
