//! The one task that changes the host: keeps hooks, nftables and routes equal to the directory.

mod alone;
mod hooks;
mod in_force;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::{Drain, Gate, Readiness, chain};
use culvert_redirector_common::names::DESTINATIONS_MAX;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::args::{HookScope, Mechanism};
use crate::config::{Config, NodeIps};
use crate::directory::{Feed, Ranges};
use crate::mechanisms::bpf::Kernel;
use crate::mechanisms::bpf::{Pins, bypassing_data_plane, leaves_pods_out};
use crate::mechanisms::nft::{self, Events, Guard, Nft, NftError, TableSpec};
use crate::mechanisms::vip_routes::{RouteError, Routes};
use crate::metrics::{Drifted, Repair, SteeringMetrics};
use crate::plan::{Freshness, Plan, plan};
use in_force::unseen_pods;

pub(crate) use alone::Alone;
pub(crate) use in_force::InForce;

/// How often the lease is renewed: a fifth of it.
const RENEWAL: Duration = Duration::from_secs(2);
/// How often it is looked whether somebody has removed what is installed; runs `nft`.
const INSPECTION: Duration = Duration::from_secs(5);

/// Owner of everything that is installed on the host.
pub(crate) struct Steering {
    config: Config,
    alone: Alone,
    pins: Pins,
    feed: watch::Receiver<Feed>,
    kernel: Option<Kernel>,
    hooks: hooks::Lookout,
    nft: Option<Nft>,
    routes: Routes,
    gates: Gates,
    metrics: SteeringMetrics,
    in_force: watch::Sender<InForce>,
    progress: Progress,
}

/// What is done of the last plan.
#[derive(Default)]
struct Progress {
    /// The ranges whose routes were made: an overlap that comes later is reported, no longer fatal.
    routed: Option<Ranges>,
    /// Something was not done, and is tried again.
    behind: bool,
    /// How many destinations have no room in the hooks' table.
    beyond: usize,
    /// The interfaces that lead to other hosts, as nftables has them.
    uplinks: BTreeSet<String>,
    /// Why they are not known as they are now.
    unguarded: Option<String>,
    /// The hooks are attached, as last seen.
    hooked: bool,
    /// The nftables table is there, as last seen.
    table: bool,
}

struct Gates {
    directory: Gate,
    hooks: Gate,
    nftables: Gate,
    route: Gate,
    /// Something sees pods' connections.
    pods: Gate,
    /// Nothing is left of mechanisms that an earlier redirector had and that are switched off now.
    switched_off: Gate,
}

impl Steering {
    /// Installs what is known so far, before anything waits for the proxy.
    pub(crate) async fn install(
        config: Config,
        alone: Alone,
        feed: watch::Receiver<Feed>,
        readiness: &Readiness,
        metrics: SteeringMetrics,
    ) -> Result<Self> {
        let gates = Gates {
            directory: readiness.gate("directory"),
            hooks: readiness.gate("hooks"),
            nftables: readiness.gate("nftables"),
            route: readiness.gate("route"),
            pods: readiness.gate("pods"),
            switched_off: readiness.gate("switched off"),
        };
        if config.mechanism == Mechanism::Both {
            gates.switched_off.open();
        } else {
            gates
                .switched_off
                .close("what an earlier redirector installed may be there still");
        }
        let pins = Pins::new(&config.bpffs);
        let nft = config.mechanism.has_nftables().then(Nft::default);
        let routes = Routes::open()?;
        let progress = Progress::default();
        let (in_force, hooks) = (
            watch::Sender::new(InForce::NOTHING),
            hooks::Lookout::default(),
        );
        let kernel = None;
        let mut steering = Self {
            config,
            alone,
            pins,
            feed,
            kernel,
            hooks,
            nft,
            routes,
            gates,
            metrics,
            in_force,
            progress,
        };
        let known = steering.plan();
        if let Some(plan) = &known {
            // Before the hooks, which would take connections to what the host itself has in the
            // range.
            steering.apply_routes(plan).await?;
        }
        steering.install_hooks(known.as_ref())?;
        steering.apply().await?;
        steering.publish();
        Ok(steering)
    }

