//! The VIPs: one for each node, allocated once. A VIP stays reserved for a day after its node was
//! deleted. Pure.

mod shards;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use culvert_api::NodeName;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::clock::UnixTime;
pub use shards::{MAX_VIP_SHARDS, VipShards};

/// The time for which a VIP is not reused after its node was deleted. It is longer than anyone
/// caches an address.
const REST: Duration = Duration::from_secs(24 * 3600);

/// Ranges in which a VIP could belong to others.
const EVERYONES: [(&str, &str); 7] = [
    ("0.0.0.0/8", "the unspecified addresses"),
    ("127.0.0.0/8", "the loopback addresses"),
    ("169.254.0.0/16", "the link-local addresses"),
    ("224.0.0.0/3", "the multicast and reserved addresses"),
    ("::/96", "the unspecified and loopback addresses"),
    ("fe80::/10", "the link-local addresses"),
    ("ff00::/8", "the multicast addresses"),
];

/// The ranges of VIPs. A node has the same host part in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VipRanges {
    /// A range such as 198.18.0.0/15, which RFC 2544 reserves.
    pub vip4: Ipv4Net,
    /// A unique local /64, RFC 4193.
    pub vip6: Ipv6Net,
}

/// A node's addresses inside Culvert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vip {
    /// In the IPv4 range.
    pub(crate) v4: Ipv4Addr,
    /// In the IPv6 range.
    pub(crate) v6: Ipv6Addr,
}

/// The reason why the ranges are invalid or full.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VipError {
    /// All VIPs of the range are in use, or were a moment ago.
    #[error(
        "all {usable} VIPs of {range} are taken or at rest: give the proxy a larger --vip4-range, \
         or wait a day after removing nodes"
    )]
    Exhausted {
        /// The range.
        range: Ipv4Net,
        /// How many it has.
        usable: usize,
    },
    /// The range overlaps with another one.
    #[error("the VIP range {range} overlaps {with}: choose another with {flag}")]
    Overlap {
        /// The range.
        range: IpNet,
        /// The other range, and what it is.
        with: String,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// The proxies of a cluster have different ranges.
    #[error(
        "the cluster's VIPs are of {kept}, this proxy's are to be of {own}: give {flag} {kept}, \
         or stop all proxies and remove the VIPs that the cluster keeps to have others"
    )]
    Disagreed {
        /// That of the cluster.
        kept: IpNet,
        /// That of this proxy.
        own: IpNet,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// The range is too small.
    #[error("{range} is too small for VIPs: {flag} needs {needs}")]
    TooSmall {
        /// The range.
        range: IpNet,
        /// The flag that sets it.
        flag: &'static str,
        /// The size that would do.
        needs: &'static str,
    },
}

impl VipRanges {
    /// Refuses ranges that are too small, and ranges with addresses of the cloud or of general use.
    pub fn checked(
        vip4: Ipv4Net,
        vip6: Ipv6Net,
        protected: &[(IpNet, String)],
    ) -> Result<Self, VipError> {
        let vip4 = vip4.trunc();
        let vip6 = vip6.trunc();
        if vip4.prefix_len() > 24 {
            return Err(VipError::TooSmall {
                range: vip4.into(),
                flag: "--vip4-range",
                needs: "a /24 or larger",
            });
        }
        if 128 - vip6.prefix_len() < 32 - vip4.prefix_len() {
            return Err(VipError::TooSmall {
                range: vip6.into(),
                flag: "--vip6-range",
                needs: "a /64",
            });
        }
        for (range, flag) in [
            (IpNet::V4(vip4), "--vip4-range"),
            (IpNet::V6(vip6), "--vip6-range"),
        ] {
            for (other, with) in protected {
                if other.contains(&range) || range.contains(other) {
                    return Err(VipError::Overlap {
                        range,
                        with: with.clone(),
                        flag,
                    });
                }
            }
        }
        Ok(Self { vip4, vip6 })
    }

