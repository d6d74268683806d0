//! What a primary reports to its followers, and what a follower takes.

use std::collections::BTreeMap;

use culvert_api::NodeName;

use super::{MAX_NODES, Refreshed, Sources, merged};
use crate::clock::UnixTime;
use crate::directory::DirectoryError;
use crate::directory::facts::Facts;
use crate::directory::node::NodeSpec;
use crate::directory::stored::Stored;
use crate::directory::vips::{VipRanges, Vips, foreign};
use crate::state::StateError;

impl Sources {
    /// What proxies that follow this one get; `None`: it has not made its nodes itself.
    pub(in crate::directory) fn facts(&self) -> Option<Facts> {
        if self.cluster.is_some() || self.follows {
            return None;
        }
        let nodes = merged(&self.stored.nodes, self.declared());
        let with_host_part = |(node, spec): (NodeName, NodeSpec)| {
            let host_part = self.stored.vips.host_part(&node)?;
            Some((node, (spec, host_part)))
        };
        Some(Facts {
            ranges: self.stored.ranges,
            nodes: nodes.into_iter().filter_map(with_host_part).collect(),
        })
    }

    /// Takes what the primary has. It is in force also if it cannot be written, since the primary
    /// has it.
    pub(in crate::directory) fn take_facts(
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
