//! Follows the cluster's Nodes. Writes each relevant change to the directory after the proxies have
//! agreed on the VIPs.

mod behind;
mod excerpt;
mod own;
mod record;
mod watch;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_api::NodeName;
use culvert_daemon::{Backoff, Drain, Gate, Workers, chain};
use culvert_proxy_core::directory::{
    ClusterNodes, ClusterWriter, DirectoryError, Freshness, VipError,
};
use culvert_proxy_core::metrics::Metrics;
use tokio::time::Instant;

use super::request::RequestError;
use super::vips::{AgreeError, VipStore};
use super::{Cluster, backoff};
use crate::nodes::record::{Annotations, Kind, Record};
#[cfg(any(test, fuzzing))]
pub(crate) use behind::in_label as behind_label;
use watch::{Reading, WatchState, WatchedNodes};

/// Nodes often change together. Changes within this time become one.
const SETTLE: Duration = Duration::from_millis(100);
/// The minimum time between two changes of the directory. Thousands of nodes can appear one by one.
const BETWEEN_CHANGES: Duration = Duration::from_millis(500);
/// The interval at which removed or changed VIPs are noticed.
const RECHECK: Duration = Duration::from_secs(60);

/// The interval of asking for the cluster's own addresses and ranges.
const REASK_OWN: Duration = Duration::from_secs(30);

