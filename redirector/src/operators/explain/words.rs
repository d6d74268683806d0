//! The texts of an explanation: what each part of the redirector does with one destination, and
//! what to do if a connection fails. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use culvert_api::{NodeName, Routing, Zone};
use culvert_redirector_common::{LOOPBACK_CIDR, Pass, Reject, Verdict};

use crate::directory::Directory;

/// Advice that starts a redirector, or shows what the running one lacks.
const START: &str =
    "start culvert-redirector; if it runs, `curl http://127.0.0.1:7419/readyz` says what it lacks";

/// What the directory contains for an address and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DirectoryEntry<'a> {
    /// No directory has been saved yet.
    Nothing,
    Vip(&'a NodeName),
    UnassignedVip,
    Foreign,
    Edge(&'a NodeName),
    /// An edge address, with another port than those that are steered.
    OtherPort {
        owners: Vec<&'a NodeName>,
        ports: BTreeSet<u16>,
    },
    Shared(Vec<&'a NodeName>),
    Protected {
        node: &'a NodeName,
        reason: &'a str,
    },
    /// A destination behind a node.
    Behind(&'a NodeName),
    /// The same, of several nodes or of the cloud too.
    RefusedBehind {
        reason: &'a str,
    },
    /// Behind a node, with other ports than these.
    NotBehind(BTreeSet<u16>),
}

/// What the connect hooks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookDecision {
    /// No hooks are installed: another mechanism steers.
    Absent,
    /// Hooks were installed and are detached now.
    Detached,
    Decides(Verdict),
    /// All ports were asked for: each is steered to a loopback address of its own.
    SteersEachPort,
    /// Steered although the node was offline: the lease on the offline flags has expired.
    Lapsed(SocketAddr),
}

/// What nftables does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NftDecision {
    NoTable,
    Passes,
    Steers(NftSet),
    /// It refuses, because it has no intercept address of this family.
    Refuses(NftSet),
    Unknown(String),
}

/// The set that contains a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NftSet {
    Vips,
    Edges,
}

impl NftSet {
    fn content(self) -> &'static str {
        match self {
            Self::Vips => "VIPs",
            Self::Edges => "edge addresses",
        }
    }
}

impl<'a> DirectoryEntry<'a> {
    /// Looks up an address. Without a port it covers all ports that are steered.
    pub(super) fn of(directory: Option<&'a Directory>, ip: IpAddr, port: Option<u16>) -> Self {
        let Some(directory) = directory else {
            return Self::Nothing;
        };
        if directory.ranges.contains(ip) {
            return match directory.node_of_vip(ip) {
                Some(node) => Self::Vip(node),
                None => Self::UnassignedVip,
            };
        }
        if let Some((node, behind)) = directory
            .behind(ip)
            .into_iter()
            .find(|(_, behind)| Some(behind.destination.port()) == port)
        {
            return match behind.routing {
                Routing::Routed => Self::Behind(node),
                Routing::Shared | Routing::Protected => Self::RefusedBehind {
                    reason: &behind.reason,
                },
            };
        }
        let nodes = directory.nodes_of_address(ip);
        let owners: Vec<&NodeName> = nodes.iter().map(|(name, _, _)| *name).collect();
        let Some((node, _, address)) = nodes.first() else {
            let ports = ports(directory, ip);
            return if ports.is_empty() {
                Self::Foreign
            } else {
                Self::NotBehind(ports)
            };
        };
        if address.routing == Routing::Protected {
            return Self::Protected {
                node,
                reason: &address.reason,
            };
        }
        let ports = ports(directory, ip);
        match (address.routing, port) {
            (_, Some(port)) if !ports.contains(&port) => Self::OtherPort { owners, ports },
            (Routing::Shared, _) => Self::Shared(owners),
            (Routing::Routed | Routing::Protected, _) => Self::Edge(node),
        }
    }
}

/// The ports that are steered on an edge address, or on that of a device behind a node.
pub(super) fn ports(directory: &Directory, ip: IpAddr) -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    for (_, node, _) in directory.nodes_of_address(ip) {
        ports.extend(&node.ports);
    }
    for (_, behind) in directory.behind(ip) {
        ports.insert(behind.destination.port());
    }
    ports
}

impl fmt::Display for DirectoryEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("none has been saved yet"),
            Self::Vip(node) => write!(f, "VIP of {node}; every port"),
            Self::UnassignedVip => {
                f.write_str("in the range of VIPs, but no node's: the proxy refuses it")
            }
            Self::Foreign => f.write_str("not an edge node's address"),
            Self::Edge(node) => write!(f, "address of {node}"),
            Self::OtherPort { owners, ports } => {
                write!(
                    f,
                    "address of {}, steered on ports {} only",
                    listed(owners, ", "),
                    listed(ports, ", ")
                )
            }
            Self::Shared(owners) => {
                let owners = listed(owners, ", ");
                write!(
                    f,
                    "address of several nodes ({owners}): the proxy refuses it; dial them by name"
                )
            }
            Self::Protected { node, reason } => {
                write!(f, "address of {node}, but never steered: {reason}")
            }
            Self::Behind(node) => write!(f, "behind {node}"),
            Self::RefusedBehind { reason } => write!(f, "refused: {reason}"),
            Self::NotBehind(ports) => {
                write!(f, "behind a node on ports {} only", listed(ports, ", "))
            }
        }
    }
}

