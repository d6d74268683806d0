//! Puts the running proxy together: opens its state, binds all sockets, and serves under one
//! supervisor.

mod others;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_api::Zone;
use culvert_api::proto::enroll::enroll_server::EnrollServer;
use culvert_daemon::{
    Admin, AdminListen, Drain, Idle, Logs, Readiness, Supervisor, Workers, raise_open_file_limit,
    report_to_systemd, use_small_pages,
};
use culvert_tunnel::{Budget, FarEnd, ProxyTunnel, STREAM_WINDOW_RANGE, STREAMS_IN_LIFE};
use ipnet::IpNet;
use prometheus_client::registry::Registry as MetricsRegistry;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::advertise::{Advertised, PeerAdvertise};
use crate::agents::admissions::Admissions;
use crate::agents::enroll;
use crate::agents::enroll::Enroll;
use crate::agents::port::{Agents, Parts};
use crate::agents::proxy_list::ProxyList;
use crate::args::{ListenArgs, RunArgs, TrustArgs};
use crate::clients::connect::Connect;
use crate::clients::direct::Direct;
use crate::clients::intercept::Intercept;
use crate::clients::original_dst::{OriginalDsts, TRIAL};
use crate::cluster::{Cluster, Events, ListedPeer, OwnLease, ServiceAccounts, SharedAuthority};
use crate::directory::service;
use crate::directory::{
    self, ClusterOwn, ClusterWriter, Directory, DirectoryConfig, Editor, FactsWriter, Handles,
    NodesFrom,
};
use crate::instance::Instance;
use crate::metrics::Metrics;
use crate::operators::control::{self, Control};
use crate::operators::debug;
use crate::operators::explain::Explainer;
use crate::operators::scraped::Scraped;
use crate::peers::{Peers, PrimaryClient, own_info};
use crate::sockets::listen;
use crate::sockets::local_socket::{Access, LocalSocket};
use crate::sockets::proxy_protocol::Balancers;
use crate::sockets::strangers::{Phase, Strangers, say_busy};
use crate::state::StateDir;
use crate::streams::elsewhere::PeerInfo;
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

