//! The whole table as a pure function of what is steered, and the changes of its elements.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use nftables::batch::Batch;
use nftables::schema::{
    Chain, Element, NfListObject, Nftables, Rule, Set, SetFlag, SetType, SetTypeValue, Table,
};
use nftables::stmt::Statement;
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook};

use super::expressions::{
    Expr, Family, Stmt, address_and_port, anonymous_set, begins_a_connection, comes_in_by,
    comes_in_by_one_of, concat, counter, daddr, differ, dnat, dport, equal, has_mark,
    is_address_of_its_interface, is_tcp, jump, prefix, reject, saddr, text,
};
use crate::config::Intercept;
use crate::directory::Ranges;
use crate::plan::{Destination, Plan};

/// The table's name.
pub(super) const TABLE: &str = "culvert";
/// Before kube-proxy's and everybody's -100 (`dstnat`): the first chain that translates a
/// connection wins.
const NAT_PRIORITY: i32 = -110;
/// The rules that steer, which other chains jump to.
const STEER: &str = "steer";
/// `filter`.
const FILTER_PRIORITY: i32 = 0;

/// In which tables the rules are.
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
pub(super) struct TableOf {
    pub(super) family: NfFamily,
    pub(super) name: &'static str,
    families: &'static [Family],
}

/// Everything that the table depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableSpec {
    intercept: Intercept,
    guard: Guard,
    ranges: Ranges,
    pub(super) edges: BTreeSet<SocketAddr>,
}

/// Whose packets are steered and may reach the intercept ports, besides this host's own: those of
/// its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Sources that may, wherever they come in.
    pub(crate) allow: Vec<IpNet>,
    /// Where pods are; a family without a range has them everywhere.
    pub(crate) pods: Vec<IpNet>,
    /// Interfaces by which other hosts' packets come in.
    pub(crate) uplinks: BTreeSet<String>,
}

impl Layout {
    pub(super) const ALL: [Self; 2] = [Self::Joint, Self::Split];

    /// The tables, in order.
    pub(super) fn tables(self) -> &'static [TableOf] {
        const JOINT: [TableOf; 1] = [TableOf {
            family: NfFamily::INet,
            name: "inet",
            families: &Family::BOTH,
        }];
        const SPLIT: [TableOf; 2] = [
            TableOf {
                family: NfFamily::IP,
                name: "ip",
                families: &[Family::V4],
            },
            TableOf {
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
        let edge = |destination: &Destination| match destination {
            Destination::Edge(address) => Some(*address),
            Destination::Vip(_) => None,
        };
        let edges = plan
            .destinations
            .keys()
            .filter_map(edge)
            .chain(plan.beyond.iter().copied())
            .collect();
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

/// One transaction that replaces the tables, whatever they were before.
pub(super) fn render(spec: &TableSpec, layout: Layout) -> Nftables<'static> {
    let mut batch = Batch::new();
    for table in layout.tables() {
        Rendering {
            spec,
            table,
            batch: &mut batch,
        }
        .render();
    }
    batch.to_nftables()
}

/// One transaction that takes `gone` out of the sets and puts `new` in.
pub(super) fn element_changes(
    gone: &[SocketAddr],
    new: &[SocketAddr],
    layout: Layout,
) -> Nftables<'static> {
    let mut batch = Batch::new();
    for table in layout.tables() {
        for family in table.families {
            if let Some(element) = elements(table, *family, gone) {
                batch.delete(element);
            }
            if let Some(element) = elements(table, *family, new) {
                batch.add(element);
            }
        }
    }
    batch.to_nftables()
}

/// Deletes a table.
pub(super) fn removal(table: &TableOf) -> Nftables<'static> {
    let mut batch = Batch::new();
    batch.delete(declaration(table));
    batch.to_nftables()
}

/// One table on its way into a transaction.
struct Rendering<'a> {
    spec: &'a TableSpec,
    table: &'a TableOf,
    batch: &'a mut Batch<'static>,
}

