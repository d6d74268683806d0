//! The rules of each chain.

use ipnet::IpNet;
use nftables::stmt::Statement;

use super::expressions::{
    Expr, Family, Stmt, anonymous_set, begins_a_connection, comes_in_by, comes_in_by_one_of,
    concat, counter, daddr, differ, dnat, dport, equal, has_mark, is_address_of_its_interface,
    is_tcp, is_translated, jump, prefix, reject, saddr, text,
};
use super::table::{REFUSE_BRIDGES, STEER, TableSpec, edge_set_name, vip_set_name};

/// The rules that steer. A family without an intercept address has none: its connections are
/// refused.
pub(super) fn steering_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let port = spec.intercept.packet_port();
    let mut rules = Vec::new();
    for family in families {
        let Some(to) = spec.intercept_ip(*family) else {
            continue;
        };
        for matching in [vec![is_edge(*family)], vec![is_tcp(), is_vip(*family)]] {
            rules.push(followed_by(matching, [counter(), dnat(to, port)]));
        }
    }
    rules
}

/// Incoming connections: pods' are steered. Other hosts' are not, because steering would let them
/// reach the intercept ports.
pub(super) fn arrival_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let mut rules = exemption(spec);
    for source in allowed(spec, families) {
        rules.push(vec![source, jump(STEER)]);
    }
    for stranger in strangers(spec, families) {
        rules.push(vec![stranger, Statement::Return(None)]);
    }
    rules.push(vec![jump(STEER)]);
    rules
}

/// Rules for this host's own connections.
pub(super) fn departure_rules(spec: &TableSpec) -> Vec<Vec<Stmt>> {
    let mut rules = exemption(spec);
    rules.push(vec![jump(STEER)]);
    rules
}

/// A steered packet has this host's address by now. A packet that still has a VIP is refused; so is
/// the first packet of a connection to an edge address, which passed the steering chains because
/// another table translated it, or because its family has no intercept address.
pub(super) fn refusal_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let mut rules = Vec::new();
    for family in families {
        rules.push(refusal(vec![is_vip(*family)], *family));
    }
    rules.extend(exemption(spec));
    for family in families {
        let edge = vec![begins_a_connection(), is_edge(*family)];
        rules.push(refusal(edge, *family));
    }
    rules
}

/// A rule that refuses what it matches.
fn refusal(matching: Vec<Stmt>, family: Family) -> Vec<Stmt> {
    followed_by(matching, [counter(), reject(family)])
}

/// What is forwarded is refused alike. What outer bridges forward has rules of its own, which count
/// it: other hosts are refused on purpose, and containers of this host perhaps by mistake.
pub(super) fn forward_refusal_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let mut rules = Vec::new();
    if !spec.guard.outer_bridges.is_empty() {
        let bridges = spec.guard.outer_bridges.iter().cloned();
        rules.push(vec![comes_in_by_one_of(bridges), jump(REFUSE_BRIDGES)]);
    }
    rules.extend(refusal_rules(spec, families));
    rules
}

/// Only this host and its pods may reach the intercept ports. A VIP is not this host's address,
/// although its route may make it one.
pub(super) fn guard_rules(spec: &TableSpec, families: &[Family]) -> Vec<Vec<Stmt>> {
    let mut rules = Vec::new();
    for family in families {
        rules.push(refusal(vec![is_vip(*family)], *family));
    }
    rules.push(vec![comes_in_by("lo"), Statement::Accept(None)]);
    for source in allowed(spec, families) {
        rules.push(vec![source, Statement::Accept(None)]);
    }
    let ports = spec
        .intercept
        .ports
        .iter()
        .map(|port| Expr::Number((*port).into()));
    let to_intercept_ports = equal(dport(), anonymous_set(ports));
    let mut others = strangers(spec, families);
    others.push(is_address_of_its_interface());
    for other in others {
        rules.push(followed_by(
            vec![to_intercept_ports.clone(), other],
            [counter(), Statement::Drop(None)],
        ));
    }
    rules
}

/// Counts the first packets of steered connections that no filter of others has stopped.
pub(super) fn admission_rules(spec: &TableSpec) -> Vec<Vec<Stmt>> {
    let port = Expr::Number(spec.intercept.packet_port().into());
    vec![vec![
        begins_a_connection(),
        equal(dport(), port),
        is_translated(),
        counter(),
    ]]
}

/// Rules that leave marked packets alone.
fn exemption(spec: &TableSpec) -> Vec<Vec<Stmt>> {
    let mark = spec.intercept.mark;
    if mark == 0 {
        Vec::new()
    } else {
        vec![vec![has_mark(mark), Statement::Return(None)]]
    }
}

/// Matches the sources that the operator allows.
fn allowed(spec: &TableSpec, families: &[Family]) -> Vec<Stmt> {
    let mut statements = Vec::new();
    for family in families {
        if let Some(sources) = ranges(&spec.guard.allow, *family) {
            statements.push(equal(saddr(*family), sources));
        }
    }
    statements
}

/// Matches packets of other hosts, as opposed to pods'.
fn strangers(spec: &TableSpec, families: &[Family]) -> Vec<Stmt> {
    let mut statements = Vec::new();
    let uplinks = &spec.guard.uplinks;
    if !uplinks.is_empty() {
        statements.push(comes_in_by_one_of(uplinks.iter().cloned()));
    }
    for family in families {
        if let Some(pods) = ranges(&spec.guard.pods, *family) {
            statements.push(differ(saddr(*family), pods));
        }
    }
    statements
}

fn ranges(nets: &[IpNet], family: Family) -> Option<Expr> {
    let of_family: Vec<Expr> = nets
        .iter()
        .filter(|net| Family::of(net.addr()) == family)
        .map(|net| prefix(net.trunc()))
        .collect();
    if of_family.is_empty() {
        None
    } else {
        Some(anonymous_set(of_family))
    }
}

/// Matches a steered port of an edge address.
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
