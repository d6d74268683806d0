//! Renders the whole table, and changes of its elements. Pure.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::SocketAddr;

use nftables::batch::Batch;
use nftables::schema::{
    Chain, Element, FlushObject, NfCmd, NfListObject, Nftables, Rule, Set, SetFlag, SetType,
    SetTypeValue, Table,
};
use nftables::types::{NfChainPolicy, NfChainType, NfHook};

use super::expressions::{Expr, Family, Stmt, address_and_port, prefix};
use super::rules::{
    admission_rules, arrival_rules, departure_rules, forward_refusal_rules, guard_rules,
    refusal_rules, steering_rules,
};
use super::table::{
    ADMITTED, GUARD, Layout, LayoutTable, REFUSE_BRIDGES, STEER, TABLE, TableSpec, edge_set_name,
    vip_set_name,
};

/// Before the usual -100 (`dstnat`) of kube-proxy and others: the first chain that translates a
/// connection wins.
const NAT_PRIORITY: i32 = -110;
/// `filter`.
const FILTER_PRIORITY: i32 = 0;
/// After the filters of others: firewalld's has 10, SELinux' rules have 50.
const LAST_PRIORITY: i32 = 300;

/// What a transaction replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replace {
    /// The rules. The chains stay, so that no packet passes them unseen, and so do elements, which a
    /// packet may be looked up in meanwhile: missing ones are added. Fails if a chain or set is of
    /// another kind, and leaves further ones there, and further elements.
    Rules,
    /// The tables, whatever their state. For a moment both chains of a hook are there, and Linux asks
    /// the new one first: a packet that comes before the transaction ends at the one, and after it
    /// at the other, finds no rule at all.
    Tables,
}

/// One transaction that makes the tables as `spec` has them.
pub(super) fn render(spec: &TableSpec, layout: Layout, replace: Replace) -> Nftables<'static> {
    let mut batch = Batch::new();
    for table in layout.tables() {
        Rendering {
            spec,
            table,
            replace,
            batch: &mut batch,
        }
        .render();
    }
    batch.to_nftables()
}

/// One transaction that removes `gone` from the sets and adds `new`.
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
pub(super) fn removal(table: &LayoutTable) -> Nftables<'static> {
    let mut batch = Batch::new();
    batch.delete(NfListObject::Table(declaration(table)));
    batch.to_nftables()
}

/// Adds one table to a transaction.
struct Rendering<'a> {
    spec: &'a TableSpec,
    table: &'a LayoutTable,
    replace: Replace,
    batch: &'a mut Batch<'static>,
}

impl Rendering<'_> {
    fn render(mut self) {
        self.clear();
        for family in self.table.families {
            self.batch.add(edge_set(self.table, *family, self.spec));
            self.batch.add(vip_set(self.table, *family, self.spec));
        }
        self.chain(STEER, None, steering_rules(self.spec, self.table.families));
        self.chain(
            "prerouting",
            nat(NfHook::Prerouting),
            arrival_rules(self.spec, self.table.families),
        );
        self.chain("output", nat(NfHook::Output), departure_rules(self.spec));
        let refusals = refusal_rules(self.spec, self.table.families);
        self.chain(REFUSE_BRIDGES, None, refusals.clone());
        self.chain(
            "refuse_forward",
            filter(NfHook::Forward),
            forward_refusal_rules(self.spec, self.table.families),
        );
        self.chain("refuse_output", filter(NfHook::Output), refusals);
        self.chain(
            GUARD,
            filter(NfHook::Input),
            guard_rules(self.spec, self.table.families),
        );
        let last = Some((NfChainType::Filter, NfHook::Input, LAST_PRIORITY));
        self.chain(ADMITTED, last, admission_rules(self.spec));
    }

    fn clear(&mut self) {
        // Deleting or flushing a missing table is an error; adding an existing one is not.
        self.batch.add(NfListObject::Table(declaration(self.table)));
        match self.replace {
            Replace::Rules => {
                let table = FlushObject::Table(declaration(self.table));
                self.batch.add_cmd(NfCmd::Flush(table));
            }
            Replace::Tables => {
                self.batch
                    .delete(NfListObject::Table(declaration(self.table)));
                self.batch.add(NfListObject::Table(declaration(self.table)));
            }
        }
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

/// What makes a chain one that translates addresses at this hook.
fn nat(hook: NfHook) -> Option<(NfChainType, NfHook, i32)> {
    Some((NfChainType::NAT, hook, NAT_PRIORITY))
}

/// What makes a chain one that refuses packets at this hook.
fn filter(hook: NfHook) -> Option<(NfChainType, NfHook, i32)> {
    Some((NfChainType::Filter, hook, FILTER_PRIORITY))
}

fn address_type(family: Family) -> SetType {
    match family {
        Family::V4 => SetType::Ipv4Addr,
        Family::V6 => SetType::Ipv6Addr,
    }
}

fn declaration(table: &LayoutTable) -> Table<'static> {
    Table {
        family: table.family,
        name: TABLE.into(),
        handle: None,
    }
}

fn edge_set(table: &LayoutTable, family: Family, spec: &TableSpec) -> NfListObject<'static> {
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

fn vip_set(table: &LayoutTable, family: Family, spec: &TableSpec) -> NfListObject<'static> {
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
    table: &LayoutTable,
    name: &'static str,
    set_type: SetTypeValue<'static>,
    elements: Vec<Expr>,
    flags: Option<HashSet<SetFlag>>,
) -> NfListObject<'static> {
    let elem = if elements.is_empty() {
        None
    } else {
        Some(Cow::Owned(elements))
    };
    let family = table.family;
    let table = TABLE.into();
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
    table: &LayoutTable,
    family: Family,
    addresses: &[SocketAddr],
) -> Option<NfListObject<'static>> {
    let elem = of_family(family, addresses.iter().copied());
    if elem.is_empty() {
        return None;
    }
    Some(NfListObject::Element(Element {
        family: table.family,
        table: TABLE.into(),
        name: edge_set_name(family).into(),
        elem: elem.into(),
    }))
}

fn of_family(family: Family, addresses: impl Iterator<Item = SocketAddr>) -> Vec<Expr> {
    addresses
        .filter(|address| Family::of(address.ip()) == family)
        .map(address_and_port)
        .collect()
}

fn chain(
    table: &LayoutTable,
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

fn rule(table: &LayoutTable, chain: &'static str, statements: Vec<Stmt>) -> NfListObject<'static> {
    NfListObject::Rule(Rule {
        family: table.family,
        table: TABLE.into(),
        chain: chain.into(),
        expr: statements.into(),
        ..Rule::default()
    })
}

#[cfg(test)]
mod tests;
