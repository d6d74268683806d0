//! The running agent: builds its parts and keeps them going until a signal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use culvert_api::{HostPort, NodeName};
use culvert_daemon::{
    Admin, Drain, Gate, Listeners, Logs, Readiness, Supervisor, VERSION, Workers,
    raise_open_file_limit, report_to_systemd,
};
use culvert_tunnel::MovableStreams;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};

use crate::admin;
use crate::backends::allow_list::CurrentRules;
use crate::backends::ports_config::Ports;
use crate::certificate::current::{Certificates, ClusterSource, Source};
use crate::certificate::first;
use crate::certificate::renewal::Renewal;
use crate::config::Config;
use crate::dial::outbound::Outbound;
use crate::metrics::Metrics;
use crate::tunnels::keeper::TunnelKeeper;
use crate::tunnels::placement::Placement;
use crate::tunnels::round_trips::RoundTrips;
use crate::tunnels::slot::{LastEnd, Shared};
use crate::tunnels::states::Tunnels;

/// Runs the agent.
///
/// # Errors
/// No usable certificate, a taken admin port, or settings that cannot be used. An unreachable proxy
/// is no error, nor is a cluster that has not said yet where the proxies are.
pub(crate) async fn run(config: Config, logs: Logs) -> Result<()> {
    let outbound = Arc::new(outbound(&config)?);
    let proxies = watch::Sender::new(proxies(&config)?);
    let first = First::open(&config.source)?;
    let readiness = Readiness::default();
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::register(&mut registry));
    let tunnels = Tunnels::new(readiness.gate("tunnel"));
    RoundTrips(tunnels.clone()).register(&mut registry);
    let workers = start_workers().context("start the worker threads")?;
    workers.register(registry.sub_registry_with_prefix("culvert_agent"));
    let gate = readiness.gate("certificate");
    let mut supervisor = Supervisor::new(config.grace)?;
    let admin = Admin::bind(
        &config.admin,
        &Listeners::default(),
        readiness.clone(),
        registry,
        logs,
        admin::routes(tunnels.clone(), workers.runtimes(), supervisor.running()),
    )?;
    let node = first.node();
    let node = node.as_ref().map(tracing::field::display);
    tracing::info!(node, version = VERSION, admin.addr = %admin.local_addr(), "agent started");

    raise_open_file_limit();
    let drain = supervisor.drain();
    supervisor.spawn_observer("admin", admin.serve());
    supervisor.spawn_observer("systemd", report_to_systemd(readiness, &[], drain.clone()));
    supervisor.spawn_observer("idle streams", tunnels.clone().watch_idle());
    let agent = Agent {
        allow: allow(&config, &mut supervisor),
        config,
        outbound,
        proxies,
        metrics,
        tunnels,
        workers,
        gate,
    };
    supervisor.spawn("tunnels", agent.run(first, drain));
    supervisor.run().await
}

/// What may be dialled: by the flags and, if it is followed, the folder of ports.
fn allow(config: &Config, supervisor: &mut Supervisor) -> CurrentRules {
    let rules = watch::Sender::new(config.allow.clone());
    let allow = rules.subscribe();
    if let Some(folder) = config.ports.clone() {
        let mut ports = Ports::new(folder, config.allow.clone(), rules);
        ports.read();
        supervisor.spawn_observer("ports", ports.follow());
    }
    allow
}

/// How to reach the proxies, with what the kernel has of the options.
fn outbound(config: &Config) -> Result<Outbound> {
    let mut outbound = Outbound::from_environment(|name| std::env::var(name).ok())?
        .with_segments(config.tunnel_mss)
        .with_congestion(config.tunnel_congestion.clone().or_system());
    if config.mptcp && culvert_tunnel::has_mptcp() {
        outbound = outbound.with_mptcp();
    }
    Ok(outbound)
}

fn start_workers() -> io::Result<Arc<Workers>> {
    Workers::start(std::thread::available_parallelism()?)
}

/// Where the first certificate comes from.
enum First {
    Stored(Box<Certificates>),
    Enrolled(ClusterSource),
}

impl First {
    fn open(source: &Source) -> Result<Self> {
        Ok(match source {
            Source::Cluster(cluster) => Self::Enrolled(cluster.clone()),
            Source::Joined { .. } | Source::Ready(_) => {
                Self::Stored(Box::new(Certificates::load(source.clone())?))
            }
        })
    }

    /// The node, if it is known already.
    fn node(&self) -> Option<NodeName> {
        match self {
            Self::Stored(certificates) => Some(certificates.current().node.clone()),
            Self::Enrolled(_) => None,
        }
    }
}

/// What is left to do once the admin server answers.
struct Agent {
    config: Config,
    allow: CurrentRules,
    outbound: Arc<Outbound>,
    proxies: watch::Sender<Vec<HostPort>>,
    metrics: Arc<Metrics>,
    tunnels: Tunnels,
    workers: Arc<Workers>,
    gate: Gate,
}

impl Agent {
    /// Keeps certificate and tunnels until the drain begins.
    async fn run(self, first: First, drain: Drain) -> Result<()> {
        let certificates = match first {
            First::Stored(certificates) => *certificates,
            First::Enrolled(cluster) => {
                match first::certificates(cluster, &self.outbound, &self.gate, &drain).await {
                    Some(certificates) => certificates,
                    None => return Ok(()),
                }
            }
        };
        let certificates = Arc::new(certificates);
        let refused = Arc::<Notify>::default();
        let shared = Arc::new(Shared {
            certificates: certificates.clone(),
            outbound: self.outbound.clone(),
            allow: self.allow,
            metrics: self.metrics.clone(),
            stream_window: self.config.stream_window,
            budget: self.config.budget,
            keepalive: self.config.keepalive,
            streams_in_life: culvert_tunnel::STREAMS_IN_LIFE,
            instance: format!("{:016x}", rand::random::<u64>()),
            started: milliseconds_since_1970(),
            sequence: AtomicU64::default(),
            last_end: LastEnd::default(),
            placement: Placement::new(self.config.spread),
            movable: MovableStreams::default(),
            refused: refused.clone(),
        });
        let spread = self.config.spread;
        let keeper = TunnelKeeper {
            shared,
            all: self.tunnels,
            spread,
            workers: self.workers,
        };
        let keeper = keeper.run(self.proxies.subscribe(), drain.clone());
        let renewal = Renewal {
            certificates,
            outbound: self.outbound,
            proxies: self.proxies,
            metrics: self.metrics,
            gate: self.gate,
            refused,
        };
        tokio::try_join!(renewal.run(drain), keeper).map(|((), ())| ())
    }
}

fn milliseconds_since_1970() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The proxies as far as they are known before the first certificate.
fn proxies(config: &Config) -> Result<Vec<HostPort>> {
    match &config.source {
        Source::Joined { state, .. } if config.proxies.is_empty() => {
            let proxies = state.joined()?.proxies;
            ensure!(
                !proxies.is_empty(),
                "the join in {} names no proxy: give --proxy HOST:PORT",
                state.path().display()
            );
            Ok(proxies)
        }
        Source::Joined { .. } | Source::Cluster(_) | Source::Ready(_) => Ok(config.proxies.clone()),
    }
}
