//! `/debug/installed` of a redirector: what should be on its host, and what the kernel has.
//! `culvert check` reads it. A field with `default` was added later: an older redirector
//! omits it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The page's content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// `--mechanism`.
    pub mechanism: Mechanism,
    /// The mechanism that steers now.
    #[serde(default)]
    pub in_force: Option<Mechanism>,
    /// Why connect hooks are missing that were asked for.
    #[serde(default)]
    pub fallback: Option<String>,
    /// Why nothing sees pods' connections.
    #[serde(default)]
    pub unseen_pods: Option<String>,
    /// `--hooks`.
    #[serde(default)]
    pub hooks_see: Option<HookScope>,
    /// Pinned links of another version: the proxy cannot read the destinations of connections that
    /// they steer.
    #[serde(default)]
    pub other_versions: Vec<String>,
    /// The connect hooks.
    pub hooks: Vec<Hook>,
    /// The error of a connect that the hooks refuse; `None` if the kernel cannot be asked.
    #[serde(default)]
    pub refusal: Option<Refusal>,
    /// Whether the nftables table exists.
    pub table: bool,
    /// Why it is not known whether the table exists.
    pub table_problem: Option<String>,
    /// Why a flush of all rules may end connections that nftables steers: what keeps them is not
    /// there.
    #[serde(default)]
    pub keeper_problem: Option<String>,
    /// The VIP ranges that need a route.
    pub ranges: Vec<IpNet>,
    /// The VIP ranges that have one.
    pub routes: Vec<IpNet>,
    /// The routes lead to this host itself, because the kernel cannot create a bridge.
    #[serde(default)]
    pub routes_to_host: bool,
    /// Edge addresses that are not steered, since a network of this host has them too, each with the
    /// reason.
    #[serde(default)]
    pub withheld: Vec<String>,
    /// The ports that connections are steered to.
    pub intercept_ports: Vec<u16>,
    /// The addresses of the DNS server.
    pub dns: Vec<SocketAddr>,
    /// The zone of the nodes' names; empty without DNS.
    pub zone: String,
    /// The servers that other names are forwarded to.
    #[serde(default)]
    pub forward: Vec<SocketAddr>,
    /// Programs of others at the attach points of the hooks.
    #[serde(default)]
    pub neighbours: Vec<Neighbours>,
    /// What nftables has steered in the last [`RECENT`]; `None` if there is no table.
    #[serde(default)]
    pub steered: Option<SteeredPackets>,
    /// What the connect hooks have steered in the last [`RECENT`]; `None` without hooks.
    #[serde(default)]
    pub hooked: Option<SteeredPackets>,
    /// Why every user of this host may listen on the intercept ports, where hooks should keep them.
    #[serde(default)]
    pub unreserved: Option<String>,
    /// The user who may listen on the intercept ports besides root, by number; `None` without hooks.
    #[serde(default)]
    pub reserved_for: Option<u32>,
    /// How often others tried in the last [`RECENT`], and were refused.
    #[serde(default)]
    pub refused_binds: u64,
    /// Chains of other tables that may drop packets to this host; empty if nft cannot be asked.
    #[serde(default)]
    pub dropping_chains: Vec<String>,
    /// Chains of other tables that drop or reject what some users or cgroups of this host send;
    /// empty if nft cannot be asked.
    #[serde(default)]
    pub owner_chains: Vec<String>,
    /// Chains of other tables that put connections into zones of connection tracking; empty if nft
    /// cannot be asked.
    #[serde(default)]
    pub zoning_chains: Vec<String>,
    /// Packets to the intercept ports that were dropped in the last [`RECENT`], because they came
    /// from other hosts.
    #[serde(default)]
    pub guard_drops: u64,
    /// Packets to edge nodes that were refused in the last [`RECENT`], because they came in by one of
    /// `outer_bridges`.
    #[serde(default)]
    pub refused_of_bridges: u64,
    /// Bridges that lead to other hosts: what comes in by them comes from other hosts.
    #[serde(default)]
    pub outer_bridges: Vec<String>,
    /// How often the redirector has put right in the last [`RECENT`] what another program had
    /// removed or changed: `hooks`, `destinations` of the hooks, `nftables`, `routes`.
    #[serde(default)]
    pub repairs: BTreeMap<String, u64>,
    /// The exempt mark, and who else uses its bits.
    #[serde(default)]
    pub marks: Option<Marks>,
}

/// The time that counts of packets are about. Most monitoring systems connect every minute.
pub const RECENT: Duration = Duration::from_secs(120);

/// First packets of connections that were steered. nftables counts those that were sent again too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeredPackets {
    /// All of them.
    pub begun: u64,
    /// Packets that passed all filters of this host. For hooks: connections that the proxy's socket
    /// accepted.
    pub admitted: u64,
}

impl Installed {
    /// Whether any hook is attached to a cgroup that exists.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.hooks
            .iter()
            .any(|hook| hook.link.is_some() && hook.cgroup_id != Some(0))
    }

    /// Whether hooks should exist. If they cannot be installed, nftables steers in their place.
    #[must_use]
    pub fn has_hooks(&self) -> bool {
        self.mechanism.has_ebpf() && self.fallback.is_none()
    }

    /// Whether the nftables table should exist.
    #[must_use]
    pub fn has_nftables(&self) -> bool {
        self.mechanism.has_nftables()
    }

    /// Whether anything should steer.
    #[must_use]
    pub fn steers(&self) -> bool {
        self.has_hooks() || self.has_nftables()
    }

    /// Whether the redirector forwards questions about other names.
    #[must_use]
    pub fn forwards(&self) -> bool {
        !self.forward.is_empty()
    }
}

