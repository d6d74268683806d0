//! The whole table as a pure function of what is steered, and the changes of its elements.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use nftables::batch::Batch;
use nftables::schema::{Chain, Element, NfListObject, Nftables, Rule, Set, SetFlag, SetType, SetTypeValue, Table};
use nftables::stmt::Statement;
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook};

use super::expressions::{
    Expr, Family, Stmt, address_and_port, anonymous_set, comes_in_by, concat, counter, daddr, dnat, dport, equal,
    has_mark, is_address_of_its_interface, is_tcp, prefix, reject, saddr, text,
};
use crate::config::Intercept;
use crate::directory::Ranges;
use crate::plan::{Destination, Plan};

/// The table's name; its family is `inet`.
pub(super) const TABLE: &str = "culvert";
const FAMILY: NfFamily = NfFamily::INet;
/// Before kube-proxy's and everybody's -100 (`dstnat`): the first chain that translates a connection wins.
const NAT_PRIORITY: i32 = -110;
/// The chain that refuses this host's own connections.
const REFUSE_OUTPUT: &str = "refuse_output";
/// `filter`.
const FILTER_PRIORITY: i32 = 0;

/// Everything that the table depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableSpec {
    intercept: Intercept,
    guard_allow: Vec<IpNet>,
    ranges: Ranges,
    pub(super) edges: BTreeSet<SocketAddr>,
}

impl TableSpec {
    pub(crate) fn new(intercept: Intercept, guard_allow: Vec<IpNet>, plan: &Plan) -> Self {
        let edge = |destination: &Destination| match destination {
            Destination::Edge(address) => Some(*address),
            Destination::Vip(_) => None,
        };
        let edges = plan.destinations.keys().filter_map(edge).chain(plan.beyond.iter().copied()).collect();
        Self { intercept, guard_allow, ranges: plan.ranges, edges }
    }

    /// Whether only elements differ.
    pub(super) fn has_same_rules(&self, other: &Self) -> bool {
        self.intercept == other.intercept && self.guard_allow == other.guard_allow && self.ranges == other.ranges
    }

    fn intercept_ip(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.intercept.node.v4.map(IpAddr::V4),
            Family::V6 => self.intercept.node.v6.map(IpAddr::V6),
        }
    }

    fn vip_range(&self, family: Family) -> Option<IpNet> {
        match family {
            Family::V4 => self.ranges.vip4.map(IpNet::V4),
            Family::V6 => self.ranges.vip6.map(IpNet::V6),
        }
    }
}

/// One transaction that replaces the table, whatever it was before.
pub(super) fn render(spec: &TableSpec) -> Nftables<'static> {
    let mut batch = Batch::new();
    // To delete a table that is not there is an error; to add one that is there is none.
    batch.add(table());
    batch.delete(table());
    batch.add(table());
    for family in Family::BOTH {
        batch.add(edge_set(family, spec));
        batch.add(vip_set(family, spec));
    }
    for (name, hook) in [("prerouting", NfHook::Prerouting), ("output", NfHook::Output)] {
        batch.add(chain(name, NfChainType::NAT, hook, NAT_PRIORITY));
        steering_rules(spec).into_iter().for_each(|statements| batch.add(rule(name, statements)));
    }
    let refusals = refusal_rules(spec);
    if !refusals.is_empty() {
        for (name, hook) in [("refuse_forward", NfHook::Forward), (REFUSE_OUTPUT, NfHook::Output)] {
            batch.add(chain(name, NfChainType::Filter, hook, FILTER_PRIORITY));
            refusals.iter().for_each(|statements| batch.add(rule(name, statements.clone())));
        }
    }
    batch.add(chain("guard", NfChainType::Filter, NfHook::Input, FILTER_PRIORITY));
    guard_rules(spec).into_iter().for_each(|statements| batch.add(rule("guard", statements)));
    batch.to_nftables()
}

/// One transaction that takes `gone` out of the sets and puts `new` in.
pub(super) fn element_changes(gone: &[SocketAddr], new: &[SocketAddr]) -> Nftables<'static> {
    let mut batch = Batch::new();
    for family in Family::BOTH {
        if let Some(element) = elements(family, gone) {
            batch.delete(element);
        }
        if let Some(element) = elements(family, new) {
            batch.add(element);
        }
    }
    batch.to_nftables()
}

/// Deletes the table.
pub(super) fn removal() -> Nftables<'static> {
    let mut batch = Batch::new();
    batch.delete(table());
    batch.to_nftables()
}

