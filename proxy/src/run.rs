//! Puts the running proxy together: opens its state, binds all sockets, and serves under one
//! supervisor.

mod forwards;
mod frontends;
mod names;
mod others;
mod succession;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_api::Zone;
use culvert_api::proto::enroll::enroll_server::EnrollServer;
use culvert_daemon::{
    Admin, AdminListen, Idle, Listeners, Logs, Readiness, SocketUse, Supervisor, Workers,
    raise_open_file_limit, report_to_systemd,
};
use culvert_tunnel::{Budget, FarEnd, ProxyTunnel, STREAM_WINDOW_RANGE, STREAMS_IN_LIFE};
use ipnet::IpNet;
use prometheus_client::registry::Registry as MetricsRegistry;
use socket2::Protocol;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use self::frontends::Frontends;
use crate::advertise::{Advertised, PeerAdvertise};
use crate::agents::admissions::Admissions;
use crate::agents::enroll;
use crate::agents::enroll::Enroll;
use crate::agents::port::{Agents, Parts};
use crate::agents::proxy_list::ProxyList;
use crate::args::{RunArgs, TrustArgs};
use crate::clients::forward::entry::Forward;
use crate::cluster::{
    Cluster, Events, ListedPeer, NameService, OwnLease, ServiceAccounts, SharedAuthority,
    load_forwards,
};
use crate::directory::service;
use crate::directory::{
    self, ClusterOwn, ClusterWriter, Directory, DirectoryConfig, Editor, FactsWriter, Handles,
    NodesFrom,
};
use crate::handover::{Departure, Takeover};
use crate::instance::Instance;
use crate::metrics::Metrics;
use crate::operators::control::{self, Control};
use crate::operators::debug;
use crate::operators::explain::Explainer;
use crate::operators::scraped::Scraped;
use crate::operators::spans::SpanExporter;
use crate::peers::{Peers, PrimaryClient, follow_contact, own_info};
use crate::sockets::listen::{self, Accepting};
use crate::sockets::local_socket::{Access, LocalSocket};
use crate::sockets::proxy_protocol::Balancers;
use crate::sockets::strangers::Strangers;
use crate::state::StateDir;
use crate::streams::elsewhere::PeerInfo;
use crate::streams::ended::EndedStreams;
use crate::streams::limits::MAX_STREAMS_PER_AGENT;
use crate::streams::live::Streams;
use crate::streams::registry::Registry;
use crate::streams::route::Router;
use crate::trust::tokens::Tokens;
use crate::trust::{Trust, TrustConfig, TrustSource};

/// The default validity of agents' certificates: an edge site may be off for weeks.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// In a cluster an agent that was off for longer enrols again by itself.
const CLUSTER_LIFETIME: Duration = Duration::from_secs(24 * 3600);

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
    let Some(opened) = Box::pin(supervisor.start(open(args))).await else {
        return Ok(());
    };
    let (mut proxy, takeover) = opened?;
    // Until this proxy serves, the one that runs is the one that goes on if this one fails.
    let frozen = takeover.has_predecessor().then(|| proxy.state.freeze());
    let bound = proxy.bind(&sockets)?;
    let idle = proxy.spawn_idle(&mut supervisor);
    let admin = proxy.admin(&supervisor, &readiness, logs, sockets.admin, idle)?;
    proxy.spawn_maintenance(&mut supervisor, &readiness);
    proxy.spawn_spans(&mut supervisor);
    proxy.spawn_cluster(&mut supervisor, &readiness);
    let peers = proxy.peers(&supervisor, &readiness)?;
    proxy.spawn_peers(&mut supervisor, peers.as_ref(), bound.peers);
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
    proxy.spawn_operators(&mut supervisor, bound.operators, peers.as_ref());
    proxy.spawn_frontends(&mut supervisor, &readiness, bound.frontends);
    proxy.spawn_first_tunnel(&mut supervisor, &readiness);
    supervisor.spawn_observer("predecessor", takeover.hold());
    listening.open();
    proxy.spawn_departure(&mut supervisor, listening, bound.handover);
    supervisor.run().await
}

