//! The checks: each a judgement on the facts, in the order in which one thing rests on another.
//! Pure.

mod cluster;
mod conntrack;
mod firewall;
mod guard;
mod host;
mod marks;
mod proxy;

use super::facts::{Answer, Daemon, Facts};
use super::finding::{Finding, Judged, failure, ok};

/// Names in a sentence; the others are counted.
const NAMED: usize = 5;

/// The name of a check and its judgement; `None`: there is nothing to judge here.
type Check = (&'static str, fn(&Facts) -> Option<Judged>);

const CHECKS: [Check; 36] = [
    ("cgroup2", host::cgroup2),
    ("bpffs", host::bpffs),
    ("conntrack", conntrack::conntrack),
    ("redirector", host::redirector),
    ("mechanism", host::mechanism),
    ("hooks", host::hooks),
    ("neighbours", host::neighbours),
    ("nftables", host::nftables),
    ("firewall", firewall::firewall),
    ("marks", marks::marks),
    ("guard", guard::guard),
    ("route", host::route),
    ("drift", host::drift),
    ("own networks", host::own_networks),
    ("dns", host::dns),
    ("resolver", host::resolver),
    ("names", host::names),
    ("proxy", proxy::proxy),
    ("intercept", proxy::intercept),
    ("reserved ports", host::reserved_ports),
    ("local ports", proxy::local_ports),
    ("dial", proxy::dial),
    ("tunnels", proxy::tunnels),
    ("agents", proxy::agents),
    ("caps", proxy::caps),
    ("limits", proxy::limits),
    ("streams", proxy::streams),
    ("edge label", cluster::edge_label),
    ("cloud label", cluster::cloud_label),
    ("claims", cluster::claims),
    ("addresses", cluster::addresses),
    ("left out", cluster::left_out),
    ("ports", cluster::ports),
    ("certificates", cluster::certificates),
    ("clock", cluster::clock),
    ("rbac", cluster::rbac),
];

/// What all checks find.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (check, judge) in CHECKS {
        if let Some((verdict, found, fix)) = judge(facts) {
            findings.push(Finding {
                check,
                verdict,
                found,
                fix,
            });
        }
    }
    findings
}

fn daemon(daemon: &Answer<Daemon>, name: &str, elsewhere: &str) -> Judged {
    match daemon {
        Err(problem) => failure(
            format!("{name} does not answer: {problem}"),
            format!("start {name} on this host; if it has another --admin-listen: {elsewhere}"),
        ),
        Ok(Daemon { missing, .. }) if missing.is_empty() => ok(format!("{name} runs and is ready")),
        Ok(Daemon { missing, .. }) => failure(
            format!("{name} is not ready: {}", missing.join("; ")),
            format!("its log says more: {name}"),
        ),
    }
}

/// The first few, and how many more.
fn named(names: &[&str]) -> String {
    let shown = names
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
