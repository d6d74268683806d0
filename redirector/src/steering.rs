//! The one task that changes the host: keeps hooks, nftables and routes equal to the directory.

mod apply;
mod hooks;
mod in_force;
mod instance_lock;
mod restore;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::{Drain, Gate, Readiness, chain};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::config::{Config, NodeIps};
use crate::directory::{Feed, Ranges};
use crate::mechanisms::bpf::{EbpfMechanism, Pins};
use crate::mechanisms::nft::{Events, NftTable};
use crate::mechanisms::recent::Recent;
use crate::mechanisms::vip_routes::Routes;
use crate::metrics::{Drift, Repair, SteeringMetrics};
use crate::own_networks::{OwnNetworks, Withheld};
use culvert_api::installed::Mechanism;

pub(crate) use in_force::InForce;
pub(crate) use instance_lock::InstanceLock;

/// Interval between renewals of the lease: a fifth of it.
const RENEWAL: Duration = Duration::from_secs(2);
/// Interval between checks that everything is still installed; each runs `nft`.
const INSPECTION: Duration = Duration::from_secs(5);

/// Owner of everything that is installed on the host.
pub(crate) struct Steering {
    config: Config,
    lock: InstanceLock,
    pins: Pins,
    feed: watch::Receiver<Feed>,
    ebpf: Option<EbpfMechanism>,
    hooks: hooks::HookHealth,
    nft: Option<NftTable>,
    routes: Routes,
    /// As last read.
    networks: OwnNetworks,
    gates: Gates,
    metrics: SteeringMetrics,
    in_force: watch::Sender<InForce>,
    progress: Progress,
    recent: RecentCounts,
    /// How often each was put right, as [`Drift::VARIANTS`] orders it.
    repairs: [u64; 4],
}

/// What the mechanisms have counted lately. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentCounts {
    /// As [`crate::mechanisms::nft::read_counts`] orders them.
    pub(crate) table: Recent<4>,
    /// As [`crate::mechanisms::bpf::Tables::judged_counts`] orders them.
    pub(crate) hooks: Recent<3>,
    /// What was put right, as [`Drift::VARIANTS`] orders it.
    pub(crate) repairs: Recent<4>,
}

/// Progress on the last plan.
#[derive(Default)]
struct Progress {
    /// The ranges whose routes exist: a later overlap is reported, and no longer fatal.
    routed: Option<Ranges>,
    /// Something failed and will be tried again.
    incomplete: bool,
    /// How many destinations exceed the capacity of the hooks' table.
    nftables_only: usize,
    /// Addresses in networks of this host.
    withheld: Vec<Withheld>,
    /// The interfaces that lead to other hosts, as nftables has them.
    uplinks: BTreeSet<String>,
    /// The bridges among them.
    outer_bridges: Vec<String>,
    /// Why the current uplinks are unknown.
    unguarded: Option<String>,
    /// Whether the hooks were attached when last checked.
    hooked: bool,
    /// Whether the nftables table existed when last checked.
    table: bool,
}

struct Gates {
    directory: Gate,
    hooks: Gate,
    nftables: Gate,
    route: Gate,
    /// Open while something steers pods' connections.
    pods: Gate,
    /// Open once nothing is left of mechanisms that an earlier redirector used and that are
    /// switched off now.
    switched_off: Gate,
}

impl Gates {
    fn new(readiness: &Readiness, mechanism: Mechanism) -> Self {
        let gates = Self {
            directory: readiness.gate("directory"),
            hooks: readiness.gate("hooks"),
            nftables: readiness.gate("nftables"),
            route: readiness.gate("route"),
            pods: readiness.gate("pods"),
            switched_off: readiness.gate("switched off"),
        };
        if mechanism == Mechanism::Both {
            gates.switched_off.open();
        } else {
            gates
                .switched_off
                .close("what an earlier redirector installed may be there still");
        }
        gates
    }
}

impl Steering {
    /// Installs the saved directory, before anything waits for the proxy.
    pub(crate) async fn install(
        config: Config,
        lock: InstanceLock,
        feed: watch::Receiver<Feed>,
        readiness: &Readiness,
        metrics: SteeringMetrics,
    ) -> Result<Self> {
        let gates = Gates::new(readiness, config.mechanism);
        let pins = Pins::new(&config.bpffs);
        let nft = config.mechanism.has_nftables().then(NftTable::default);
        let table = nft.as_ref().map(NftTable::recent).unwrap_or_default();
        let hooks = Recent::default();
        let routes = Routes::open()?;
        let networks = OwnNetworks::read(&routes, &config.steered_networks).await;
        let mut steering = Self {
            networks: networks.context("read the networks of this host")?,
            config,
            lock,
            pins,
            feed,
            ebpf: None,
            hooks: hooks::HookHealth::default(),
            nft,
            routes,
            gates,
            metrics,
            in_force: watch::Sender::new(InForce::NOTHING),
            progress: Progress::default(),
            recent: RecentCounts {
                table,
                hooks,
                repairs: Recent::default(),
            },
            repairs: [0; 4],
        };
        let known = steering.plan();
        if let Some(plan) = &known {
            // Before the hooks: they would steer connections to addresses that the host itself uses
            // in the range.
            steering.apply_routes(plan).await?;
        }
        steering.install_hooks(known.as_ref())?;
        steering.apply().await?;
        steering.publish();
        Ok(steering)
    }

    /// Reports changes of the mechanism in force.
    pub(crate) fn in_force(&self) -> watch::Receiver<InForce> {
        self.in_force.subscribe()
    }

    /// What is counted lately, as of each inspection.
    pub(crate) fn recent(&self) -> RecentCounts {
        self.recent.clone()
    }

    /// Follows the directory until the drain begins. What is installed stays, so the kernel keeps
    /// steering without this process.
    pub(crate) async fn run(mut self, node_tx: watch::Sender<NodeIps>, drain: Drain) -> Result<()> {
        let mut renewal = interval(RENEWAL);
        let mut inspection = interval(INSPECTION);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        inspection.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = Events::listen();
        loop {
            tokio::select! {
                // First: the directory's task may end first.
                biased;
                () = drain.begun() => return Ok(()),
                changed = self.feed.changed() => {
                    changed.context("the directory's task has ended")?;
                    self.apply().await?;
                    self.publish();
                }
                _now = renewal.tick() => {
                    self.renew_lease();
                    self.reserve_ports();
                }
                () = events.touched() => self.restore_nftables().await,
                _now = inspection.tick() => {
                    self.follow_node(&node_tx);
                    self.restore().await?;
                }
            }
        }
    }

    fn repaired(&mut self, drift: Drift) {
        self.metrics.record_drift(drift, Repair::Repaired);
        self.repairs[drift as usize] += 1;
    }

    /// Also without a proxy: it may not be able to listen before.
    fn reserve_ports(&mut self) {
        if let Some(ebpf) = &mut self.ebpf
            && let Err(error) = ebpf.reserve_ports(&self.config)
        {
            tracing::error!(error = chain(&error), "intercept ports not reserved");
        }
    }

    fn renew_lease(&mut self) {
        if self.feed.borrow().is_live()
            && let Some(ebpf) = &mut self.ebpf
            && let Err(error) = ebpf.renew_lease()
        {
            tracing::error!(%error, "offline lease not renewed");
        }
    }
}