/// Opens what is on disk, with what there is to take over.
async fn open(args: RunArgs) -> Result<(Proxy, Takeover)> {
    let cluster = if args.kubernetes.wanted() {
        Some(Cluster::open(&args.kubernetes).await?)
    } else {
        None
    };
    let takeover = succession::ask_others(&args).await;
    let proxy = Proxy::open(args, cluster, takeover.listeners()).await?;
    Ok((proxy, takeover))
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

struct OperatorSockets {
    control: LocalSocket,
    directory: LocalSocket,
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
    listeners: Listeners,
    departure: Departure,
    /// What serves clients. Tunnels stay until it has ended.
    clients: TaskTracker,
    /// The cluster that the proxy is a part of.
    cluster: Option<JoinedCluster>,
}

/// A Kubernetes cluster as the source of nodes.
struct JoinedCluster {
    cluster: Cluster,
    writer: ClusterWriter,
    /// The authority that the cluster's proxies share, unless the operator's own files are used.
    authority: Option<SharedAuthority>,
}

impl Proxy {
    async fn open(args: RunArgs, cluster: Option<Cluster>, listeners: Listeners) -> Result<Self> {
        let state = StateDir::open_or_inherit(&args.state_dir, &listeners)?;
        let advertised = Advertised {
            given: args.trust.advertise.clone(),
            agent_listen: args.listen.agent_listen,
        };
        let api_servers = match &cluster {
            Some(cluster) => cluster.api_addresses().await,
            None => BTreeSet::new(),
        };
        let Handles {
            directory,
            editor,
            cluster: writer,
            facts,
        } = directory::open(&directory_config(&args, state.clone(), api_servers)?)?;
        let mut config = trust_config(&args.trust, &advertised, state.clone(), cluster.as_ref());
        others::check_follower(&args, &config.source, &state)?;
        let authority = match &cluster {
            Some(cluster) if config.source == TrustSource::Embedded => {
                Some(SharedAuthority::open(cluster.clone(), &state).await?)
            }
            Some(_) | None => None,
        };
        if let Some(shared) = &authority {
            config.source = shared.source();
        }
        let trust = Trust::open(config, directory.clone())?;
        let tokens = Tokens::open(state.clone(), args.trust.token_lifetime)?;
        let metrics = Metrics::default();
        let registry = Registry::new(directory.clone(), metrics.clone());
        let instance = Instance::random();
        let (ended, spans) = spans(&args, &instance, &metrics)?.unzip();
        let streams = Streams::passing_on(metrics.clone(), ended);
        let router = Router::new(
            directory.clone(),
            registry.clone(),
            streams.clone(),
            metrics.clone(),
        );
        let workers = std::thread::available_parallelism()
            .and_then(Workers::start)
            .context("start the worker threads")?;
        let budget = Budget::new(args.buffer_budget as usize);
        let name_service = NameService::load(&state);
        let forwards = match &cluster {
            Some(_) => load_forwards(&state, &forwards::own_ports(&args)),
            None => Vec::new(),
        };
        Ok(Self {
            args,
            state,
            advertised,
            trust,
            tokens,
            directory,
            registry,
            router,
            streams,
            metrics,
            workers,
            budget,
            editor,
            facts,
            instance,
            spans,
            listed_tx: watch::Sender::default(),
            name_service_tx: watch::Sender::new(name_service),
            forwards_tx: watch::Sender::new(forwards),
            listeners,
            departure: Departure::new(),
            clients: TaskTracker::new(),
            cluster: cluster.zip(writer).map(|(cluster, writer)| JoinedCluster {
                cluster,
                writer,
                authority,
            }),
        })
    }

    /// Takes sockets over, or binds them. If one cannot be had, a proxy that runs goes on.
    fn bind(&self, sockets: &Sockets) -> Result<Bound> {
        let (listen, listeners) = (&self.args.listen, &self.listeners);
        let tcp = |address, used_by| listen::bind(listeners, address, used_by);
        let host = |path| listeners.local(path, Access::Owner, SocketUse::Programs);
        Ok(Bound {
            agents: self.bind_agents()?,
            peers: self
                .may_have_peers()
                .then(|| tcp(self.args.peers.peer_listen, SocketUse::Programs))
                .transpose()?,
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

    fn bind_agents(&self) -> Result<TcpListener> {
        let listen = &self.args.listen;
        let protocol = if listen.mptcp && culvert_tunnel::has_mptcp() {
            Protocol::MPTCP
        } else {
            Protocol::TCP
        };
        let agents = listen::bind_protocol(
            &self.listeners,
            listen.agent_listen,
            SocketUse::Agents,
            protocol,
        )?;
        if let Some(name) = &listen.tunnel_congestion
            && culvert_tunnel::has_congestion(name)
        {
            culvert_tunnel::choose_congestion(&agents, name);
        }
        Ok(agents)
    }

    fn spawn_idle(&self, supervisor: &mut Supervisor) -> Idle<u64> {
        let idle = Idle::default();
        let streams = self.streams.clone();
        let looking = idle.clone().keep_looking(move || streams.counts());
        supervisor.spawn_observer("idle streams", looking);
        idle
    }

    fn admin(
        &self,
        supervisor: &Supervisor,
        readiness: &Readiness,
        logs: Logs,
        socket: PathBuf,
        idle: Idle<u64>,
    ) -> Result<Admin> {
        let mut metrics = MetricsRegistry::default();
        let scraped = Scraped {
            directory: self.directory.clone(),
            registry: self.registry.clone(),
            budget: self.budget.clone(),
        };
        self.metrics.register(&mut metrics, scraped);
        self.workers
            .register(metrics.sub_registry_with_prefix("culvert_proxy"));
        let claims = debug::Claims {
            edge_ranges: self.args.directory.edge_range.clone(),
            annotations: self.args.kubernetes.trust_node_annotations,
        };
        let debug = debug::routes(
            claims,
            self.directory.clone(),
            self.registry.clone(),
            self.streams.clone(),
            idle,
        )
        .merge(debug::tasks(
            self.workers.runtimes(),
            supervisor.running(),
            self.registry.clone(),
            self.streams.clone(),
        ));
        let listen = AdminListen {
            program: "culvert-proxy",
            address: self.args.listen.admin_listen,
            metrics: self.args.listen.metrics_listen,
            socket,
        };
        Admin::bind(
            &listen,
            &self.listeners,
            readiness.clone(),
            metrics,
            logs,
            debug,
        )
    }

    fn spawn_maintenance(&self, supervisor: &mut Supervisor, readiness: &Readiness) {
        let drain = supervisor.drain();
        let registry = self.registry.clone();
        let trust = self.trust.clone();
        let editor = self.editor.clone();
        if self.args.directory.directory_file.is_some() && editor.file_problem().is_none() {
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

    /// Follows the cluster's changes.
    fn spawn_cluster(&self, supervisor: &mut Supervisor, readiness: &Readiness) {
        let Some(JoinedCluster {
            cluster,
            writer,
            authority,
        }) = &self.cluster
        else {
            return;
        };
        let drain = supervisor.drain();
        let (registry, trust) = (self.registry.clone(), self.trust.clone());
        let gone = move |node: &_| {
            trust.departed(node);
            registry.close(node);
        };
        let nodes = cluster.clone().follow_nodes(
            writer.clone(),
            self.metrics.clone(),
            readiness.gate("cluster"),
            gone,
            drain,
        );
        supervisor.spawn("cluster nodes", nodes);
        let gate = readiness.gate("revocations");
        let shared =
            cluster
                .clone()
                .share_revocations(self.trust.clone(), gate, supervisor.drain());
        supervisor.spawn("cluster revocations", shared);
        let (events, told) = Events::channel();
        let ports_tx = watch::Sender::default();
        let named = cluster.clone().keep_name_service(
            ports_tx.subscribe(),
            self.name_service_tx.clone(),
            self.state.clone(),
            supervisor.drain(),
        );
        supervisor.spawn("Service of names", named);
        let forwards = cluster.clone().follow_forwards(
            forwards::own_ports(&self.args),
            self.state.clone(),
            events.clone(),
            self.forwards_tx.clone(),
            supervisor.drain(),
        );
        supervisor.spawn("cluster forwards", forwards);
        let ports = cluster.clone().follow_ports(
            writer.clone(),
            self.state.clone(),
            events,
            ports_tx,
            supervisor.drain(),
        );
        supervisor.spawn("cluster ports", ports);
        let hosts = cluster.clone().write_hosts(
            self.directory.clone(),
            self.name_service_tx.subscribe(),
            supervisor.drain(),
        );
        supervisor.spawn("cluster hosts", hosts);
        supervisor.spawn(
            "Events",
            cluster
                .clone()
                .write_events(self.directory.clone(), told, supervisor.drain()),
        );
        if let Some(authority) = authority {
            supervisor.spawn(
                "cluster authority",
                authority.clone().follow(supervisor.drain()),
            );
        }
        let told = cluster.clone().tell_agents(
            self.trust.clone(),
            self.advertised.clone(),
            self.metrics.clone(),
            supervisor.drain(),
        );
        supervisor.spawn("agents' ConfigMap", told);
        self.spawn_leases(cluster, supervisor, readiness);
    }

    /// Makes this proxy known to the cluster's others, and them to this one.
    fn spawn_leases(&self, cluster: &Cluster, supervisor: &mut Supervisor, readiness: &Readiness) {
        let contact = follow_contact(
            readiness.gate("peers"),
            self.listed_tx.subscribe(),
            self.registry.clone(),
        );
        supervisor.spawn_observer("contact with peers", contact);
        let given = self.args.peers.peer_advertise.as_ref();
        let address = PeerAdvertise::address(given, self.args.peers.peer_listen);
        if address.is_none() {
            tracing::error!(
                "this host has no address that other proxies could dial: start the proxy with \
                 --peer-advertise HOST:PORT"
            );
        }
        let own = address.map(|address| OwnLease {
            instance: self.instance.clone(),
            address,
        });
        let (tunnels, drain) = (self.metrics.tunnels.clone(), supervisor.drain());
        let leases = cluster.clone().follow_leases(
            own,
            move || u32::try_from(tunnels.get()).unwrap_or(0),
            self.listed_tx.clone(),
            self.metrics.clone(),
            async move { drain.begun().await },
        );
        supervisor.spawn("cluster leases", leases);
    }

    fn control(&self, primary: Option<PrimaryClient>) -> Control {
        Control {
            directory: self.directory.clone(),
            editor: self.editor.clone(),
            trust: self.trust.clone(),
            tokens: self.tokens.clone(),
            registry: self.registry.clone(),
            own: self.own_info(),
            advertised: self.advertised.clone(),
            explainer: Explainer::new(
                self.directory.clone(),
                self.registry.clone(),
                self.router.clone(),
            )
            .with_direct(self.direct()),
            primary,
        }
    }

    fn spawn_operators(
        &self,
        supervisor: &mut Supervisor,
        sockets: OperatorSockets,
        peers: Option<&Arc<Peers>>,
    ) {
        let control = self.control(Self::primary_client(peers));
        supervisor.spawn(
            "control socket",
            control::serve(sockets.control, control, supervisor.drain()),
        );
        supervisor.spawn(
            "directory socket",
            service::serve(
                sockets.directory,
                self.directory.clone(),
                supervisor.drain(),
            ),
        );
    }

    fn spawn_agents(
        &self,
        supervisor: &mut Supervisor,
        listener: TcpListener,
        peers: Option<Arc<Peers>>,
    ) {
        let drain = supervisor.drain();
        let admissions = Admissions::default();
        supervisor.spawn(
            "tunnels' certificates",
            admissions
                .clone()
                .keep_looking(self.trust.clone(), drain.clone()),
        );
        let proxies = ProxyList::new(
            self.own_info(),
            self.registry.clone(),
            self.departure.agents(),
        );
        supervisor.spawn(
            "list of proxies",
            proxies.clone().keep_looking(drain.clone()),
        );
        let agents = Agents::new(Parts {
            admissions,
            trust: self.trust.clone(),
            registry: self.registry.clone(),
            enroll: self.enroll_service(peers),
            tunnel: ProxyTunnel {
                far_end: FarEnd::Agent,
                stream_window: self.args.stream_window,
                max_streams: MAX_STREAMS_PER_AGENT,
                streams_in_life: STREAMS_IN_LIFE,
                budget: self.budget.clone(),
            },
            metrics: self.metrics.clone(),
            strangers: Strangers::new(self.args.listen.max_handshakes),
            balancers: Balancers::new(&self.args.listen.proxy_protocol),
            instance: self.instance.clone(),
            proxies,
            drain: drain.clone(),
            streams: self.streams.clone(),
            clients: self.clients.clone(),
        });
        let accepting = Accepting::agents(drain, self.departure.agents());
        // Not for the tunnels' tasks to hold, which end with them.
        let workers = self.workers.clone();
        let serve_one = move |agent, connections: &TaskTracker| {
            agents.serve(&workers.next(), agent, connections)
        };
        supervisor.spawn(
            "agent port",
            listen::serve(listener, "agents", accepting, serve_one),
        );
    }

    /// What this proxy says about itself.
    fn own_info(&self) -> PeerInfo {
        let addresses = self.advertised.given.iter().map(ToString::to_string);
        own_info(self.instance.clone(), addresses.collect())
    }

    fn enroll_service(&self, peers: Option<Arc<Peers>>) -> EnrollServer<Enroll> {
        let accounts = self.cluster.as_ref();
        let accounts = accounts.map(|joined| ServiceAccounts::new(joined.cluster.clone()));
        enroll::service(
            self.trust.clone(),
            self.tokens.clone(),
            accounts,
            self.metrics.clone(),
            peers,
        )
    }
}

/// The queue of connections that have ended, and what sends spans of them, if a collector is given.
fn spans(
    args: &RunArgs,
    instance: &Instance,
    metrics: &Metrics,
) -> Result<Option<(EndedStreams, SpanExporter)>> {
    let Some(url) = &args.spans.otlp_endpoint else {
        return Ok(None);
    };
    let (ended, ended_rx) = EndedStreams::channel(metrics.clone());
    let exporter = SpanExporter::new(url, &args.spans, instance, metrics.clone(), ended_rx)?;
    Ok(Some((ended, exporter)))
}

fn trust_config(
    args: &TrustArgs,
    advertised: &Advertised,
    state: StateDir,
    cluster: Option<&Cluster>,
) -> TrustConfig {
    let lifetime = if cluster.is_some() {
        CLUSTER_LIFETIME
    } else {
        LIFETIME
    };
    let source = match args {
        TrustArgs {
            tls_cert: Some(cert),
            tls_key: Some(key),
            agent_ca: Some(agent_ca),
            ..
        } => TrustSource::Ready {
            cert: cert.clone(),
            key: key.clone(),
            agent_ca: agent_ca.clone(),
        },
        TrustArgs {
            ca_cert: Some(cert),
            ca_key: Some(key),
            ..
        } => TrustSource::Authority {
            cert: cert.clone(),
            key: key.clone(),
        },
        _ => TrustSource::Embedded,
    };
    TrustConfig {
        state,
        source,
        server_name: args.server_name.clone(),
        hosts: advertised
            .given
            .iter()
            .map(|advertised| advertised.host.to_string())
            .collect(),
        certificate_lifetime: args.certificate_lifetime.unwrap_or(lifetime),
    }
}

fn directory_config(
    args: &RunArgs,
    state: StateDir,
    api_servers: BTreeSet<IpAddr>,
) -> Result<DirectoryConfig> {
    let RunArgs {
        directory: args,
        kubernetes,
        listen,
        peers,
        ..
    } = args;
    let nodes_from = if kubernetes.wanted() {
        NodesFrom::Cluster
    } else if peers.follow.is_some() {
        NodesFrom::Primary
    } else {
        NodesFrom::Operators
    };
    ensure!(
        args.directory_file.is_none() || nodes_from != NodesFrom::Cluster,
        "--directory: in a cluster its Nodes are the only ones, for all proxies must agree: leave \
         out --directory or --kubernetes"
    );
    Ok(DirectoryConfig {
        state,
        nodes_from,
        file: args.directory_file.clone(),
        protect: args.protect.clone(),
        edge_ranges: args.edge_range.clone(),
        direct: listen.direct.clone(),
        given: ClusterOwn {
            api_servers,
            service_ranges: kubernetes.service_range.iter().map(IpNet::trunc).collect(),
            pod_ranges: kubernetes.pod_range.iter().map(IpNet::trunc).collect(),
        },
        vip4_range: args.vip4_range,
        vip6_range: args.vip6_range,
        zone: args
            .dns_zone
            .parse::<Zone>()
            .map_err(anyhow::Error::msg)
            .context("--dns-zone")?,
    })
}