impl Rendering<'_> {
    fn render(mut self) {
        // To delete a table that is not there is an error; to add one that is there is none.
        self.batch.add(declaration(self.table));
        self.batch.delete(declaration(self.table));
        self.batch.add(declaration(self.table));
        for family in self.table.families {
            self.batch.add(edge_set(self.table, *family, self.spec));
            self.batch.add(vip_set(self.table, *family, self.spec));
        }
        self.chain(STEER, None, steering_rules(self.spec, self.table.families));
        let nat = |hook| Some((NfChainType::NAT, hook, NAT_PRIORITY));
        let filter = |hook| Some((NfChainType::Filter, hook, FILTER_PRIORITY));
        self.chain(
            "prerouting",
            nat(NfHook::Prerouting),
            arrival_rules(self.spec, self.table.families),
        );
        self.chain("output", nat(NfHook::Output), departure_rules(self.spec));
        let refusals = refusal_rules(self.spec, self.table.families);
        self.chain("refuse_forward", filter(NfHook::Forward), refusals.clone());
        self.chain("refuse_output", filter(NfHook::Output), refusals);
        self.chain(
            "guard",
            filter(NfHook::Input),
            guard_rules(self.spec, self.table.families),
        );
    }

    fn chain(
        &mut self,
        name: &'static str,
        base: Option<(NfChainType, NfHook, i32)>,
        rules: Vec<Vec<Stmt>>,
    ) {
        self.batch.add(chain(self.table, name, base));
        rules
            .into_iter()
            .for_each(|statements| self.batch.add(rule(self.table, name, statements)));
    }
}

/// What steers. A family without an intercept address has none of it: its connections are refused.
fn steering_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let port = spec.intercept.packet_port();
    let with_address = families
        .iter()
        .filter_map(|family| Some((*family, spec.intercept_ip(*family)?)));
    let steered = |(family, to): (Family, IpAddr)| {
        let matches = [vec![is_edge(family)], vec![is_tcp(), is_vip(family)]];
        matches.map(|matching| followed_by(matching, [counter(), dnat(to, port)]))
    };
    with_address.flat_map(steered).collect()
}

/// Of what comes in, pods' connections are steered. Those of other hosts are not: they would be let
/// in by it.
fn arrival_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let mut rules = exemption(spec);
    rules.extend(allowed(spec, families).map(|source| vec![source, jump(STEER)]));
    rules.extend(strangers(spec, families).map(|stranger| vec![stranger, Statement::Return(None)]));
    rules.push(vec![jump(STEER)]);
    rules
}

/// This host's own connections.
fn departure_rules(spec: &TableSpec) -> Vec<Vec<Stmt>> {
    let mut rules = exemption(spec);
    rules.push(vec![jump(STEER)]);
    rules
}

/// Whatever was steered has this host's address by now. What still has a VIP is no connection that
/// anybody can make; what begins a connection to an edge address came past the chains that steer:
/// another table had already translated it, or its family has no intercept address.
fn refusal_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let refused =
        |family: &Family, matching: Vec<Stmt>| followed_by(matching, [counter(), reject(*family)]);
    let vips = families
        .iter()
        .map(|family| refused(family, vec![is_vip(*family)]));
    let edges = families
        .iter()
        .map(|family| refused(family, vec![begins_a_connection(), is_edge(*family)]));
    vips.chain(exemption(spec)).chain(edges).collect()
}

/// The intercept ports are for this host and its pods. A VIP is no address of this host's, though
/// its route may make it one.
fn guard_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let vips = families
        .iter()
        .map(|family| followed_by(vec![is_vip(*family)], [counter(), reject(*family)]));
    let mut rules: Vec<Vec<Stmt>> = vips.collect();
    rules.push(vec![comes_in_by("lo"), Statement::Accept(None)]);
    rules.extend(allowed(spec, families).map(|source| vec![source, Statement::Accept(None)]));
    let ports = spec
        .intercept
        .ports
        .iter()
        .map(|port| Expr::Number((*port).into()));
    let to_intercept_ports = equal(dport(), anonymous_set(ports));
    let others = strangers(spec, families).chain([is_address_of_its_interface()]);
    rules.extend(others.map(|other| {
        followed_by(
            vec![to_intercept_ports.clone(), other],
            [counter(), Statement::Drop(None)],
        )
    }));
    rules
}

/// Marked packets are left alone.
fn exemption(spec: &TableSpec) -> Vec<Vec<Stmt>> {
    let mark = spec.intercept.mark;
    if mark == 0 {
        Vec::new()
    } else {
        vec![vec![has_mark(mark), Statement::Return(None)]]
    }
}