    /// Whether an address can be a VIP.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.vip4.contains(&v4),
            IpAddr::V6(v6) => self.vip6.contains(&v6),
        }
    }

    fn vip(&self, offset: u32) -> Vip {
        Vip {
            v4: Ipv4Addr::from(u32::from(self.vip4.network()).saturating_add(offset)),
            v6: Ipv6Addr::from(u128::from(self.vip6.network()).saturating_add(offset.into())),
        }
    }

    /// Skips host parts `.0` and `.255`, which people and old network equipment do not take for
    /// hosts.
    fn offsets(&self) -> impl Iterator<Item = u32> {
        let size = 1_u64 << (32 - self.vip4.prefix_len());
        let last = u32::try_from(size - 1).unwrap_or(u32::MAX);
        (1..last).filter(|offset| self.usable(*offset))
    }

    fn usable(&self, offset: u32) -> bool {
        let fits = u64::from(offset) < 1 << (32 - self.vip4.prefix_len());
        fits && !matches!(offset & 0xff, 0 | 0xff)
    }
}

/// A new unique local /64 by RFC 4193: `fd`, 40 random bits, subnet 0.
pub(crate) fn random_vip6_range() -> Ipv6Net {
    let random: u64 = rand::random::<u64>() & 0xff_ffff_ffff;
    let network = 0xfd_u128 << 120 | u128::from(random) << 80;
    Ipv6Net::new_assert(Ipv6Addr::from(network), 64)
}

/// The length of a node's entry in JSON without its name: `"":4294967295,`.
const HELD_BYTES: usize = 14;
/// The same for a reserved host part: `"":{"offset":4294967295,"until":18446744073709551615},`.
const RESTING_BYTES: usize = 56;

/// The host part of each node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vips {
    held: BTreeMap<NodeName, u32>,
    /// Reserved host parts of deleted nodes. A node that comes back in time gets its own again.
    resting: BTreeMap<NodeName, Resting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resting {
    offset: u32,
    until: UnixTime,
}

impl Vips {
    /// The node's VIP in these ranges.
    pub(crate) fn of(&self, node: &NodeName, ranges: &VipRanges) -> Option<Vip> {
        self.held.get(node).map(|offset| ranges.vip(*offset))
    }

    /// The host part of the node's VIPs.
    pub(crate) fn host_part(&self, node: &NodeName) -> Option<u32> {
        self.held.get(node).copied()
    }

    /// The allocation of another proxy. The VIPs of nodes that it no longer has are reserved here,
    /// as there, in case this proxy allocates one day.
    pub(crate) fn followed(&self, held: BTreeMap<NodeName, u32>, now: UnixTime) -> Self {
        let mut next = self.stepped(&held.keys().collect(), now);
        let taken: BTreeSet<u32> = held.values().copied().collect();
        next.resting
            .retain(|node, resting| !held.contains_key(node) && !taken.contains(&resting.offset));
        next.held = held;
        next
    }

