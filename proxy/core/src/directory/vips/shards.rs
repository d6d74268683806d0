//! The VIPs of a cluster in shards, each of which fits into one object of the API server. Pure.
//!
//! A shard gives out the host parts of its own block, so two proxies that write different shards
//! never give one host part to two nodes. The lowest free host part comes first: a cluster has one
//! shard until its block is full. An entry stays where it is, also where an earlier version wrote
//! it: the first shard may have host parts of other blocks.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use culvert_api::NodeName;

use super::{HELD_BYTES, VipRanges, Vips};
use crate::clock::UnixTime;

/// Host parts of a block. With names of a hundred characters, their JSON is still below 1 MiB.
const BLOCK: u32 = 8192;
/// The limit of shards. It is the limit of nodes: the shards have 260,096 host parts, which is twice
/// as many as the default range.
pub const MAX_VIP_SHARDS: usize = 32;

/// The VIPs by shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VipShards(Vec<Vips>);

impl VipShards {
    /// The shards as they were read, lowest first. `None`: the shard was lost, so it gets what this
    /// proxy remembers of its block. Of two entries of one node or host part, the one of the lower
    /// shard counts: two proxies may have placed a node at the same moment, or one was of a version
    /// that does not know further shards.
    pub(in crate::directory) fn read(found: Vec<Option<Vips>>, remembered: &Vips) -> Self {
        let lost: HashSet<usize> = (0..found.len())
            .filter(|shard| found[*shard].is_none())
            .collect();
        let mut shards: Vec<Vips> = found.into_iter().map(Option::unwrap_or_default).collect();
        let mut nodes = HashSet::new();
        let mut offsets = HashSet::new();
        for vips in &mut shards {
            vips.retain(|node, offset| offsets.insert(offset) && nodes.insert(node.clone()));
        }
        if !lost.is_empty() {
            let mut again = remembered.clone();
            again.retain(|node, offset| {
                lost.contains(&shard_of(offset))
                    && !offsets.contains(&offset)
                    && !nodes.contains(node)
            });
            again.spread(&mut shards);
        }
        Self(shards)
    }

    /// How many shards these VIPs need at least.
    pub(in crate::directory) fn needed_for(vips: &Vips) -> usize {
        let last = vips.used_offsets().last().copied();
        last.map_or(1, |last| shard_of(last) + 1)
            .min(MAX_VIP_SHARDS)
    }

    /// Each shard, lowest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Vips> + DoubleEndedIterator {
        self.0.iter()
    }

    /// All VIPs.
    pub fn union(&self) -> Vips {
        let mut all = Vips::default();
        for shard in &self.0 {
            all.held.extend(shard.held.clone());
            all.resting.extend(shard.resting.clone());
        }
        all
    }

    /// The allocation for exactly `nodes`: nodes with a VIP keep it, and new nodes get the lowest
    /// free one of a shard that stays within `bytes` of JSON. A node that does not fit gets no VIP,
    /// and takes none from others.
    pub(in crate::directory) fn reconciled<'a>(
        &self,
        nodes: impl Iterator<Item = &'a NodeName>,
        ranges: &VipRanges,
        now: UnixTime,
        bytes: usize,
    ) -> Self {
        let nodes: BTreeSet<&NodeName> = nodes.collect();
        let mut next = Self(Vec::new());
        for shard in &self.0 {
            let mut shard = shard.stepped(&nodes, now);
            shard.forget_resting(&nodes, bytes);
            next.0.push(shard);
        }
        let held: HashSet<NodeName> = next.names().cloned().collect();
        let mut places = Places::new(&next, ranges, bytes);
        for node in nodes {
            if held.contains(node) || next.wake(node) {
                continue;
            }
            if let Some((shard, offset)) = places.next(node) {
                if next.0.len() <= shard {
                    next.0.resize_with(shard + 1, Vips::default);
                }
                next.0[shard].held.insert(node.clone(), offset);
            }
        }
        next
    }

    fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.0.iter().flat_map(|shard| shard.held.keys())
    }

    /// Gives a node that came back its own VIP again.
    fn wake(&mut self, node: &NodeName) -> bool {
        for shard in &mut self.0 {
            if let Some(resting) = shard.resting.remove(node) {
                shard.held.insert(node.clone(), resting.offset);
                return true;
            }
        }
        false
    }
}

impl Vips {
    /// Adds each entry to the shard of its host part.
    fn spread(self, shards: &mut [Self]) {
        for (node, offset) in self.held {
            shards[shard_of(offset)].held.insert(node, offset);
        }
        for (node, resting) in self.resting {
            let shard = &mut shards[shard_of(resting.offset)];
            shard.resting.insert(node, resting);
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(&NodeName, u32) -> bool) {
        self.held.retain(|node, offset| keep(node, *offset));
        self.resting
            .retain(|node, resting| keep(node, resting.offset));
    }
}

/// The free host parts, lowest first.
struct Places {
    ranges: VipRanges,
    used: HashSet<u32>,
    /// The free bytes of each shard.
    free_bytes: Vec<usize>,
    shard: usize,
    block: Range<u32>,
}

impl Places {
    fn new(shards: &VipShards, ranges: &VipRanges, bytes: usize) -> Self {
        let mut used = HashSet::new();
        let mut free_bytes = vec![bytes; MAX_VIP_SHARDS];
        for (vips, free) in shards.0.iter().zip(&mut free_bytes) {
            used.extend(vips.used_offsets());
            *free = bytes.saturating_sub(vips.bytes());
        }
        Self {
            ranges: *ranges,
            used,
            free_bytes,
            shard: 0,
            block: block(0),
        }
    }

    /// A place for the node: the shard and the host part.
    fn next(&mut self, node: &NodeName) -> Option<(usize, u32)> {
        let bytes = HELD_BYTES + node.as_str().len();
        while self.shard < MAX_VIP_SHARDS {
            if self.free_bytes[self.shard] >= bytes
                && let Some(offset) = self.next_offset()
            {
                self.free_bytes[self.shard] -= bytes;
                return Some((self.shard, offset));
            }
            self.shard += 1;
            self.block = block(self.shard);
        }
        None
    }

    fn next_offset(&mut self) -> Option<u32> {
        self.block
            .find(|offset| self.ranges.usable(*offset) && !self.used.contains(offset))
    }
}

fn block(shard: usize) -> Range<u32> {
    let start = u32::try_from(shard).map_or(u32::MAX, |shard| shard.saturating_mul(BLOCK));
    start..start.saturating_add(BLOCK)
}

/// The shard whose block has the host part; the last one also has what an edited object has beyond.
fn shard_of(offset: u32) -> usize {
    let shard = usize::try_from(offset / BLOCK).unwrap_or(usize::MAX);
    shard.min(MAX_VIP_SHARDS - 1)
}

#[cfg(test)]
mod tests;
