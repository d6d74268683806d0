//! The VIPs in ConfigMap `culvert-vips`, and in a large cluster in further ones. The proxies of the
//! cluster agree on them by optimistic concurrency: each reads the ConfigMaps, computes their new
//! content, and replaces those that differ only if they were not changed in between.

mod shard;

use std::sync::Arc;
use std::time::Duration;

use culvert_daemon::Workers;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::{
    Allocation, ClusterNodes, MAX_VIP_SHARDS, Proposal, ShardedAllocation, VipError,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use super::configmap::{MAX_BYTES, write};
use super::request::{RequestError, ask};
use shard::Shard;

/// The first ConfigMap's name, and the beginning of the names of the others.
const NAME: &str = "culvert-vips";
/// The limit of the VIPs' JSON in one ConfigMap. A node that does not fit into any gets no VIP.
pub(crate) const MAX_RECORD: usize = MAX_BYTES - 1024;
/// Attempts while other proxies write at the same time, with a short pause after each.
const ATTEMPTS: u32 = 20;

/// The reason why the proxies do not agree on the VIPs.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgreeError {
    #[error("read the ConfigMap {name}")]
    Read { name: String, source: RequestError },
    #[error("write the ConfigMap {name}")]
    Write { name: String, source: RequestError },
    #[error("the ConfigMaps {NAME}* were changed by others {ATTEMPTS} times in a row")]
    Busy,
    #[error(
        "the ConfigMap {name} makes no sense: {problem}: restore it, or delete it to have it made \
         from what a proxy remembers"
    )]
    Broken { name: String, problem: String },
    #[error(
        "the ConfigMap {name} would have {bytes} bytes, the API server takes {MAX_BYTES}: remove \
         what others added to it"
    )]
    TooLong { name: String, bytes: usize },
    #[error("agree on VIPs by the ConfigMap {NAME}")]
    Vips { source: VipError },
}

/// The name of the ConfigMap of a shard.
pub(crate) fn name(shard: usize) -> String {
    if shard == 0 {
        NAME.to_owned()
    } else {
        format!("{NAME}-{shard}")
    }
}

/// The cluster's VIPs as they were last read.
pub(super) struct VipStore {
    api: Api<ConfigMap>,
    /// `None`: there is no such ConfigMap.
    found: Vec<Option<Shard>>,
}

/// Whether the ConfigMaps were still as they had been read.
enum Written {
    All,
    Conflict,
}

impl VipStore {
    pub(super) fn new(api: Api<ConfigMap>) -> Self {
        let found = Vec::new();
        Self { api, found }
    }

    /// Computes the VIPs for exactly these nodes, on a thread of `workers`. The cluster has stored
    /// them when this returns.
    pub(super) async fn agree(
        &mut self,
        proposal: Proposal,
        nodes: &Arc<ClusterNodes>,
        workers: &Workers,
    ) -> Result<Allocation, AgreeError> {
        let proposal = Arc::new(proposal);
        for _ in 0..ATTEMPTS {
            self.read(proposal.shards()).await?;
            let kept = self.allocation(&proposal)?;
            let task = computed(proposal.clone(), kept, nodes.clone());
            let agreed = workers.next().run(task).await;
            let agreed = agreed.expect("computing VIPs does not panic");
            let agreed = agreed.map_err(|source| AgreeError::Vips { source })?;
            match self.write(&agreed).await? {
                Written::All => return Ok(agreed.allocation()),
                Written::Conflict => {}
            }
            tokio::time::sleep(Duration::from_millis(rand::random_range(10..200))).await;
        }
        Err(AgreeError::Busy)
    }

    /// Reads the ConfigMaps that have changed, lowest first: as many as the first one names, and at
    /// least those that this proxy remembers.
    async fn read(&mut self, remembered: usize) -> Result<(), AgreeError> {
        let mut number = 0;
        let mut count = remembered;
        while number < count {
            if self.found.len() <= number {
                self.found.push(None);
            }
            self.read_shard(number).await?;
            if let Some(Some(first)) = self.found.first() {
                count = remembered.max(first.count()).min(MAX_VIP_SHARDS);
            }
            number += 1;
        }
        self.found.truncate(count);
        Ok(())
    }

