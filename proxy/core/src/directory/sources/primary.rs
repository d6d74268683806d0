//! What a primary reports to its followers, and what a follower takes.

use std::collections::BTreeMap;

use culvert_api::NodeName;

use super::{MAX_NODES, Refreshed, Sources, merged};
use crate::clock::UnixTime;
use crate::directory::DirectoryError;
use crate::directory::node::NodeSpec;
use crate::directory::stored::Stored;
use crate::directory::vips::{VipRanges, Vips, foreign};
use crate::state::StateError;

/// The nodes of the proxy that allocates, with the host parts of their VIPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where VIPs are.
    pub ranges: VipRanges,
    /// Each node with the part of its VIPs that is its own.
    pub nodes: BTreeMap<NodeName, (NodeSpec, u32)>,
}

impl Sources {
    /// What proxies that follow this one get; `None`: it has not made its nodes itself.
    pub(in crate::directory) fn facts(&self) -> Option<Facts> {
        if self.cluster.is_some() || self.follows {
            return None;
        }
        let mut nodes = BTreeMap::new();
        for (node, spec) in merged(&self.stored.nodes, self.declared()) {
            if let Some(host_part) = self.stored.vips.host_part(&node) {
                nodes.insert(node, (spec, host_part));
            }
        }
        Some(Facts {
            ranges: self.stored.ranges,
            nodes,
        })
    }

    /// Takes what the primary has. It is in force also if it cannot be written, since the primary
    /// has it.
    pub(in crate::directory) fn replace_facts(
        &mut self,
        facts: Facts,
    ) -> Result<Refreshed, DirectoryError> {
        let Facts { ranges, nodes } = facts;
        if nodes.len() > MAX_NODES {
            return Err(DirectoryError::Full(MAX_NODES));
        }
        let foreign = foreign(&self.protected.ranges, &self.protected.host);
        let ranges = VipRanges::checked(ranges.vip4, ranges.vip6, &foreign)?;
        let mut specs = BTreeMap::new();
        let mut held = BTreeMap::new();
        for (node, (spec, host_part)) in nodes {
            specs.insert(node.clone(), spec.checked()?);
            held.insert(node, host_part);
        }
        let before = if self.stored.ranges == ranges {
            self.stored.vips.clone()
        } else {
            Vips::default()
        };
        let vips = before.followed(held, UnixTime::now());
        if let Some(problem) = vips.problem(&ranges) {
            return Err(DirectoryError::Copy(problem));
        }
        let is_same = self.stored.is_copy
            && (self.stored.ranges, &self.stored.nodes, &self.stored.vips)
                == (ranges, &specs, &vips);
        if is_same {
            return Ok(Refreshed::Unchanged);
        }
        let stored = Stored {
            ranges,
            nodes: specs,
            vips,
            is_copy: true,
        };
        let written = stored.write(&self.state);
        if let Err(frozen @ StateError::Frozen { .. }) = written {
            return Err(frozen.into());
        }
        self.stored = stored;
        self.is_unwritten = written.is_err();
        self.protect(None);
        Ok(Refreshed::Changed)
    }
}
