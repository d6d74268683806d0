//! How the proxies of a cluster agree on VIPs.

use culvert_api::NodeName;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::vips::{Most, VipError, VipRanges, Vips};
use crate::clock::UnixTime;

/// The VIPs as all proxies of the cluster agree on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allocation {
    /// Where they come from.
    pub(crate) ranges: VipRanges,
    /// Who has which.
    pub(crate) vips: Vips,
}

impl Allocation {
    /// What makes no sense in it.
    pub(crate) fn problem(&self) -> Option<String> {
        self.vips.problem(&self.ranges)
    }
}

/// What this proxy brings to the agreement.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(super) vip4: Ipv4Net,
    pub(super) vip6: Option<Ipv6Net>,
    pub(super) last: Allocation,
}

impl Proposal {
    /// The allocation, within `most`, when exactly `edges` exist: from the one that the cluster
    /// keeps, or from this proxy's last where it keeps none.
    pub(crate) fn agreed<'a>(
        &self,
        kept: Option<Allocation>,
        edges: impl Iterator<Item = &'a NodeName>,
        now: UnixTime,
        most: Most,
    ) -> Result<Allocation, VipError> {
        let Allocation { ranges, vips } = match kept {
            Some(kept) => self.fits(&kept.ranges).map(|()| kept)?,
            None => self.last.clone(),
        };
        Ok(Allocation {
            ranges,
            vips: vips.reconciled_as_fits(edges, &ranges, now, most),
        })
    }

    fn fits(&self, kept: &VipRanges) -> Result<(), VipError> {
        let disagreed = |kept: ipnet::IpNet, own: ipnet::IpNet, flag| {
            Err(VipError::Disagreed { kept, own, flag })
        };
        match self.vip6 {
            _ if self.vip4 != kept.vip4 => {
                disagreed(kept.vip4.into(), self.vip4.into(), "--vip4-range")
            }
            Some(own) if own != kept.vip6 => {
                disagreed(kept.vip6.into(), own.into(), "--vip6-range")
            }
            Some(_) | None => Ok(()),
        }
    }
}
