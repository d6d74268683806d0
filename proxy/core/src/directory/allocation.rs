//! The agreement of a cluster's proxies on VIPs.

use culvert_api::NodeName;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::vips::{VipError, VipLimits, VipRanges, Vips};
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

/// This proxy's contribution to the agreement.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub(super) vip4: Ipv4Net,
    pub(super) vip6: Option<Ipv6Net>,
    pub(super) last: Allocation,
}

impl Proposal {
    /// Computes the allocation for exactly `edges`, within `most`. It starts from the cluster's
    /// allocation, or from this proxy's last one if the cluster has none.
    pub fn agreed<'a>(
        &self,
        kept: Option<Allocation>,
        edges: impl Iterator<Item = &'a NodeName>,
        now: UnixTime,
        most: VipLimits,
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