impl fmt::Display for HookDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Absent | Self::Detached => "not attached",
            Self::Lapsed(to) => {
                return write!(
                    f,
                    "steered to {to} (its node was offline, but no redirector vouches for that \
                     any more)"
                );
            }
            Self::SteersEachPort => {
                return write!(
                    f,
                    "steered to {LOOPBACK_CIDR}, each port to an address of its own"
                );
            }
            Self::Decides(Verdict::Steer(steer)) => {
                return write!(f, "steered to {}", steer.to.socket_addr());
            }
            Self::Decides(Verdict::Pass(pass)) => match pass {
                Pass::Unconfigured => "passes: no directory has been installed yet",
                Pass::Exempt => "passes: sockets without a mark are exempt",
                Pass::Intercept => "passes: this is the proxy's intercept listener",
                Pass::Unmatched => "passes: neither a VIP nor a port of an edge address",
                Pass::ToNftables => "passes: nftables steers it",
            },
            Self::Decides(Verdict::Reject(Reject::Offline)) => {
                "refused with EHOSTUNREACH: its node is offline"
            }
            Self::Decides(Verdict::Reject(Reject::NoIntercept)) => {
                "refused with EHOSTUNREACH: this host has no intercept address of this family \
                 (--node-ip)"
            }
        };
        f.write_str(text)
    }
}

impl fmt::Display for NftDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTable => f.write_str("no table inet culvert"),
            Self::Passes => f.write_str("passes: not in the set of edge addresses"),
            Self::Steers(set) => write!(f, "steered by the set of {}", set.content()),
            Self::Refuses(set) => write!(
                f,
                "refused, without an intercept address of this family (--node-ip), by the set \
                 of {}",
                set.content()
            ),
            Self::Unknown(why) => f.write_str(why),
        }
    }
}

/// Advice if a connection does not reach the node or something is missing.
pub(super) fn fix(
    entry: &DirectoryEntry<'_>,
    by_hooks: HookDecision,
    by_nftables: &NftDecision,
    (ip, port): (IpAddr, Option<u16>),
    zone: &Zone,
) -> Option<String> {
    match entry {
        DirectoryEntry::Nothing => Some(START.to_owned()),
        DirectoryEntry::Foreign => Some(format!(
            "if a node has it, where the proxy runs: `culvert token create NODE --address \
             {ip}`; in a cluster its Node says it"
        )),
        DirectoryEntry::UnassignedVip => Some(
            "look the node's name up again: VIPs of removed nodes are not given to others \
                for a day"
                .to_owned(),
        ),
        DirectoryEntry::Shared(owners) => Some(dial_by_name(owners, port, zone)),
        DirectoryEntry::Protected { node, .. } => Some(dial_by_name(&[node], port, zone)),
        DirectoryEntry::OtherPort { owners, ports } => match owners.as_slice() {
            [owner] => {
                let ports = ports.iter().copied().chain(port).collect();
                Some(format!(
                    "{}, or {}",
                    dial_by_name(owners, port, zone),
                    steer_ports(owner, &ports)
                ))
            }
            several => Some(dial_by_name(several, port, zone)),
        },
        DirectoryEntry::RefusedBehind { .. } => {
            Some("one node alone may have it behind it, and nothing else its address".to_owned())
        }
        DirectoryEntry::NotBehind(_) => port
            .map(|port| format!("add {ip}:{port} where the others are: see docs/behind-a-node.md")),
        DirectoryEntry::Vip(node) | DirectoryEntry::Edge(node) | DirectoryEntry::Behind(node) => {
            unsteered(node, by_hooks, by_nftables)
        }
    }
}

fn dial_by_name(owners: &[&NodeName], port: Option<u16>, zone: &Zone) -> String {
    let mut names = Vec::new();
    for owner in owners {
        names.push(format!("{}{}", zone.full_name(owner), behind(port)));
    }
    format!("dial {}", names.join(" or "))
}

fn steer_ports(owner: &NodeName, ports: &BTreeSet<u16>) -> String {
    let ports = listed(ports, ",");
    format!(
        "have the port steered, where the proxy runs: `culvert token create {owner} --port \
         {ports}`; in a cluster: ConfigMap culvert-ports"
    )
}

/// Advice for a destination that should be steered.
fn unsteered(node: &NodeName, by_hooks: HookDecision, by_nftables: &NftDecision) -> Option<String> {
    match (by_hooks, by_nftables) {
        (HookDecision::Decides(Verdict::Reject(Reject::Offline)), _) => Some(format!(
            "where the proxy runs: `culvert why {node}` says why it is \
                offline"
        )),
        (HookDecision::Decides(Verdict::Reject(Reject::NoIntercept)), _)
        | (_, NftDecision::Refuses(_)) => Some(
            "give culvert-redirector a --node-ip of this family too, or dial the node's address \
             of the other"
                .to_owned(),
        ),
        (
            HookDecision::Detached
            | HookDecision::Lapsed(_)
            | HookDecision::Decides(Verdict::Pass(Pass::Unconfigured)),
            _,
        ) => Some(START.to_owned()),
        (HookDecision::Decides(Verdict::Steer(_)) | HookDecision::SteersEachPort, _)
        | (_, NftDecision::Steers(_)) => None,
        (HookDecision::Absent | HookDecision::Decides(Verdict::Pass(_)), _) => {
            Some(START.to_owned())
        }
    }
}

fn behind(port: Option<u16>) -> String {
    match port {
        Some(port) => format!(":{port}"),
        None => String::new(),
    }
}

fn listed<T: ToString>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items
        .into_iter()
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(separator)
}
