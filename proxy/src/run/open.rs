//! Opens the parts of a proxy as its arguments say.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_daemon::{Listeners, Workers};
use culvert_proxy_cluster::{Cluster, NameService, SharedAuthority, load_forwards};
use culvert_proxy_core::directory::{
    self, ClusterOwn, ClusterWriter, DirectoryConfig, Handles, NodesFrom,
};
use culvert_proxy_core::forward::Forward;
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::metrics::Metrics;
use culvert_proxy_core::state::StateDir;
use culvert_proxy_operators::spans::{SpanArgs, SpanExporter};
use culvert_proxy_streams::ended::EndedStreams;
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::route::Router;
use culvert_proxy_trust::tokens::Tokens;
use culvert_proxy_trust::{Trust, TrustConfig, TrustSource};
use ipnet::IpNet;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::cluster::JoinedCluster;
use super::{Proxy, others, succession};
use crate::config::Config;
use crate::handover::{Departure, Takeover};

/// Opens what is on disk, with what there is to take over.
pub(super) async fn open(config: Config) -> Result<(Proxy, Takeover)> {
    let cluster = match config.nodes_from {
        NodesFrom::Cluster => Some(Cluster::open(&config.kubernetes).await?),
        NodesFrom::Operators | NodesFrom::Primary => None,
    };
    let takeover = succession::ask_others(&config).await;
    let proxy = Proxy::open(config, cluster, takeover.listeners()).await?;
    Ok((proxy, takeover))
}

impl Proxy {
    async fn open(config: Config, cluster: Option<Cluster>, listeners: Listeners) -> Result<Self> {
        let state = StateDir::open_or_inherit(&config.state_dir, &listeners)?;
        let Handles {
            directory,
            editor,
            cluster: writer,
            facts,
        } = open_directory(&config, state.clone(), cluster.as_ref()).await?;
        others::check_follower(&config, &state)?;
        let authority = shared_authority(&config, cluster.as_ref(), &state).await?;
        let trust = trust_config(&config, state.clone(), authority.as_ref());
        let trust = Trust::open(trust, directory.clone())?;
        let tokens = Tokens::open(state.clone(), config.trust.token_lifetime)?;
        let metrics = Metrics::default();
        let registry = Registry::new(directory.clone(), metrics.clone());
        let instance = Instance::random();
        let (ended, spans) = spans(&config.spans, &instance, &metrics)?.unzip();
        let streams = Streams::new(metrics.clone(), ended);
        let router = Router::new(
            directory.clone(),
            registry.clone(),
            streams.clone(),
            metrics.clone(),
        );
        let name_service = NameService::load(&state);
        Ok(Self {
            advertised: config.advertised.clone(),
            trust,
            tokens,
            directory,
            registry,
            router,
            streams,
            metrics,
            workers: start_workers()?,
            editor,
            facts,
            instance,
            spans,
            listed_tx: watch::Sender::default(),
            name_service_tx: watch::Sender::new(name_service),
            forwards_tx: watch::Sender::new(last_forwards(&config, &state)),
            daemon_set_tx: watch::Sender::default(),
            listeners,
            departure: Departure::new(),
            clients: TaskTracker::new(),
            cluster: joined_cluster(cluster, writer, authority),
            config,
            state,
        })
    }
}

fn start_workers() -> Result<Arc<Workers>> {
    let threads = std::thread::available_parallelism();
    let started = threads.and_then(Workers::start);
    started.context("start the worker threads")
}

fn joined_cluster(
    cluster: Option<Cluster>,
    writer: Option<ClusterWriter>,
    authority: Option<SharedAuthority>,
) -> Option<JoinedCluster> {
    Some(JoinedCluster {
        cluster: cluster?,
        writer: writer?,
        authority,
    })
}

/// The authority that the cluster's proxies share, unless the operator's own files are used.
async fn shared_authority(
    config: &Config,
    cluster: Option<&Cluster>,
    state: &StateDir,
) -> Result<Option<SharedAuthority>> {
    match cluster {
        Some(cluster) if config.trust.source == TrustSource::Embedded => {
            let shared = SharedAuthority::open(cluster.clone(), state).await?;
            Ok(Some(shared))
        }
        Some(_) | None => Ok(None),
    }
}

/// What the cluster's ConfigMap said last of forwards.
fn last_forwards(config: &Config, state: &StateDir) -> Vec<Forward> {
    match config.nodes_from {
        NodesFrom::Cluster => load_forwards(state, &config.own_ports),
        NodesFrom::Operators | NodesFrom::Primary => Vec::new(),
    }
}

/// The queue of connections that have ended, and what sends spans of them, if a collector is given.
fn spans(
    given: &SpanArgs,
    instance: &Instance,
    metrics: &Metrics,
) -> Result<Option<(EndedStreams, SpanExporter)>> {
    let Some(url) = &given.otlp_endpoint else {
        return Ok(None);
    };
    let (ended, ended_rx) = EndedStreams::channel(metrics.clone());
    let exporter = SpanExporter::new(url, given, instance, metrics.clone(), ended_rx)?;
    Ok(Some((ended, exporter)))
}

fn trust_config(config: &Config, state: StateDir, shared: Option<&SharedAuthority>) -> TrustConfig {
    let given = &config.trust;
    let hosts = config.advertised.given.iter();
    TrustConfig {
        state,
        source: match shared {
            Some(shared) => shared.source(),
            None => given.source.clone(),
        },
        server_name: given.server_name.clone(),
        hosts: hosts.map(|given| given.host.to_string()).collect(),
        certificate_lifetime: given.certificate_lifetime,
    }
}

async fn open_directory(
    config: &Config,
    state: StateDir,
    cluster: Option<&Cluster>,
) -> Result<Handles> {
    let api_servers = match cluster {
        Some(cluster) => cluster.api_addresses().await,
        None => BTreeSet::new(),
    };
    let given = &config.directory;
    let kubernetes = &config.kubernetes;
    let opened = directory::open(&DirectoryConfig {
        state,
        nodes_from: config.nodes_from,
        file: given.directory_file.clone(),
        protect: given.protect.clone(),
        edge_ranges: given.edge_range.clone(),
        direct: config.listen.direct.clone(),
        given: ClusterOwn {
            api_servers,
            service_ranges: kubernetes.service_range.iter().map(IpNet::trunc).collect(),
            pod_ranges: kubernetes.pod_range.iter().map(IpNet::trunc).collect(),
        },
        vip4_range: given.vip4_range,
        vip6_range: given.vip6_range,
        zone: config.zone.clone(),
    });
    Ok(opened?)
}
