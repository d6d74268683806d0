//! The agreement of a cluster's proxies on VIPs.

use culvert_api::NodeName;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::vips::{VipError, VipRanges, VipShards, Vips};
use crate::clock::UnixTime;

/// The VIPs on which all proxies of the cluster agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// The ranges of the VIPs.
    pub ranges: VipRanges,
    /// The VIP of each node.
    pub vips: Vips,
}

impl Allocation {
    /// The reason why it is invalid.
    pub fn problem(&self) -> Option<String> {
        self.vips.problem(&self.ranges)
    }
}

/// The same in shards, as the cluster keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardedAllocation {
    /// The ranges of the VIPs.
    pub ranges: VipRanges,
    /// The VIP of each node.
    pub shards: VipShards,
}

impl ShardedAllocation {
    /// All VIPs together.
    pub fn allocation(&self) -> Allocation {
        Allocation {
            ranges: self.ranges,
            vips: self.shards.union(),
        }
    }
}

/// This proxy's contribution to the agreement.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub(super) vip4: Ipv4Net,
    pub(super) vip6: Option<Ipv6Net>,
    pub(super) last: Allocation,
}

impl Proposal {
    /// How many shards of the cluster this proxy remembers.
    pub fn shards(&self) -> usize {
        VipShards::needed_for(&self.last.vips)
    }

    /// The cluster's allocation by its shards, lowest first. What a lost shard (`None`) had is what
    /// this proxy remembers.
    pub fn of_shards(&self, ranges: VipRanges, found: Vec<Option<Vips>>) -> ShardedAllocation {
        let shards = VipShards::read(found, &self.last.vips);
        ShardedAllocation { ranges, shards }
    }

    /// Computes the allocation for exactly `edges`, with at most so many bytes of JSON in a shard.
    /// It starts from the cluster's allocation, or from this proxy's last one if the cluster has
    /// none.
    pub fn agreed<'a>(
        &self,
        kept: Option<ShardedAllocation>,
        edges: impl Iterator<Item = &'a NodeName>,
        now: UnixTime,
        bytes: usize,
    ) -> Result<ShardedAllocation, VipError> {
        let ShardedAllocation { ranges, shards } = match kept {
            Some(kept) => self.fits(&kept.ranges).map(|()| kept)?,
            None => self.of_shards(self.last.ranges, vec![None; self.shards()]),
        };
        Ok(ShardedAllocation {
            ranges,
            shards: shards.reconciled(edges, &ranges, now, bytes),
        })
    }

    fn fits(&self, kept: &VipRanges) -> Result<(), VipError> {
        match self.vip6 {
            _ if self.vip4 != kept.vip4 => Err(VipError::Disagreed {
                kept: kept.vip4.into(),
                own: self.vip4.into(),
                flag: "--vip4-range",
            }),
            Some(own) if own != kept.vip6 => Err(VipError::Disagreed {
                kept: kept.vip6.into(),
                own: own.into(),
                flag: "--vip6-range",
            }),
            Some(_) | None => Ok(()),
        }
    }
}