/// What steers, in prerouting for pods and in output for this host.
fn steering_rules(spec: &TableSpec) -> Vec<Vec<Stmt>> {
    let mut rules = Vec::new();
    if spec.intercept.mark != 0 {
        rules.push(vec![has_mark(spec.intercept.mark), Statement::Return(None)]);
    }
    for family in Family::BOTH {
        if let Some(to) = spec.intercept_ip(family) {
            for matching in matches(family) {
                rules.push(followed_by(matching, [counter(), dnat(to, spec.intercept.packet_port())]));
            }
        }
    }
    rules
}

/// Where a family has no intercept address its destinations are refused: nobody may dial them for real.
fn refusal_rules(spec: &TableSpec) -> Vec<Vec<Stmt>> {
    let closed = Family::BOTH.into_iter().filter(|family| spec.intercept_ip(*family).is_none());
    closed.flat_map(matches).map(|matching| followed_by(matching, [counter(), reject()])).collect()
}

/// A port of an edge address, or any port of a VIP.
fn matches(family: Family) -> [Vec<Stmt>; 2] {
    let edges = format!("@{}", edge_set_name(family));
    let vips = format!("@{}", vip_set_name(family));
    [vec![equal(concat(daddr(family), dport()), text(edges))], vec![is_tcp(), equal(daddr(family), text(vips))]]
}

/// The intercept ports are for this host and its pods. Another host's packets come in by the interface that has the node
/// IP; those of pods come in by others, whether they dialled the port or were steered to it.
fn guard_rules(spec: &TableSpec) -> Vec<Vec<Stmt>> {
    let mut rules = vec![vec![comes_in_by("lo"), Statement::Accept(None)]];
    for family in Family::BOTH {
        let allowed: Vec<Expr> =
            spec.guard_allow.iter().filter(|net| Family::of(net.addr()) == family).map(|net| prefix(*net)).collect();
        if !allowed.is_empty() {
            rules.push(vec![equal(saddr(family), anonymous_set(allowed)), Statement::Accept(None)]);
        }
    }
    let ports = spec.intercept.ports.iter().map(|port| Expr::Number((*port).into()));
    let to_intercept_ports = equal(dport(), anonymous_set(ports));
    rules.push(vec![to_intercept_ports, is_address_of_its_interface(), counter(), Statement::Drop(None)]);
    rules
}

fn followed_by(mut statements: Vec<Stmt>, more: [Stmt; 2]) -> Vec<Stmt> {
    statements.extend(more);
    statements
}

fn edge_set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "dst4",
        Family::V6 => "dst6",
    }
}

fn vip_set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "vip4",
        Family::V6 => "vip6",
    }
}

fn address_type(family: Family) -> SetType {
    match family {
        Family::V4 => SetType::Ipv4Addr,
        Family::V6 => SetType::Ipv6Addr,
    }
}

fn table() -> NfListObject<'static> {
    NfListObject::Table(Table { family: FAMILY, name: TABLE.into(), handle: None })
}

fn edge_set(family: Family, spec: &TableSpec) -> NfListObject<'static> {
    let kinds = vec![address_type(family), SetType::InetService];
    let elements = of_family(family, spec.edges.iter().copied());
    set(edge_set_name(family), SetTypeValue::Concatenated(Cow::Owned(kinds)), elements, None)
}

fn vip_set(family: Family, spec: &TableSpec) -> NfListObject<'static> {
    let elements = spec.vip_range(family).map(prefix).into_iter().collect();
    let flags = Some(HashSet::from([SetFlag::Interval]));
    set(vip_set_name(family), SetTypeValue::Single(address_type(family)), elements, flags)
}

fn set(
    name: &'static str,
    set_type: SetTypeValue<'static>,
    elements: Vec<Expr>,
    flags: Option<HashSet<SetFlag>>,
) -> NfListObject<'static> {
    let elem = (!elements.is_empty()).then_some(Cow::Owned(elements));
    let set = Set { family: FAMILY, table: TABLE.into(), name: name.into(), set_type, flags, elem, ..Set::default() };
    NfListObject::Set(Box::new(set))
}

fn elements(family: Family, addresses: &[SocketAddr]) -> Option<NfListObject<'static>> {
    let elem = of_family(family, addresses.iter().copied());
    let name = edge_set_name(family).into();
    let element = || Element { family: FAMILY, table: TABLE.into(), name, elem: elem.clone().into() };
    if elem.is_empty() { None } else { Some(NfListObject::Element(element())) }
}

fn of_family(family: Family, addresses: impl Iterator<Item = SocketAddr>) -> Vec<Expr> {
    addresses.filter(|address| Family::of(address.ip()) == family).map(address_and_port).collect()
}