    async fn read_shard(&mut self, number: usize) -> Result<(), AgreeError> {
        let name = name(number);
        let failed = |source| AgreeError::Read {
            name: name.clone(),
            source,
        };
        if let Some(known) = &self.found[number] {
            // The version alone is small, and most shards have not changed.
            let now = ask(self.api.get_metadata_opt(&name))
                .await
                .map_err(failed)?;
            if now.is_some_and(|now| known.is_version(&now.metadata)) {
                return Ok(());
            }
        }
        let map = ask(self.api.get_opt(&name)).await.map_err(failed)?;
        self.found[number] = match map {
            Some(map) => {
                Shard::read(map).map_err(|problem| AgreeError::Broken { name, problem })?
            }
            None => None,
        };
        Ok(())
    }

    /// What the cluster has; `None`: nothing yet.
    fn allocation(&self, proposal: &Proposal) -> Result<Option<ShardedAllocation>, AgreeError> {
        let Some(first) = self.found.iter().flatten().next() else {
            return Ok(None);
        };
        for (number, shard) in self.found.iter().enumerate() {
            if let Some(shard) = shard
                && shard.ranges != first.ranges
            {
                let name = name(number);
                let problem = "it has other ranges than the ConfigMaps before it".to_owned();
                return Err(AgreeError::Broken { name, problem });
            }
        }
        let vips = self.found.iter();
        let vips = vips.map(|shard| shard.as_ref().map(|shard| shard.vips.clone()));
        Ok(Some(proposal.of_shards(first.ranges, vips.collect())))
    }

    /// Writes what differs. A further ConfigMap is announced in the first one before it is made.
    /// Then the highest comes first: who reads a host part as free in a lower one has the nodes that
    /// went to a higher one.
    async fn write(&mut self, agreed: &ShardedAllocation) -> Result<Written, AgreeError> {
        let count = agreed.shards.iter().len();
        let mut order: Vec<usize> = (1..count).rev().collect();
        let announced = self.found.first().and_then(Option::as_ref);
        let first = if announced.map_or(1, Shard::count) < count {
            0
        } else {
            order.len()
        };
        order.insert(first, 0);
        self.found.resize_with(count, || None);
        for number in order {
            if let Written::Conflict = self.write_shard(number, agreed).await? {
                return Ok(Written::Conflict);
            }
        }
        Ok(Written::All)
    }

    async fn write_shard(
        &mut self,
        number: usize,
        agreed: &ShardedAllocation,
    ) -> Result<Written, AgreeError> {
        let name = name(number);
        let Some(vips) = agreed.shards.iter().nth(number) else {
            return Ok(Written::All);
        };
        let found = self.found[number].as_ref();
        let mut shard = match found {
            Some(found) => found.clone(),
            None if number > 0 && vips.is_empty() => return Ok(Written::All),
            None => Shard::new(&name, agreed.ranges),
        };
        shard.vips = vips.clone();
        if number == 0 {
            shard.announce(agreed.shards.iter().len());
        }
        if found == Some(&shard) {
            return Ok(Written::All);
        }
        let map = shard.map().map_err(|problem| AgreeError::Broken {
            name: name.clone(),
            problem,
        })?;
        let bytes = shard::bytes(&map);
        if bytes > MAX_BYTES {
            return Err(AgreeError::TooLong { name, bytes });
        }
        match write(&self.api, &map).await {
            Ok(written) => {
                shard.set_version(written.metadata);
                self.found[number] = Some(shard);
                Ok(Written::All)
            }
            Err(error) if error.is_conflict() => Ok(Written::Conflict),
            Err(source) => Err(AgreeError::Write { name, source }),
        }
    }
}

async fn computed(
    proposal: Arc<Proposal>,
    kept: Option<ShardedAllocation>,
    nodes: Arc<ClusterNodes>,
) -> Result<ShardedAllocation, VipError> {
    proposal.agreed(kept, nodes.edges.keys(), UnixTime::now(), MAX_RECORD)
}
