//! Makes everything on the host equal to the directory.

use anyhow::{Context, Result};
use culvert_daemon::chain;
use culvert_redirector_common::names::DESTINATIONS_MAX;

use super::Steering;
use crate::directory::Directory;
use crate::mechanisms::bpf::OtherSteering;
use crate::mechanisms::nft::{self, Guard, NftError, TableSpec};
use crate::mechanisms::vip_routes::RouteError;
use crate::own_networks::Withheld;
use crate::plan::{Freshness, Plan, plan};
use culvert_api::installed::Mechanism;

/// How many addresses a log line names; the others are counted.
const NAMED: usize = 5;

impl Steering {
    pub(super) fn plan(&mut self) -> Option<Plan> {
        // `borrow` leaves the change unseen: `run` then applies it.
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
        let withheld = self.networks.withheld(directory);
        if withheld != self.progress.withheld {
            report(&withheld);
            self.progress.withheld = withheld;
        }
        if self.progress.withheld.is_empty() {
            return Some(plan(directory, freshness));
        }
        let steered = self.networks.protect(Directory::clone(directory));
        Some(plan(&steered, freshness))
    }

    /// Makes everything equal to the directory. Only two failures are fatal: an overlap of the VIP
    /// range, and missing nftables when nothing else steers. Others are reported and tried again.
    pub(super) async fn apply(&mut self) -> Result<()> {
        let Some(plan) = self.plan() else {
            return Ok(());
        };
        self.progress.incomplete = false;
        self.apply_routes(&plan).await?;
        self.apply_hooks(&plan);
        self.renew_lease();
        self.apply_nftables(&plan).await?;
        self.share_with_nftables();
        self.retire_hooks();
        self.apply_beyond(&plan);
        self.metrics.set_destinations(&plan);
        if !self.progress.incomplete && !self.gates.switched_off.is_open() {
            self.remove_switched_off().await?;
            self.gates.switched_off.open();
        }
        Ok(())
    }

    pub(super) async fn apply_routes(&mut self, plan: &Plan) -> Result<()> {
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
                self.progress.incomplete = true;
            }
        }
        Ok(())
    }

    fn apply_hooks(&mut self, plan: &Plan) {
        let Some(ebpf) = &mut self.ebpf else {
            return;
        };
        let intercept = &self.config.intercept;
        let was_proven = ebpf.is_proven();
        let applied = ebpf
            .apply(intercept, plan)
            .and_then(|()| ebpf.prove(intercept.node, plan.ranges));
        let is_proven = ebpf.is_proven();
        match applied {
            Ok(()) if ebpf.is_complete() && !self.hooks.is_in_conflict() => self.gates.hooks.open(),
            Ok(()) => {}
            Err(error) => {
                let reason = chain(&error);
                tracing::error!(reason, "connect hooks not up to date");
                self.gates.hooks.close(reason);
                self.progress.incomplete = true;
            }
        }
        if is_proven != was_proven {
            // The proof is steered, and reaches no proxy.
            self.recent.hooks.clear();
            self.count_hooked();
        }
    }

    async fn apply_nftables(&mut self, plan: &Plan) -> Result<()> {
        if self.nft.is_none() {
            self.gates.nftables.open();
            return Ok(());
        }
        self.read_uplinks().await;
        let guard = Guard {
            allow: self.config.guard_allow.clone(),
            pods: self.config.pod_ranges.clone(),
            uplinks: self.progress.uplinks.clone(),
            outer_bridges: self.progress.outer_bridges.clone(),
        };
        let spec = TableSpec::new(self.config.intercept.clone(), guard, plan);
        let Some(nft) = &mut self.nft else {
            return Ok(());
        };
        match nft.apply(spec).await {
            Ok(applied) => {
                tracing::debug!(?applied, "nftables updated");
                self.table_is_there();
                Ok(())
            }
            Err(NftError::Missing) => self.do_without_nftables(),
            Err(error) => {
                tracing::error!(%error, "nftables not updated");
                self.progress.table = false;
                self.gates.nftables.close(error.to_string());
                self.progress.incomplete = true;
                Ok(())
            }
        }
    }

    async fn read_uplinks(&mut self) {
        match self.routes.uplinks().await {
            Ok(uplinks) => {
                let bridges = self.routes.outer_bridges().await;
                self.progress.outer_bridges = bridges.unwrap_or_default();
                self.progress.uplinks = uplinks;
                self.progress.unguarded = None;
            }
            Err(error) => {
                self.progress.unguarded = Some(format!("interfaces not read: {}", chain(&error)));
                self.progress.incomplete = true;
            }
        }
    }

    /// The program `nft` is not installed. That is fatal if nothing else steers.
    fn do_without_nftables(&mut self) -> Result<()> {
        if self.ebpf.is_none() {
            return Err(NftError::Missing).context("nothing else steers connections");
        }
        tracing::warn!("nft is not installed; the connect hooks alone steer connections");
        self.gates.nftables.open();
        self.nft = None;
        Ok(())
    }

    pub(super) fn table_is_there(&mut self) {
        self.progress.table = true;
        match &self.progress.unguarded {
            None => self.gates.nftables.open(),
            Some(reason) => self.gates.nftables.close(reason.clone()),
        }
    }

    /// The hooks leave to nftables what it can do better, while its table is there.
    pub(super) fn share_with_nftables(&mut self) {
        let others = if self.nft.is_some() && self.progress.table {
            OtherSteering::Nftables
        } else {
            OtherSteering::None
        };
        let Some(ebpf) = &mut self.ebpf else {
            return;
        };
        if let Err(error) = ebpf.share_with(others) {
            tracing::error!(error = chain(&error), "connect hooks not up to date");
            self.progress.incomplete = true;
        }
    }

    /// nftables has no limit of its own and steers what exceeds the hooks' table. Without nftables
    /// nothing steers it.
    fn apply_beyond(&mut self, plan: &Plan) {
        let destinations = plan.nftables_only.len();
        let is_news =
            std::mem::replace(&mut self.progress.nftables_only, destinations) != destinations;
        if destinations == 0 || self.ebpf.is_none() {
            return;
        }
        if self.nft.is_none() {
            let reason = format!(
                "the hooks' table has capacity for {DESTINATIONS_MAX} destinations, and \
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
                "the hooks' table is full; nftables alone steers the rest"
            );
        }
    }

    /// Removes what an earlier redirector installed by a mechanism that is switched off, since
    /// nothing would keep it up to date.
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
}

/// Logs which edge addresses are not steered now.
fn report(withheld: &[Withheld]) {
    if withheld.is_empty() {
        tracing::info!("no edge address is in a network of this host any more");
        return;
    }
    let named: Vec<String> = withheld
        .iter()
        .take(NAMED)
        .map(Withheld::to_string)
        .collect();
    tracing::warn!(
        addresses = withheld.len(),
        ?named,
        "edge addresses in networks of this host are not steered; --steer-own-network steers them"
    );
}
