//! Restores what other programs have removed, and follows changes of the host.

use std::time::Instant;

use anyhow::{Context, Result};
use culvert_daemon::chain;
use tokio::sync::watch;

use super::Steering;
use crate::config::NodeIps;
use crate::mechanisms::bpf::Tables;
use crate::metrics::{Drift, Repair};
use crate::own_networks::OwnNetworks;

impl Steering {
    /// Restores what other programs have removed, and tries again what failed. Fatal if the
    /// intercept address is gone: the restarted redirector finds another one.
    pub(super) async fn restore(&mut self) -> Result<()> {
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
        self.follow_networks().await;
        self.count_hooked();
        self.recent.repairs.add(Instant::now(), self.repairs);
        if self.progress.incomplete {
            self.apply().await?;
        }
        self.publish();
        Ok(())
    }

    /// Without hooks there is nothing to read.
    pub(super) fn count_hooked(&self) {
        if self.ebpf.is_some()
            && let Ok(tables) = Tables::open(&self.pins)
            && let Ok(counts) = tables.judged_counts()
        {
            self.recent.hooks.add(Instant::now(), counts);
        }
    }

    fn restore_destinations(&mut self) {
        let Some(ebpf) = &mut self.ebpf else {
            return;
        };
        match ebpf.restore() {
            Ok(true) => {
                tracing::warn!("another program changed what the connect hooks steer; put right");
                self.repaired(Drift::Destinations);
            }
            Ok(false) => {}
            Err(error) => {
                self.metrics
                    .record_drift(Drift::Destinations, Repair::Failed);
                self.gates.hooks.close(chain(&error));
                self.progress.incomplete = true;
            }
        }
    }

    pub(super) async fn restore_nftables(&mut self) {
        let Some(nft) = &mut self.nft else { return };
        match nft.restore().await {
            Ok(true) => {
                tracing::warn!(
                    "another program removed or changed the table inet culvert; installed again"
                );
                self.repaired(Drift::Nftables);
                self.table_is_there();
            }
            Ok(false) => {}
            Err(error) => {
                self.metrics.record_drift(Drift::Nftables, Repair::Failed);
                self.progress.table = false;
                self.gates.nftables.close(error.to_string());
                self.progress.incomplete = true;
            }
        }
        self.share_with_nftables();
    }

    /// An address of the second family may appear later, as in IPv6 after a router advertisement.
    pub(super) fn follow_node(&mut self, node_tx: &watch::Sender<NodeIps>) {
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
            self.progress.incomplete = true;
            node_tx.send_replace(node);
        }
    }

    /// Applies the rules again if the uplinks have changed.
    async fn follow_uplinks(&mut self) {
        if self.nft.is_some()
            && self
                .routes
                .uplinks()
                .await
                .is_ok_and(|uplinks| uplinks != self.progress.uplinks)
        {
            self.progress.incomplete = true;
        }
    }

    /// A network of this host may appear or go later.
    async fn follow_networks(&mut self) {
        match OwnNetworks::read(&self.routes, &self.config.steered_networks).await {
            Ok(networks) if networks != self.networks => {
                self.networks = networks;
                self.progress.incomplete = true;
            }
            Ok(_) => {}
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "networks of this host not read");
            }
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
                tracing::warn!("another program removed routes of VIPs; made again");
                self.repaired(Drift::Routes);
            }
            Ok(false) => {}
            Err(error) => {
                self.metrics.record_drift(Drift::Routes, Repair::Failed);
                self.gates.route.close(chain(&error));
                self.progress.incomplete = true;
            }
        }
    }
}