fn chain(name: &'static str, kind: NfChainType, hook: NfHook, priority: i32) -> NfListObject<'static> {
    NfListObject::Chain(Chain {
        family: FAMILY,
        table: TABLE.into(),
        name: name.into(),
        _type: Some(kind),
        hook: Some(hook),
        prio: Some(priority),
        policy: Some(NfChainPolicy::Accept),
        ..Chain::default()
    })
}

fn rule(chain: &'static str, statements: Vec<Stmt>) -> NfListObject<'static> {
    NfListObject::Rule(Rule {
        family: FAMILY,
        table: TABLE.into(),
        chain: chain.into(),
        expr: statements.into(),
        ..Rule::default()
    })
}

/// The elements of a table's sets, as far as they are ours to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    edges: BTreeSet<SocketAddr>,
    vips: BTreeSet<IpNet>,
    /// What is no address of ours, such as a range that somebody has added.
    foreign: usize,
}

impl Elements {
    /// Those that a transaction of ours leaves.
    pub(super) fn of(spec: &TableSpec) -> Self {
        let vips =
            Family::BOTH.into_iter().filter_map(|family| spec.vip_range(family)).map(|net| net.trunc()).collect();
        Self { edges: spec.edges.clone(), vips, foreign: 0 }
    }

    /// Whether this port of an edge address is in a set.
    pub(crate) fn has_edge(&self, edge: SocketAddr) -> bool {
        self.edges.contains(&edge)
    }

    /// Whether the address is in a range of VIPs.
    pub(crate) fn has_vip(&self, ip: IpAddr) -> bool {
        self.vips.iter().any(|range| range.contains(&ip))
    }

    /// Those of nft's own listing.
    pub(super) fn of_json(json: &serde_json::Value) -> Self {
        let objects = json["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
        let sets = objects.iter().filter_map(|object| object.get("set"));
        let mut found = Self::default();
        for element in sets.filter_map(|set| set["elem"].as_array()).flatten() {
            match (edge_of(element), vips_of(element)) {
                (Some(edge), _) => _ = found.edges.insert(edge),
                (None, Some(vips)) => _ = found.vips.insert(vips),
                (None, None) => found.foreign += 1,
            }
        }
        found
    }
}

/// `{"concat": ["10.0.3.7", 9100]}`.
fn edge_of(element: &serde_json::Value) -> Option<SocketAddr> {
    let [ip, port] = element["concat"].as_array()?.as_slice() else { return None };
    Some(SocketAddr::new(ip.as_str()?.parse().ok()?, port.as_u64()?.try_into().ok()?))
}

/// `{"prefix": {"addr": "198.18.0.0", "len": 15}}`; nft lists a range of one address as that address.
fn vips_of(element: &serde_json::Value) -> Option<IpNet> {
    if let Some(ip) = element.as_str() {
        return ip.parse::<IpAddr>().ok().map(IpNet::from);
    }
    let prefix = element.get("prefix")?;
    IpNet::new(prefix["addr"].as_str()?.parse().ok()?, prefix["len"].as_u64()?.try_into().ok()?).ok()
}

/// What a table is made of: enough to see that somebody has flushed it, and whom it refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) sets: usize,
    pub(crate) chains: usize,
    pub(crate) rules: usize,
    refused_sets: BTreeSet<&'static str>,
}

impl Parts {
    /// The parts that a transaction of ours leaves.
    pub(super) fn of(spec: &TableSpec) -> Result<Self, serde_json::Error> {
        // Elements do not count, and there may be many.
        let rules = TableSpec { edges: BTreeSet::new(), ..spec.clone() };
        serde_json::to_value(render(&rules)).map(|commands| Self::of_json(&commands))
    }

    /// The parts of nft's own listing, or of our commands. Not parsed into the crate's types, which do not know all that nft
    /// may print.
    pub(super) fn of_json(json: &serde_json::Value) -> Self {
        let objects = json["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
        let objects = objects.iter().map(|object| object.get("add").unwrap_or(object));
        let mut parts = Self::default();
        for object in objects {
            parts.sets += usize::from(object.get("set").is_some());
            parts.chains += usize::from(object.get("chain").is_some());
            let Some(rule) = object.get("rule") else { continue };
            parts.rules += 1;
            if rule["chain"] == REFUSE_OUTPUT {
                let text = rule["expr"].to_string();
                let sets = Family::BOTH.map(edge_set_name);
                parts.refused_sets.extend(sets.into_iter().filter(|set| text.contains(&format!("\"@{set}\""))));
            }
        }
        parts
    }

    /// Whether what is in the sets of this address' family is refused, for want of an intercept address.
    pub(crate) fn refuses(&self, ip: IpAddr) -> bool {
        self.refused_sets.contains(edge_set_name(Family::of(ip)))
    }
}

#[cfg(test)]
mod tests;