/// The time that a start waits for the API server to list the revoked certificates.
const REVOCATIONS_TIMEOUT: Duration = Duration::from_secs(2);

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
    raise_open_file_limit();
    use_small_pages();
    let mut supervisor = Supervisor::new(args.grace)?;
    let readiness = Readiness::default();
    let listening = readiness.gate("listeners");
    supervisor.spawn_observer(
        "systemd",
        report_to_systemd(readiness.clone(), &[], supervisor.drain()),
    );
    let cluster = if args.kubernetes.wanted() {
        Some(Cluster::open(&args.kubernetes).await?)
    } else {
        None
    };
    let proxy = Proxy::open(args, cluster).await?;
    proxy
        .spawn_admin(&mut supervisor, &readiness, logs, sockets.admin)
        .await?;
    proxy.spawn_maintenance(&mut supervisor, &readiness);
    proxy.spawn_cluster(&mut supervisor, &readiness);
    let peers = proxy.peers(&supervisor, &readiness)?;
    proxy.spawn_operators(&mut supervisor, &sockets.control, peers.as_ref())?;
    proxy.spawn_peers(&mut supervisor, peers.as_ref())?;
    // Until the revocations are known, no certificate is admitted that this proxy has not seen
    // before.
    if timeout(REVOCATIONS_TIMEOUT, proxy.trust.revocations_shared())
        .await
        .is_err()
    {
        tracing::warn!(
            "starting without the cluster's revocations: agents that are new to this proxy have \
             to wait"
        );
    }
    proxy.wait_for_peers().await;
    proxy.spawn_agents(&mut supervisor, peers)?;
    proxy.spawn_frontends(&mut supervisor, &readiness)?;
    listening.open();
    let drain = supervisor.drain();
    supervisor.spawn_observer("readiness", async move {
        drain.begun().await;
        listening.close("the proxy drains and takes no new connections");
        std::future::pending().await
    });
    supervisor.run().await
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
    /// The other proxies of the cluster.
    listed_tx: watch::Sender<BTreeSet<ListedPeer>>,
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
    async fn open(args: RunArgs, cluster: Option<Cluster>) -> Result<Self> {
        let state = StateDir::open(&args.state_dir)?;
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
        let streams = Streams::new(metrics.clone());
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
            instance: Instance::random(),
            listed_tx: watch::Sender::default(),
            cluster: cluster.zip(writer).map(|(cluster, writer)| JoinedCluster {
                cluster,
                writer,
                authority,
            }),
        })
    }

    async fn spawn_admin(
        &self,
        supervisor: &mut Supervisor,
        readiness: &Readiness,
        logs: Logs,
        socket: PathBuf,
    ) -> Result<()> {
        let mut metrics = MetricsRegistry::default();
        let scraped = Scraped {
            directory: self.directory.clone(),
            registry: self.registry.clone(),
            budget: self.budget.clone(),
        };
        self.metrics.register(&mut metrics, scraped);
        self.workers
            .register(metrics.sub_registry_with_prefix("culvert_proxy"));
        let idle = Idle::default();
        let claims = debug::Claims {
            edge_ranges: self.args.directory.edge_range.clone(),
            annotations: self.args.kubernetes.trust_node_annotations,
        };
        let debug = debug::routes(
            claims,
            self.directory.clone(),
            self.registry.clone(),
            self.streams.clone(),
            idle.clone(),
        );
        let listen = AdminListen {
            program: "culvert-proxy",
            address: self.args.listen.admin_listen,
            metrics: self.args.listen.metrics_listen,
            socket,
        };
        let admin = Admin::bind(&listen, readiness.clone(), metrics, logs, debug).await?;
        supervisor.spawn_observer("admin server", admin.serve());
        let streams = self.streams.clone();
        supervisor.spawn_observer("idle streams", idle.keep_looking(move || streams.counts()));
        Ok(())
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
        let ports = cluster.clone().follow_ports(
            writer.clone(),
            self.state.clone(),
            events,
            supervisor.drain(),
        );
        supervisor.spawn("cluster ports", ports);
        supervisor.spawn(
            "cluster hosts",
            cluster
                .clone()
                .write_hosts(self.directory.clone(), supervisor.drain()),
        );
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
        self.spawn_leases(cluster, supervisor);
    }

    /// Makes this proxy known to the cluster's others, and them to this one.
    fn spawn_leases(&self, cluster: &Cluster, supervisor: &mut Supervisor) {
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
        control_socket: &Path,
        peers: Option<&Arc<Peers>>,
    ) -> Result<()> {
        let control = self.control(Self::primary_client(peers));
        let socket = LocalSocket::bind(control_socket, Access::Owner)?;
        supervisor.spawn(
            "control socket",
            control::serve(socket, control, supervisor.drain()),
        );
        let socket = LocalSocket::bind(&self.args.listen.directory_socket, Access::Owner)?;
        supervisor.spawn(
            "directory socket",
            service::serve(socket, self.directory.clone(), supervisor.drain()),
        );
        Ok(())
    }

    fn spawn_agents(&self, supervisor: &mut Supervisor, peers: Option<Arc<Peers>>) -> Result<()> {
        let listener = listen::bind(self.args.listen.agent_listen)?;
        let drain = supervisor.drain();
        let admissions = Admissions::default();
        supervisor.spawn(
            "tunnels' certificates",
            admissions
                .clone()
                .keep_looking(self.trust.clone(), drain.clone()),
        );
        let proxies = ProxyList::new(self.own_info(), self.registry.clone(), drain.clone());
        supervisor.spawn("list of proxies", proxies.clone().keep_looking());
        let agents = Agents::new(Parts {
            admissions,
            trust: self.trust.clone(),
            registry: self.registry.clone(),
            streams: self.streams.clone(),
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
        });
        // Not for the tunnels' tasks to hold, which end with them.
        let workers = self.workers.clone();
        let serve_one = move |agent, connections: &TaskTracker| {
            agents.serve(&workers.next(), agent, connections)
        };
        supervisor.spawn(
            "agent port",
            listen::serve(listener, "agents", drain, serve_one),
        );
        Ok(())
    }

    /// What this proxy says about itself.
    fn own_info(&self) -> PeerInfo {
        let addresses = self.advertised.given.iter().map(ToString::to_string);
        own_info(self.instance.clone(), addresses.collect())
    }

    fn direct(&self) -> Direct {
        Direct::new(
            self.directory.clone(),
            &self.args.listen.direct,
            self.metrics.clone(),
        )
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

    fn spawn_frontends(&self, supervisor: &mut Supervisor, readiness: &Readiness) -> Result<()> {
        let listen = &self.args.listen;
        let drain = supervisor.drain();
        let original_dsts = Arc::new(OriginalDsts::new(&self.args.bpffs));
        let gate = readiness.gate("original destinations");
        supervisor.spawn(
            "original destinations",
            original_dsts.clone().watch(TRIAL, gate, drain.clone()),
        );
        let intercept = Intercept {
            original_dsts,
            router: self.router.clone(),
            workers: self.workers.clone(),
            foreign: Arc::default(),
        };
        for address in &listen.intercept_listen {
            let (listener, intercept) = (listen::bind(*address)?, intercept.clone());
            let serve_one =
                move |client, connections: &TaskTracker| intercept.serve(client, connections);
            supervisor.spawn(
                "intercept port",
                listen::serve(listener, "intercept", drain.clone(), serve_one),
            );
        }
        let connect = Connect {
            router: self.router.clone(),
            direct: self.direct(),
            drain: drain.clone(),
            refusals: Arc::default(),
        };
        self.spawn_connect_tls(supervisor, &connect, &drain)?;
        let socket = LocalSocket::bind(&listen.connect_socket, Access::Group)?;
        let serve_one = move |client, connections: &TaskTracker| {
            connections.spawn(connect.clone().serve_unix(client, connections.clone()));
        };
        supervisor.spawn(
            "CONNECT socket",
            listen::serve(socket, "connect_socket", drain, serve_one),
        );
        Ok(())
    }

    fn spawn_connect_tls(
        &self,
        supervisor: &mut Supervisor,
        connect: &Connect,
        drain: &Drain,
    ) -> Result<()> {
        let ListenArgs {
            connect_listen: Some(address),
            connect_client_ca: Some(client_ca),
            ..
        } = &self.args.listen
        else {
            return Ok(());
        };
        let callers = self.trust.callers(client_ca)?;
        let direct = if self.args.listen.connect_listen_direct {
            self.direct()
        } else {
            self.direct().for_edges_only()
        };
        let (listener, connect) = (
            listen::bind(*address)?,
            Connect {
                direct,
                ..connect.clone()
            },
        );
        let strangers = Strangers::new(self.args.listen.max_handshakes);
        let serve_one = move |(client, address): (TcpStream, SocketAddr),
                              connections: &TaskTracker| {
            let Some(tls) = callers.server_config() else {
                return tracing::debug!(client.addr = %address, "CONNECT: nobody may call: see the \
                    error about --connect-client-ca");
            };
            match strangers.enter(address.ip(), Phase::Silent) {
                Ok(permit) => {
                    drop(connections.spawn(connect.clone().serve_tls(tls, client, address, permit)))
                }
                Err(full) => {
                    say_busy(&client);
                    connect.refused(&address, &full);
                }
            }
        };
        supervisor.spawn(
            "CONNECT port",
            listen::serve(listener, "connect_tls", drain.clone(), serve_one),
        );
        Ok(())
    }
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
