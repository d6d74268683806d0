//! The state on disk: the nodes that `token create` made, and the VIPs of all nodes with their
//! ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use culvert_api::NodeName;
use serde::{Deserialize, Serialize};

use super::node::NodeSpec;
use super::vips::{VipRanges, Vips, foreign, random_vip6_range};
use super::{DirectoryConfig, DirectoryError};
use crate::state::{StateDir, StateError, StateFile};

const NODES: StateFile = StateFile {
    name: "directory.json",
    what: "the nodes that `token create` made, and with new VIPs",
};

/// The file's content.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    pub(super) ranges: VipRanges,
    pub(super) nodes: BTreeMap<NodeName, NodeSpec>,
    pub(super) vips: Vips,
    /// Whether all of it is a copy of what another proxy has (`--follow`).
    #[serde(default, skip_serializing_if = "is_own")]
    pub(super) is_copy: bool,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_own(is_copy: &bool) -> bool {
    !is_copy
}

impl Stored {
    /// The last copy of what the primary has. Without one, a stand-in for what is not known yet.
    pub(super) fn open_copy(config: &DirectoryConfig) -> Result<Self, DirectoryError> {
        match config.state.read::<Self>(NODES)? {
            Some(copy) if copy.is_copy => copy.checked(&config.state),
            Some(_) | None => Ok(Self {
                ranges: VipRanges {
                    vip4: config.vip4_range,
                    vip6: config.vip6_range.unwrap_or_else(random_vip6_range),
                },
                nodes: BTreeMap::new(),
                vips: Vips::default(),
                is_copy: false,
            }),
        }
    }

    /// Reads the file, for the ranges of the flags.
    pub(super) fn open(
        config: &DirectoryConfig,
        host: &BTreeSet<IpAddr>,
    ) -> Result<Self, DirectoryError> {
        let before: Option<Self> = config.state.read(NODES)?;
        let ranges = ranges(config, before.as_ref(), host)?;
        match before {
            Some(stored) => Ok(stored.checked(&config.state)?.moved(ranges)),
            None => Ok(Self {
                ranges,
                nodes: BTreeMap::new(),
                vips: Vips::default(),
                is_copy: false,
            }),
        }
    }

    /// Whether there is a file.
    pub(super) fn is_there(state: &StateDir) -> bool {
        state.join(NODES.name).exists()
    }

    /// Writes the file. It is on disk when this returns.
    pub(super) fn write(&self, state: &StateDir) -> Result<(), StateError> {
        state.write(NODES, self)
    }

    fn checked(self, state: &StateDir) -> Result<Self, DirectoryError> {
        if let Some(problem) = self.vips.problem(&self.ranges) {
            return Err(state.invalid(NODES, problem).into());
        }
        for (node, spec) in &self.nodes {
            if let Err(error) = spec.clone().checked() {
                return Err(state.invalid(NODES, format!("{node}: {error}")).into());
            }
        }
        Ok(self)
    }

    fn moved(self, ranges: VipRanges) -> Self {
        if self.ranges == ranges {
            return self;
        }
        let (vips, lost) = self.vips.moved(&ranges);
        tracing::warn!(
            old.vip4 = %self.ranges.vip4, old.vip6 = %self.ranges.vip6, vip4 = %ranges.vip4, vip6 = %ranges.vip6,
            new_host_parts = lost, "VIP ranges changed: every node has another VIP now"
        );
        Self {
            ranges,
            vips,
            nodes: self.nodes,
            is_copy: self.is_copy,
        }
    }
}

fn ranges(
    config: &DirectoryConfig,
    before: Option<&Stored>,
    host: &BTreeSet<IpAddr>,
) -> Result<VipRanges, DirectoryError> {
    let vip6 = match (config.vip6_range, before) {
        (Some(given), _) => given,
        (None, Some(stored)) => stored.ranges.vip6,
        (None, None) => random_vip6_range(),
    };
    let foreign = foreign(&config.protect, host);
    Ok(VipRanges::checked(config.vip4_range, vip6, &foreign)?)
}