/// The sources that the operator allows.
fn allowed(spec: &TableSpec, families: &[Family]) -> impl Iterator<Item = Stmt> {
    families
        .iter()
        .filter_map(|family| Some(equal(saddr(*family), ranges(&spec.guard.allow, *family)?)))
}

/// What tells the packets of other hosts from those of pods.
fn strangers(spec: &TableSpec, families: &[Family]) -> impl Iterator<Item = Stmt> {
    let uplinks = &spec.guard.uplinks;
    let from_outside = (!uplinks.is_empty()).then(|| comes_in_by_one_of(uplinks.iter().cloned()));
    let elsewhere = families
        .iter()
        .filter_map(|family| Some(differ(saddr(*family), ranges(&spec.guard.pods, *family)?)));
    from_outside.into_iter().chain(elsewhere)
}

fn ranges(nets: &[IpNet], family: Family) -> Option<Expr> {
    let of_family: Vec<Expr> = nets
        .iter()
        .filter(|net| Family::of(net.addr()) == family)
        .map(|net| prefix(net.trunc()))
        .collect();
    (!of_family.is_empty()).then(|| anonymous_set(of_family))
}

/// A port of an edge address.
fn is_edge(family: Family) -> Stmt {
    equal(
        concat(daddr(family), dport()),
        text(format!("@{}", edge_set_name(family))),
    )
}

fn is_vip(family: Family) -> Stmt {
    equal(daddr(family), text(format!("@{}", vip_set_name(family))))
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

fn declaration(table: &TableOf) -> NfListObject<'static> {
    NfListObject::Table(Table {
        family: table.family,
        name: TABLE.into(),
        handle: None,
    })
}

fn edge_set(table: &TableOf, family: Family, spec: &TableSpec) -> NfListObject<'static> {
    let kinds = vec![address_type(family), SetType::InetService];
    let elements = of_family(family, spec.edges.iter().copied());
    set(
        table,
        edge_set_name(family),
        SetTypeValue::Concatenated(Cow::Owned(kinds)),
        elements,
        None,
    )
}

fn vip_set(table: &TableOf, family: Family, spec: &TableSpec) -> NfListObject<'static> {
    let elements = spec.vip_range(family).map(prefix).into_iter().collect();
    let flags = Some(HashSet::from([SetFlag::Interval]));
    set(
        table,
        vip_set_name(family),
        SetTypeValue::Single(address_type(family)),
        elements,
        flags,
    )
}

fn set(
    table: &TableOf,
    name: &'static str,
    set_type: SetTypeValue<'static>,
    elements: Vec<Expr>,
    flags: Option<HashSet<SetFlag>>,
) -> NfListObject<'static> {
    let elem = (!elements.is_empty()).then_some(Cow::Owned(elements));
    let (family, table) = (table.family, TABLE.into());
    let set = Set {
        family,
        table,
        name: name.into(),
        set_type,
        flags,
        elem,
        ..Set::default()
    };
    NfListObject::Set(Box::new(set))
}

fn elements(
    table: &TableOf,
    family: Family,
    addresses: &[SocketAddr],
) -> Option<NfListObject<'static>> {
    let elem = of_family(family, addresses.iter().copied());
    let name = edge_set_name(family).into();
    let element = || Element {
        family: table.family,
        table: TABLE.into(),
        name,
        elem: elem.clone().into(),
    };
    if elem.is_empty() {
        None
    } else {
        Some(NfListObject::Element(element()))
    }
}

fn of_family(family: Family, addresses: impl Iterator<Item = SocketAddr>) -> Vec<Expr> {
    addresses
        .filter(|address| Family::of(address.ip()) == family)
        .map(address_and_port)
        .collect()
}

fn chain(
    table: &TableOf,
    name: &'static str,
    base: Option<(NfChainType, NfHook, i32)>,
) -> NfListObject<'static> {
    NfListObject::Chain(Chain {
        family: table.family,
        table: TABLE.into(),
        name: name.into(),
        _type: base.map(|(kind, _, _)| kind),
        hook: base.map(|(_, hook, _)| hook),
        prio: base.map(|(_, _, priority)| priority),
        policy: base.map(|_| NfChainPolicy::Accept),
        ..Chain::default()
    })
}

