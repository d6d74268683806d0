//! Opens the parts of a proxy as its arguments say.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_api::Zone;
use culvert_daemon::{Listeners, Workers};
use culvert_proxy_cluster::{Cluster, NameService, SharedAuthority, load_forwards};
use culvert_proxy_core::advertise::Advertised;
use culvert_proxy_core::directory::{self, ClusterOwn, DirectoryConfig, Handles, NodesFrom};
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::metrics::Metrics;
use culvert_proxy_core::state::StateDir;
use culvert_proxy_operators::spans::SpanExporter;
use culvert_proxy_streams::ended::EndedStreams;
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::route::Router;
use culvert_proxy_trust::tokens::Tokens;
use culvert_proxy_trust::{Trust, TrustConfig, TrustSource};
use culvert_tunnel::Budget;
use ipnet::IpNet;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::cluster::JoinedCluster;
use super::{Proxy, forwards, others, succession};
use crate::args::{RunArgs, TrustArgs};
use crate::handover::{Departure, Takeover};

/// The default validity of agents' certificates: an edge site may be off for weeks.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// In a cluster an agent that was off for longer enrols again by itself.
const CLUSTER_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Opens what is on disk, with what there is to take over.
pub(super) async fn open(args: RunArgs) -> Result<(Proxy, Takeover)> {
    let cluster = if args.kubernetes.is_in_cluster() {
        Some(Cluster::open(&args.kubernetes).await?)
    } else {
        None
    };
    let takeover = succession::ask_others(&args).await;
    let proxy = Proxy::open(args, cluster, takeover.listeners()).await?;
    Ok((proxy, takeover))
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
            daemon_set_tx: watch::Sender::default(),
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
    let nodes_from = if kubernetes.is_in_cluster() {
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