/// What steers connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Mechanism {
    /// Connect hooks and nftables.
    Both,
    /// Connect hooks alone.
    Ebpf,
    /// nftables alone.
    Nftables,
    /// Neither: DNS only.
    #[default]
    None,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Both, Self::Ebpf, Self::Nftables, Self::None];

    /// The same, with connect hooks too.
    #[must_use]
    pub const fn with_ebpf(self) -> Self {
        match self {
            Self::Both | Self::Nftables => Self::Both,
            Self::Ebpf | Self::None => Self::Ebpf,
        }
    }

    /// The same, with nftables too.
    #[must_use]
    pub const fn with_nftables(self) -> Self {
        match self {
            Self::Both | Self::Ebpf => Self::Both,
            Self::Nftables | Self::None => Self::Nftables,
        }
    }

    /// The name in flags, metrics and JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Ebpf => "ebpf",
            Self::Nftables => "nftables",
            Self::None => "none",
        }
    }

    /// Whether connect hooks are part of it.
    #[must_use]
    pub const fn has_ebpf(self) -> bool {
        matches!(self, Self::Both | Self::Ebpf)
    }

    /// Whether nftables is part of it.
    #[must_use]
    pub const fn has_nftables(self) -> bool {
        matches!(self, Self::Both | Self::Nftables)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Whose connections the hooks steer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum HookScope {
    /// Connections of all processes of the cgroup, pods' too.
    All,
    /// Connections of processes in the redirector's own network namespace.
    Host,
}

/// The error of a connect that the hooks refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// "No route to host", as routers say it.
    #[serde(rename = "EHOSTUNREACH")]
    HostUnreachable,
    /// "Operation not permitted": this kernel has no `bpf_set_retval` for connect programs.
    #[serde(rename = "EPERM")]
    NotPermitted,
}

impl Refusal {
    /// The name of the errno.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::HostUnreachable => "EHOSTUNREACH",
            Self::NotPermitted => "EPERM",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// One of the redirector's programs, with the kernel's ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Its name.
    pub program: String,
    /// `None`: it is not attached.
    pub link: Option<u32>,
    /// `None`: it is not attached.
    #[serde(default)]
    pub program_id: Option<u32>,
    /// Zero if the link is detached or its cgroup was removed.
    pub cgroup_id: Option<u64>,
}

/// Programs of others at the attach point of one hook, by the kernel's ids, in the order in which
/// they run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbours {
    /// The hook.
    pub program: String,
    /// Programs that run before it.
    pub before: Vec<u32>,
    /// Programs that run after it.
    pub after: Vec<u32>,
}

/// The mark that exempts connections from being steered, beside those of other programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// `--mark`; zero exempts nothing.
    pub exempt: u32,
    /// All bits of marks that rules of others name.
    pub used: u32,
    /// The rules of others that name a bit of the exempt mark, or the first of them.
    pub users: Vec<MarkUser>,
    /// Why some rules are not known.
    pub problems: Vec<String>,
}

/// Rules of another program that set or match marks of packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkUser {
    /// `ip rule PRIORITY`, or family, table and chain of nftables.
    pub place: String,
    /// The bits that they name.
    pub bits: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_what_json_has() {
        for mechanism in Mechanism::ALL {
            assert_eq!(
                serde_json::to_value(mechanism).unwrap(),
                mechanism.label(),
                "{mechanism:?}"
            );
        }
        for refusal in [Refusal::HostUnreachable, Refusal::NotPermitted] {
            assert_eq!(serde_json::to_value(refusal).unwrap(), refusal.label());
        }
        assert_eq!(serde_json::to_value(HookScope::Host).unwrap(), "host");
    }

    #[test]
    fn a_mechanism_with_another_has_both() {
        for mechanism in Mechanism::ALL {
            let with_ebpf = mechanism.with_ebpf();
            assert!(with_ebpf.has_ebpf());
            assert_eq!(with_ebpf.has_nftables(), mechanism.has_nftables());
            let with_nftables = mechanism.with_nftables();
            assert!(with_nftables.has_nftables());
            assert_eq!(with_nftables.has_ebpf(), mechanism.has_ebpf());
        }
    }

    #[test]
    fn an_older_redirector_says_less() {
        let text = r#"{
            "mechanism": "both", "hooks": [{"program": "cv_connect4", "link": 7, "cgroup_id": 1}],
            "table": true, "table_problem": null, "ranges": ["198.18.0.0/15"], "routes": [],
            "intercept_ports": [7410], "dns": ["10.0.0.1:53"], "zone": "edge.internal"
        }"#;
        let installed: Installed = serde_json::from_str(text).unwrap();
        assert_eq!(installed.mechanism, Mechanism::Both);
        assert_eq!((installed.in_force, installed.refusal), (None, None));
        let again: Installed =
            serde_json::from_value(serde_json::to_value(&installed).unwrap()).unwrap();
        assert_eq!(again, installed);
    }
}
