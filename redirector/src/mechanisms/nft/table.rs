//! The inputs of the table, and the names of its parts.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use nftables::types::NfFamily;

use super::expressions::Family;
use crate::config::Intercept;
use crate::directory::Ranges;
use crate::plan::{Destination, Plan};

/// The table's name.
pub(super) const TABLE: &str = "culvert";
/// The chain with the rules that steer, which other chains jump to.
pub(super) const STEER: &str = "steer";
/// The chain that counts what filters of others let through.
pub(super) const ADMITTED: &str = "admitted";
/// The chain that keeps other hosts from the intercept ports.
pub(super) const GUARD: &str = "guard";
/// The chain that refuses what outer bridges forward to edge nodes.
pub(super) const REFUSE_BRIDGES: &str = "refuse_bridges";
/// The tables that the rules are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `inet culvert`, for both families.
    Joint,
    /// `ip culvert` and `ip6 culvert`, for kernels before 5.2: their `inet` tables do not translate
    /// addresses.
    Split,
}

/// A table of a layout, with the families whose rules are in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayoutTable {
    pub(super) family: NfFamily,
    pub(super) name: &'static str,
    pub(super) families: &'static [Family],
}

/// All inputs of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableSpec {
    pub(super) intercept: Intercept,
    pub(super) guard: Guard,
    pub(super) ranges: Ranges,
    pub(super) edges: BTreeSet<SocketAddr>,
}

/// Whose packets are steered and may reach the intercept ports, besides this host's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Sources that are allowed on any interface.
    pub(crate) allow: Vec<IpNet>,
    /// Ranges of pods; in a family without a range, pods may have any address.
    pub(crate) pods: Vec<IpNet>,
    /// Interfaces by which packets of other hosts come in.
    pub(crate) uplinks: BTreeSet<String>,
    /// The bridges among them: containers and virtual machines of this host may be on them too.
    pub(crate) outer_bridges: Vec<String>,
}

impl Layout {
    pub(super) const ALL: [Self; 2] = [Self::Joint, Self::Split];

    /// The tables, in order.
    pub(super) fn tables(self) -> &'static [LayoutTable] {
        const JOINT: [LayoutTable; 1] = [LayoutTable {
            family: NfFamily::INet,
            name: "inet",
            families: &Family::BOTH,
        }];
        const SPLIT: [LayoutTable; 2] = [
            LayoutTable {
                family: NfFamily::IP,
                name: "ip",
                families: &[Family::V4],
            },
            LayoutTable {
                family: NfFamily::IP6,
                name: "ip6",
                families: &[Family::V6],
            },
        ];
        match self {
            Self::Joint => &JOINT,
            Self::Split => &SPLIT,
        }
    }
}

impl TableSpec {
    pub(crate) fn new(intercept: Intercept, guard: Guard, plan: &Plan) -> Self {
        let mut edges = plan.nftables_only.clone();
        for destination in plan.destinations.keys() {
            if let Destination::Edge(address) = destination {
                edges.insert(*address);
            }
        }
        Self {
            intercept,
            guard,
            ranges: plan.ranges,
            edges,
        }
    }

    /// Whether only elements differ.
    pub(super) fn has_same_rules(&self, other: &Self) -> bool {
        self.intercept == other.intercept
            && self.guard == other.guard
            && self.ranges == other.ranges
    }

    pub(super) fn intercept_ip(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.intercept.node.v4.map(IpAddr::V4),
            Family::V6 => self.intercept.node.v6.map(IpAddr::V6),
        }
    }

    pub(super) fn vip_range(&self, family: Family) -> Option<IpNet> {
        match family {
            Family::V4 => self.ranges.vip4.map(IpNet::V4),
            Family::V6 => self.ranges.vip6.map(IpNet::V6),
        }
    }
}

pub(super) fn edge_set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "dst4",
        Family::V6 => "dst6",
    }
}

pub(super) fn vip_set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "vip4",
        Family::V6 => "vip6",
    }
}

#[cfg(test)]
pub(super) mod examples {
    use super::*;
    use crate::config::NodeIps;
    use crate::directory::examples;
    use crate::plan::{Freshness, plan};

    pub(in crate::mechanisms::nft) fn spec(node: NodeIps) -> TableSpec {
        let plan = plan(&examples::directory(), Freshness::Live);
        let intercept = Intercept {
            node,
            ports: vec![7410, 7411, 7412, 7413],
            mark: 0x2000,
        };
        let guard = Guard {
            allow: vec!["10.9.8.0/24".parse().unwrap()],
            pods: vec!["10.244.0.0/16".parse().unwrap()],
            uplinks: ["br0".to_owned(), "eth0".to_owned()].into(),
            outer_bridges: vec!["br0".to_owned()],
        };
        TableSpec::new(intercept, guard, &plan)
    }

    pub(in crate::mechanisms::nft) fn v4_only() -> NodeIps {
        NodeIps {
            v4: Some("10.9.0.1".parse().unwrap()),
            v6: None,
        }
    }
}