fn rule(table: &TableOf, chain: &'static str, statements: Vec<Stmt>) -> NfListObject<'static> {
    NfListObject::Rule(Rule {
        family: table.family,
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
        let vips = Family::BOTH
            .into_iter()
            .filter_map(|family| spec.vip_range(family))
            .map(|net| net.trunc())
            .collect();
        Self {
            edges: spec.edges.clone(),
            vips,
            foreign: 0,
        }
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
        let objects = json["nftables"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
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
    let [ip, port] = element["concat"].as_array()?.as_slice() else {
        return None;
    };
    Some(SocketAddr::new(
        ip.as_str()?.parse().ok()?,
        port.as_u64()?.try_into().ok()?,
    ))
}

/// `{"prefix": {"addr": "198.18.0.0", "len": 15}}`; nft lists a range of one address as that
/// address.
fn vips_of(element: &serde_json::Value) -> Option<IpNet> {
    if let Some(ip) = element.as_str() {
        return ip.parse::<IpAddr>().ok().map(IpNet::from);
    }
    let prefix = element.get("prefix")?;
    IpNet::new(
        prefix["addr"].as_str()?.parse().ok()?,
        prefix["len"].as_u64()?.try_into().ok()?,
    )
    .ok()
}

/// What a table is made of: enough to say that it is there, and whom it refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) sets: usize,
    pub(crate) chains: usize,
    pub(crate) rules: usize,
    steered_sets: BTreeSet<&'static str>,
}

impl Parts {
    /// The parts that a transaction of ours leaves.
    pub(super) fn of(spec: &TableSpec, layout: Layout) -> Result<Self, serde_json::Error> {
        // Elements do not count, and there may be many.
        let rules = TableSpec {
            edges: BTreeSet::new(),
            ..spec.clone()
        };
        serde_json::to_value(render(&rules, layout)).map(|commands| Self::of_json(&commands))
    }

    /// The parts of nft's own listing, or of our commands. Not parsed into the crate's types, which
    /// do not know all that nft may print.
    pub(super) fn of_json(json: &serde_json::Value) -> Self {
        let objects = json["nftables"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let objects = objects
            .iter()
            .map(|object| object.get("add").unwrap_or(object));
        let mut parts = Self::default();
        for object in objects {
            parts.sets += usize::from(object.get("set").is_some());
            parts.chains += usize::from(object.get("chain").is_some());
            let Some(rule) = object.get("rule") else {
                continue;
            };
            parts.rules += 1;
            if rule["chain"] == STEER {
                let text = rule["expr"].to_string();
                let sets = Family::BOTH.map(edge_set_name);
                parts.steered_sets.extend(
                    sets.into_iter()
                        .filter(|set| text.contains(&format!("\"@{set}\""))),
                );
            }
        }
        parts
    }

    /// Whether what is in the sets of this address' family is refused, for want of an intercept
    /// address.
    pub(crate) fn refuses(&self, ip: IpAddr) -> bool {
        !self.steered_sets.contains(edge_set_name(Family::of(ip)))
    }
}

/// A listing without what changes by itself: counts, elements, and the order of those in a rule.
/// Handles stay: a rule that was replaced has another one.
pub(super) fn fixed(mut listing: serde_json::Value) -> serde_json::Value {
    let objects = listing["nftables"].take();
    let objects = objects
        .as_array()
        .into_iter()
        .flatten()
        .filter(|object| object.get("metainfo").is_none());
    serde_json::Value::Array(objects.cloned().map(without_counts).collect())
}

fn without_counts(mut value: serde_json::Value) -> serde_json::Value {
    if let Some(serde_json::Value::Object(set)) = value.get_mut("set") {
        set.remove("elem");
    }
    strip(&mut value);
    value
}

fn strip(value: &mut serde_json::Value) {
    if let serde_json::Value::Object(fields) = value {
        fields.remove("counter");
        if let Some(serde_json::Value::Array(elements)) = fields.get_mut("set") {
            elements.sort_by_key(ToString::to_string);
        }
        fields.values_mut().for_each(strip);
    } else if let serde_json::Value::Array(items) = value {
        items.iter_mut().for_each(strip);
    }
}

#[cfg(test)]
mod tests;