    /// What steers from now on, and why.
    pub(crate) fn in_force(&self) -> watch::Receiver<InForce> {
        self.in_force.subscribe()
    }

    /// Follows the directory until the drain begins. What is installed stays: traffic goes on
    /// without us.
    pub(crate) async fn run(mut self, node_tx: watch::Sender<NodeIps>, drain: Drain) -> Result<()> {
        let (mut renewal, mut inspection) = (interval(RENEWAL), interval(INSPECTION));
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
                _now = renewal.tick() => self.renew_lease(),
                () = events.touched() => self.restore_nftables().await,
                _now = inspection.tick() => {
                    self.follow_node(&node_tx);
                    self.restore().await?;
                }
            }
        }
    }

    fn plan(&mut self) -> Option<Plan> {
        // Only `run` marks it as seen, which then brings everything up to date.
        let feed = self.feed.borrow().clone();
        if let Some(reason) = &feed.stale {
            self.gates.directory.close(reason.clone());
        }
        let directory = feed.directory.as_ref()?;
        let freshness = if feed.is_live() {
            Freshness::Live
        } else {
            Freshness::Stale
        };
        if feed.is_live() {
            self.gates.directory.open();
        }
        Some(plan(directory, freshness))
    }

    /// Makes everything equal to the directory. Only an overlap of the VIP range, or nftables
    /// missing when nothing else steers, ends the process; what else fails is reported and tried
    /// again.
    async fn apply(&mut self) -> Result<()> {
        let Some(plan) = self.plan() else {
            return Ok(());
        };
        self.progress.behind = false;
        self.metrics.planned(&plan);
        self.apply_routes(&plan).await?;
        self.apply_hooks(&plan);
        self.renew_lease();
        self.apply_nftables(&plan).await?;
        self.retire_hooks();
        self.apply_beyond(&plan);
        if !self.progress.behind && !self.gates.switched_off.is_open() {
            self.remove_switched_off().await?;
            self.gates.switched_off.open();
        }
        Ok(())
    }

    async fn apply_routes(&mut self, plan: &Plan) -> Result<()> {
        if self.config.mechanism == Mechanism::None {
            self.gates.route.open();
            return Ok(());
        }
        match self
            .routes
            .apply(plan.ranges, self.config.intercept.node)
            .await
        {
            Ok(()) => {
                self.progress.routed = Some(plan.ranges);
                self.gates.route.open();
            }
            Err(error @ RouteError::Overlap { .. })
                if self.progress.routed != Some(plan.ranges) =>
            {
                return Err(error.into());
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::error!(reason, "routes not made");
                self.gates.route.close(reason);
                self.progress.behind = true;
            }
        }
        Ok(())
    }

    fn apply_hooks(&mut self, plan: &Plan) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let intercept = &self.config.intercept;
        let applied = kernel
            .apply(intercept, plan)
            .and_then(|()| kernel.prove(intercept.node, plan.ranges));
        match applied {
            Ok(()) if kernel.is_complete() && !self.hooks.is_dangerous() => self.gates.hooks.open(),
            Ok(()) => {}
            Err(error) => {
                let reason = chain(&error);
                tracing::error!(reason, "connect hooks not up to date");
                self.gates.hooks.close(reason);
                self.progress.behind = true;
            }
        }
    }

    async fn apply_nftables(&mut self, plan: &Plan) -> Result<()> {
        let Some(nft) = &mut self.nft else {
            self.gates.nftables.open();
            return Ok(());
        };
        match self.routes.uplinks().await {
            Ok(uplinks) => {
                self.progress.uplinks = uplinks;
                self.progress.unguarded = None;
            }
            Err(error) => {
                self.progress.unguarded = Some(format!("interfaces not read: {}", chain(&error)));
                self.progress.behind = true;
            }
        }
        let guard = Guard {
            allow: self.config.guard_allow.clone(),
            pods: self.config.pod_ranges.clone(),
            uplinks: self.progress.uplinks.clone(),
        };
        let spec = TableSpec::new(self.config.intercept.clone(), guard, plan);
        match nft.apply(spec).await {
            Ok(applied) => {
                tracing::debug!(?applied, "nftables updated");
                self.table_is_there();
            }
            Err(error @ NftError::Missing) if self.kernel.is_none() => {
                return Err(error).context("nothing else steers connections");
            }
            Err(NftError::Missing) => {
                tracing::warn!("nft is not installed; the connect hooks alone steer connections");
                self.gates.nftables.open();
                self.nft = None;
            }
            Err(error) => {
                tracing::error!(%error, "nftables not updated");
                self.progress.table = false;
                self.gates.nftables.close(error.to_string());
                self.progress.behind = true;
            }
        }
        Ok(())
    }

    fn table_is_there(&mut self) {
        self.progress.table = true;
        match &self.progress.unguarded {
            None => self.gates.nftables.open(),
            Some(reason) => self.gates.nftables.close(reason.clone()),
        }
    }

    /// What the hooks' table has no room for is steered by nftables, which has no such limit, or by
    /// nobody.
    fn apply_beyond(&mut self, plan: &Plan) {
        let destinations = plan.beyond.len();
        let is_news = std::mem::replace(&mut self.progress.beyond, destinations) != destinations;
        if destinations == 0 || self.kernel.is_none() {
            return;
        }
        if self.nft.is_none() {
            let reason = format!(
                "the hooks' table has room for {DESTINATIONS_MAX} destinations, and \
                 {destinations} more are not steered: \
                 give nodes fewer ports, or run with --mechanism both"
            );
            if is_news {
                tracing::error!(reason, "not all destinations are steered");
            }
            self.gates.hooks.close(reason);
        } else if is_news {
            tracing::warn!(
                destinations,
                "the hooks' table is full; nftables alone steers what has no room in it"
            );
        }
    }

    /// Removes what an earlier redirector installed by a mechanism that is switched off: nobody
    /// would keep it up to date.
    async fn remove_switched_off(&self) -> Result<()> {
        let mechanism = self.config.mechanism;
        if !mechanism.has_ebpf() && !self.pins.remove()?.is_empty() {
            tracing::info!(
                "connect hooks are switched off: removed those of an earlier redirector"
            );
        }
        if !mechanism.has_nftables() && nft::remove().await? {
            tracing::info!("nftables is switched off: removed the table of an earlier redirector");
        }
        if mechanism == Mechanism::None && !self.routes.remove().await?.is_empty() {
            tracing::info!("nothing is steered: removed the routes of an earlier redirector");
        }
        Ok(())
    }

    fn renew_lease(&mut self) {
        let live = self.feed.borrow().is_live();
        let Some(kernel) = self.kernel.as_mut().filter(|_| live) else {
            return;
        };
        if let Err(error) = kernel.renew_lease() {
            tracing::error!(%error, "offline lease not renewed");
        }
    }

    /// Puts back what somebody else has removed, and tries again what failed. Fatal when the
    /// intercept address is gone: the next redirector finds another.
    async fn restore(&mut self) -> Result<()> {
        self.config
            .intercept
            .node
            .check()
            .context("connections are steered to it")?;
        self.restore_hooks();
        self.restore_destinations();
        self.restore_nftables().await;
        self.restore_routes().await;
        self.follow_uplinks().await;
        if self.progress.behind {
            self.apply().await?;
        }
        self.publish();
        Ok(())
    }

    /// Says what is in force wherever that is asked for, and whether anything sees pods.
    fn publish(&mut self) {
        let mechanism = Mechanism::of(
            self.kernel.is_some() && self.progress.hooked,
            self.nft.is_some() && self.progress.table,
        );
        let fallback = self.hooks.fallback();
        let has_pods = || !self.config.cgroup.as_deref().is_some_and(leaves_pods_out);
        let sees_pods =
            mechanism.has_ebpf() && self.config.hook_scope == HookScope::All && has_pods();
        let bypass = (self.config.mechanism != Mechanism::None && !sees_pods)
            .then(|| bypassing_data_plane(&self.config.bpffs));
        let unseen = bypass
            .flatten()
            .map(|data_plane| unseen_pods(data_plane, fallback));
        let now = InForce {
            mechanism,
            fallback: fallback.map(str::to_owned),
            unseen_pods: unseen.clone(),
        };
        self.in_force.send_if_modified(|before| {
            let is_news = *before != now;
            if is_news {
                tracing::info!(mechanism = now.mechanism.name(), "in force");
                *before = now;
            }
            is_news
        });
        self.gates
            .hooks
            .remark(fallback.map(|reason| format!("nftables alone steers connections: {reason}")));
        self.metrics.in_force(mechanism);
        match unseen.filter(|_| !self.config.accept_unseen_pods) {
            Some(reason) => self.gates.pods.close(reason),
            None => self.gates.pods.open(),
        }
    }

    fn restore_destinations(&mut self) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        match kernel.restore() {
            Ok(true) => {
                tracing::warn!("somebody changed what the connect hooks steer; put right");
                self.metrics.drifted(Drifted::Destinations, Repair::Done);
            }
            Ok(false) => {}
            Err(error) => {
                self.metrics.drifted(Drifted::Destinations, Repair::Failed);
                self.gates.hooks.close(chain(&error));
                self.progress.behind = true;
            }
        }
    }

    async fn restore_nftables(&mut self) {
        let Some(nft) = &mut self.nft else { return };
        match nft.restore().await {
            Ok(true) => {
                tracing::warn!(
                    "somebody removed or changed the table inet culvert; installed again"
                );
                self.metrics.drifted(Drifted::Nftables, Repair::Done);
                self.table_is_there();
            }
            Ok(false) => {}
            Err(error) => {
                self.metrics.drifted(Drifted::Nftables, Repair::Failed);
                self.progress.table = false;
                self.gates.nftables.close(error.to_string());
                self.progress.behind = true;
            }
        }
    }

    /// An address of a family that had none may come later, as IPv6 does with a router's
    /// advertisement.
    fn follow_node(&mut self, node_tx: &watch::Sender<NodeIps>) {
        let before = self.config.intercept.node;
        if !self.config.found_node || (before.v4.is_some() && before.v6.is_some()) {
            return;
        }
        let node = before.or(NodeIps::by_routing());
        if node != before {
            tracing::info!(
                ?node,
                "this host has another address; connections are steered to it too"
            );
            self.config.intercept.node = node;
            self.progress.behind = true;
            node_tx.send_replace(node);
        }
    }

    /// Interfaces come and go.
    async fn follow_uplinks(&mut self) {
        if self.nft.is_some()
            && self
                .routes
                .uplinks()
                .await
                .is_ok_and(|uplinks| uplinks != self.progress.uplinks)
        {
            self.progress.behind = true;
        }
    }

    async fn restore_routes(&mut self) {
        let Some(ranges) = self.progress.routed else {
            return;
        };
        match self
            .routes
            .restore(ranges, self.config.intercept.node)
            .await
        {
            Ok(true) => {
                tracing::warn!("somebody removed routes of VIPs; made again");
                self.metrics.drifted(Drifted::Routes, Repair::Done);
            }
            Ok(false) => {}
            Err(error) => {
                self.metrics.drifted(Drifted::Routes, Repair::Failed);
                self.gates.route.close(chain(&error));
                self.progress.behind = true;
            }
        }
    }
}