    /// The allocation for exactly `nodes`: nodes with a VIP keep it, and new nodes get the lowest
    /// free one.
    pub(crate) fn reconciled<'a>(
        &self,
        nodes: impl Iterator<Item = &'a NodeName>,
        ranges: &VipRanges,
        now: UnixTime,
    ) -> Result<Self, VipError> {
        let nodes: BTreeSet<&NodeName> = nodes.collect();
        let mut next = self.stepped(&nodes, now);
        let taken = next.used_offsets();
        let mut free = ranges.offsets().filter(|offset| !taken.contains(offset));
        for node in nodes {
            if next.held.contains_key(node) {
                continue;
            }
            let own = next.resting.remove(node).map(|resting| resting.offset);
            let Some(offset) = own.or_else(|| free.next()) else {
                return Err(VipError::Exhausted {
                    range: ranges.vip4,
                    usable: ranges.offsets().count(),
                });
            };
            next.held.insert(node.clone(), offset);
        }
        Ok(next)
    }

    /// Drops the shortest reservations of nodes that are not among these, until the JSON has at most
    /// so many bytes.
    fn forget_resting(&mut self, nodes: &BTreeSet<&NodeName>, most: usize) {
        let mut bytes = self.bytes();
        let mut resting: Vec<(UnixTime, NodeName)> = Vec::new();
        for (node, one) in &self.resting {
            if !nodes.contains(node) {
                resting.push((one.until, node.clone()));
            }
        }
        resting.sort_unstable();
        for (_, node) in resting {
            if bytes <= most {
                break;
            }
            bytes -= RESTING_BYTES + node.as_str().len();
            self.resting.remove(&node);
        }
    }

    /// Removes expired reservations, and reserves the VIPs of deleted nodes.
    fn stepped(&self, nodes: &BTreeSet<&NodeName>, now: UnixTime) -> Self {
        let mut next = self.clone();
        next.resting.retain(|_, resting| resting.until > now);
        for (node, offset) in &self.held {
            if !nodes.contains(node) {
                next.held.remove(node);
                next.resting.insert(
                    node.clone(),
                    Resting {
                        offset: *offset,
                        until: now + REST,
                    },
                );
            }
        }
        next
    }

    /// Whether nothing is allocated or reserved.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.resting.is_empty()
    }

    fn used_offsets(&self) -> BTreeSet<u32> {
        let mut used: BTreeSet<u32> = self.held.values().copied().collect();
        used.extend(self.resting.values().map(|resting| resting.offset));
        used
    }

    /// An upper bound of the length of their JSON.
    fn bytes(&self) -> usize {
        let held: usize = self
            .held
            .keys()
            .map(|node| HELD_BYTES + node.as_str().len())
            .sum();
        held + self
            .resting
            .keys()
            .map(|node| RESTING_BYTES + node.as_str().len())
            .sum::<usize>()
    }

    /// Removes allocations outside of other ranges. Returns the allocation and the number of nodes
    /// that need a new VIP.
    pub(crate) fn moved(mut self, ranges: &VipRanges) -> (Self, usize) {
        let before = self.held.len();
        self.held.retain(|_, offset| ranges.usable(*offset));
        self.resting
            .retain(|_, resting| ranges.usable(resting.offset));
        let lost = before - self.held.len();
        (self, lost)
    }

    /// Two nodes with one VIP, or a VIP outside of the ranges: the file was edited.
    pub(crate) fn problem(&self, ranges: &VipRanges) -> Option<String> {
        let mut seen: BTreeMap<u32, &NodeName> = BTreeMap::new();
        let resting = self
            .resting
            .iter()
            .map(|(node, resting)| (node, resting.offset));
        for (node, offset) in self
            .held
            .iter()
            .map(|(node, offset)| (node, *offset))
            .chain(resting)
        {
            if !ranges.usable(offset) {
                return Some(format!(
                    "{node} has host part {offset}, which is not in {}",
                    ranges.vip4
                ));
            }
            if let Some(other) = seen.insert(offset, node) {
                return Some(format!(
                    "{other} and {node} have the same host part {offset}"
                ));
            }
        }
        None
    }
}

/// The other use of a range that VIPs must not overlap, in words.
pub(super) fn foreign(protect: &[IpNet], host: &BTreeSet<IpAddr>) -> Vec<(IpNet, String)> {
    let mut foreign = Vec::new();
    for (range, what) in EVERYONES {
        if let Ok(range) = range.parse() {
            foreign.push((range, what.to_owned()));
        }
    }
    for range in protect {
        foreign.push((*range, format!("the protected range {range}")));
    }
    for address in host {
        let what = format!("this host's address {address}");
        foreign.push((IpNet::from(*address), what));
    }
    foreign
}

#[cfg(test)]
mod tests;