/// The reason why the cluster's nodes are not in the directory.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error("ask what the cluster uses itself")]
    Own(#[from] RequestError),
    #[error(transparent)]
    Vips(#[from] AgreeError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

impl Cluster {
    /// Keeps the directory equal to the cluster's Nodes until the drain begins. Calls `gone` for
    /// every node that was deleted.
    pub(crate) async fn follow_nodes(
        self,
        writer: ClusterWriter,
        metrics: Metrics,
        gate: Gate,
        gone: Box<dyn Fn(&NodeName) + Send>,
        drain: Drain,
    ) -> Result<()> {
        if writer.directory().is_known() {
            gate.open();
        }
        let reading = self.reading();
        let (nodes_tx, nodes_rx) = tokio::sync::watch::channel(WatchedNodes::default());
        let watched = watch::watch(self.client.clone(), reading, metrics, nodes_tx);
        let vips = self.vips();
        let workers = Workers::start(NonZeroUsize::MIN).context("start the directory's thread")?;
        let applier = Applier {
            cluster: self,
            vips,
            writer: writer.clone(),
            gate,
            workers,
            backoff: backoff(),
            asked_own: None,
            looked_up: None,
        };
        tokio::select! {
            never = watched => match never {},
            () = applier.run(nodes_rx, gone) => {}
            () = drain.begun() => {}
        }
        tokio::task::spawn_blocking(move || writer.confirm()).await??;
        Ok(())
    }

    fn vips(&self) -> VipStore {
        VipStore::new(self.config_maps(&self.namespace))
    }

    fn reading(&self) -> Reading {
        let annotations = if self.config.trust_node_annotations {
            Annotations::Trusted
        } else {
            Annotations::Ignored
        };
        Reading {
            edges: self.config.edges.clone(),
            annotations,
        }
    }
}

/// Applies the watched Nodes to the directory.
struct Applier {
    cluster: Cluster,
    vips: VipStore,
    writer: ClusterWriter,
    gate: Gate,
    /// One thread that does all the work. Each thread keeps freed memory for its own use, so
    /// several threads would keep the memory of ten thousand nodes several times.
    workers: Arc<Workers>,
    backoff: Backoff,
    /// The time of the API server's last answer about the cluster's own addresses and ranges.
    asked_own: Option<Instant>,
    /// The time of the last lookup of the API server's name.
    looked_up: Option<Instant>,
}

impl Applier {
    async fn run(
        mut self,
        mut nodes_rx: tokio::sync::watch::Receiver<WatchedNodes>,
        gone: impl Fn(&NodeName),
    ) {
        let mut again = Instant::now() + RECHECK;
        loop {
            tokio::select! {
                changed = nodes_rx.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(again) => {}
            }
            tokio::time::sleep(SETTLE).await;
            let seen = nodes_rx.borrow_and_update().clone();
            again = Instant::now() + RECHECK;
            self.follow_api_server().await;
            match (seen.state, seen.nodes) {
                (WatchState::Following, Some(records)) => match self.apply(&records).await {
                    Ok(removed) => {
                        removed.iter().for_each(&gone);
                        self.set_live();
                    }
                    Err(error) => again = Instant::now() + self.failed(&error),
                },
                (WatchState::Lost(cause), _) => self.stale(cause),
                (WatchState::Starting | WatchState::Following, _) => {}
            }
            tokio::time::sleep(BETWEEN_CHANGES).await;
        }
    }

    /// Protects the addresses at which this proxy reaches the API server, whether it answers or
    /// not.
    async fn follow_api_server(&mut self) {
        if !is_due(self.looked_up) {
            return;
        }
        self.looked_up = Some(Instant::now());
        let addresses = self.cluster.api_addresses().await;
        if !addresses.is_empty() {
            self.on_worker(move |writer| writer.set_api_servers(addresses))
                .await;
        }
    }

    /// Runs before the nodes are applied, because they are checked against it.
    async fn ask_own(&mut self) -> Result<(), ApplyError> {
        if !is_due(self.asked_own) {
            return Ok(());
        }
        let own = self.cluster.cluster_own().await?;
        self.on_worker(move |writer| writer.set_own(own)).await?;
        self.asked_own = Some(Instant::now());
        Ok(())
    }

    async fn on_worker<T: Send + 'static>(
        &self,
        work: impl FnOnce(ClusterWriter) -> T + Send + 'static,
    ) -> T {
        let writer = self.writer.clone();
        self.workers
            .next()
            .run(async move { work(writer) })
            .await
            .expect("changing the directory does not panic")
    }

    /// The nodes that were deleted.
    async fn apply(
        &mut self,
        records: &BTreeMap<NodeName, Record>,
    ) -> Result<Vec<NodeName>, ApplyError> {
        self.ask_own().await?;
        let nodes = Arc::new(split(records));
        let proposal = self.writer.proposal();
        let vips = &mut self.vips;
        let allocation = vips.agree(proposal, &nodes, &self.workers).await?;
        let nodes = Arc::unwrap_or_clone(nodes);
        Ok(self
            .on_worker(move |writer| writer.set_cluster(nodes, allocation))
            .await?)
    }

    fn set_live(&mut self) {
        self.backoff.reset();
        self.gate.open();
        if let Some(Freshness::Stale { .. }) = self.writer.set_live() {
            let nodes = self.writer.directory().census().total();
            tracing::info!(
                nodes,
                clouds = self.writer.directory().clouds().len(),
                "directory is as the API server says"
            );
        }
    }

    fn stale(&self, cause: String) {
        let before = self.writer.set_stale(cause.clone());
        let known = matches!(&before, Some(Freshness::Stale { cause: old, .. }) if *old == cause);
        if !self.writer.directory().is_known() {
            self.gate
                .close(format!("no node of the cluster is known yet: {cause}"));
        }
        if !known {
            tracing::warn!(reason = cause, "directory is the last state of the cluster");
        }
    }

    /// The time until the next attempt.
    fn failed(&mut self, error: &ApplyError) -> Duration {
        let cause = chain(error);
        self.stale(cause.clone());
        if let ApplyError::Vips(AgreeError::Vips {
            source: VipError::Disagreed { .. },
            ..
        }) = error
        {
            // This proxy's flags differ from those of the others, so no client may use it.
            self.gate.close(cause);
        }
        self.backoff.wait()
    }
}

fn is_due(last: Option<Instant>) -> bool {
    last.is_none_or(|last| last.elapsed() >= REASK_OWN)
}

/// The numbers of edge nodes and cloud nodes.
fn split(records: &BTreeMap<NodeName, Record>) -> ClusterNodes {
    let mut nodes = ClusterNodes::default();
    for (name, record) in records {
        match &record.kind {
            Kind::Edge(edge) => drop(nodes.edges.insert(name.clone(), edge.clone())),
            Kind::Cloud(cloud) => drop(nodes.clouds.insert(name.clone(), cloud.clone())),
        }
        for range in &record.pods {
            nodes
                .pod_ranges
                .entry(*range)
                .or_insert_with(|| name.clone());
        }
    }
    nodes
}
