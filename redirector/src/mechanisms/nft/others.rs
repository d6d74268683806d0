//! Other tables' chains that harm steered connections: those that drop packets to this host, as
//! pods' steered connections are, those that drop what some users or cgroups send, and those that
//! hide connections in a zone of connection tracking.

use std::collections::BTreeSet;

use culvert_api::ports::INTERCEPT_PORTS;
use nftables::helper;
use serde_json::Value;

use super::{NFT, NftError, timed};

/// The tables of iptables-legacy in this network namespace, each with its family.
const LEGACY_TABLES: [(&str, &str); 2] = [
    ("/proc/self/net/ip_tables_names", "ip"),
    ("/proc/self/net/ip6_tables_names", "ip6"),
];

/// The chains of other tables, such as `ip filter INPUT`, that drop or reject by policy or in their
/// last rule and have no rule for the intercept ports. Rules of iptables-legacy are not read.
pub(crate) async fn dropping_chains() -> Result<Vec<String>, NftError> {
    let chains = listed(&["list", "chains"]).await?;
    let mut dropping = legacy_filters();
    for chain in input_chains(&chains) {
        let rules = listed(&["list", "table", &chain.family, &chain.table]).await?;
        // A rule that accepts the intercept ports names the first one.
        let names_ports = rules.to_string().contains(&INTERCEPT_PORTS[0].to_string());
        if !names_ports && (chain.drops_by_policy || ends_in_a_refusal(&rules, &chain.name)) {
            let Chain {
                family,
                table,
                name,
                ..
            } = chain;
            dropping.push(format!("{family} {table} {name}"));
        }
    }
    Ok(dropping)
}

/// Whether the last rule of a chain refuses whatever comes to it, as iptables-services and firewalld
/// have it.
fn ends_in_a_refusal(listing: &Value, chain: &str) -> bool {
    let rules = objects(listing, "rule").filter(|rule| rule["chain"] == chain);
    let Some(last) = rules.last() else {
        return false;
    };
    let statements = last["expr"].as_array().map(Vec::as_slice);
    let statements = statements.unwrap_or_default();
    statements.iter().any(is_final) && !statements.iter().any(is_match)
}

fn is_final(statement: &Value) -> bool {
    let xt = &statement["xt"];
    statement.get("drop").is_some()
        || statement.get("reject").is_some()
        || xt["type"] == "target" && xt["name"] == "REJECT"
}

fn is_match(statement: &Value) -> bool {
    statement.get("match").is_some() || statement["xt"]["type"] == "match"
}

/// The filters of iptables-legacy, which nft does not list. Whether they drop, only packets show.
fn legacy_filters() -> Vec<String> {
    let mut filters = Vec::new();
    for (file, family) in LEGACY_TABLES {
        let tables = std::fs::read_to_string(file).unwrap_or_default();
        if tables.lines().any(|table| table == "filter") {
            filters.push(format!("{family} filter of iptables-legacy"));
        }
    }
    filters
}

/// The chains of other tables, such as `inet vpc pre`, that set the zone of connection tracking. The
/// proxy finds the destination of a connection in the default zone only (`SO_ORIGINAL_DST`). Rules
/// of `iptables -j CT --zone` are not found: nft does not show their arguments.
pub(crate) async fn zoning_chains() -> Result<Vec<String>, NftError> {
    let chains = listed(&["list", "chains"]).await?;
    let mut zoning = Vec::new();
    for (family, table) in tables_before_conntrack(&chains) {
        let rules = listed(&["list", "table", &family, &table]).await?;
        zoning.extend(chains_that_set_zones(&rules));
    }
    Ok(zoning)
}

/// The chains of other tables, such as `inet egress out`, with rules that drop or reject what this
/// host sends by the user, group or cgroup of the sender. To them a connection to an edge node is one
/// to this host itself. Rules that look at other ports than the intercept ports, or at another
/// protocol than TCP, are left out, and so are those of `iptables-legacy`, which nft does not show.
pub(crate) async fn owner_chains() -> Result<Vec<String>, NftError> {
    let chains = listed(&["list", "chains"]).await?;
    let mut tables = BTreeSet::new();
    for chain in objects(&chains, "chain") {
        if chain["hook"] == "output" && chain["table"] != super::table::TABLE {
            tables.insert((text(&chain["family"]), text(&chain["table"])));
        }
    }
    let mut dropping = BTreeSet::new();
    for (family, table) in tables {
        let rules = listed(&["list", "table", &family, &table]).await?;
        dropping.extend(chains_by_owner(&rules));
    }
    Ok(dropping.into_iter().collect())
}

fn chains_by_owner(listing: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rule in objects(listing, "rule") {
        let statements = rule["expr"].as_array().map(Vec::as_slice);
        let statements = statements.unwrap_or_default();
        if statements.iter().any(is_of_an_owner)
            && statements.iter().any(is_refusal)
            && !statements.iter().any(spares_steered_connections)
        {
            let [family, table, chain] = ["family", "table", "chain"].map(|part| text(&rule[part]));
            found.insert(format!("{family} {table} {chain}"));
        }
    }
    found
}

/// A match of nftables, or one of iptables as nft lists it.
fn is_of_an_owner(statement: &Value) -> bool {
    let left = &statement["match"]["left"];
    let is_of_nft = ["skuid", "skgid", "cgroup"]
        .iter()
        .any(|key| left["meta"]["key"] == *key)
        || left["socket"]["key"] == "cgroupv2";
    let xt = &statement["xt"];
    is_of_nft || xt["type"] == "match" && ["owner", "cgroup"].iter().any(|name| xt["name"] == *name)
}

/// A verdict; a jump may lead to one.
fn is_refusal(statement: &Value) -> bool {
    let is_of_nft = ["drop", "reject", "jump", "goto"]
        .iter()
        .any(|verdict| statement.get(verdict).is_some());
    let xt = &statement["xt"];
    is_of_nft || xt["type"] == "target" && xt["name"] == "REJECT"
}

/// A match that a steered connection does not have.
fn spares_steered_connections(statement: &Value) -> bool {
    let matched = &statement["match"];
    if matched["op"] != "==" {
        return false;
    }
    let left = &matched["left"];
    let right = &matched["right"];
    let payload = &left["payload"];
    if payload["field"] == "dport" {
        return payload["protocol"] == "udp"
            || !INTERCEPT_PORTS.iter().any(|port| has(right, *port));
    }
    let protocol = [&left["meta"]["key"], &payload["field"]].iter().any(|key| {
        ["l4proto", "protocol", "nexthdr"]
            .iter()
            .any(|name| *key == name)
    });
    protocol && !right.to_string().contains("tcp")
}

/// Whether a port is one of these: a number, a range, or a set of them. Named sets may have it.
fn has(ports: &Value, port: u16) -> bool {
    match ports {
        Value::Number(number) => number.as_u64() == Some(port.into()),
        Value::Object(object) => match (object.get("range"), object.get("set")) {
            (Some(range), _) => {
                let first = range[0].as_u64().unwrap_or_default();
                let last = range[1].as_u64().unwrap_or_default();
                (first..=last).contains(&port.into())
            }
            (None, Some(set)) => {
                let mut elements = set.as_array().into_iter().flatten();
                elements.any(|element| has(element, port))
            }
            (None, None) => true,
        },
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) => true,
    }
}

/// The tables with a base chain that runs before connection tracking, which has the priority -200.
/// Others cannot choose its zone.
fn tables_before_conntrack(listing: &Value) -> BTreeSet<(String, String)> {
    let mut tables = BTreeSet::new();
    for chain in objects(listing, "chain") {
        let is_before = chain["prio"]
            .as_i64()
            .is_some_and(|priority| priority < -200);
        if is_before && chain["table"] != super::table::TABLE {
            tables.insert((text(&chain["family"]), text(&chain["table"])));
        }
    }
    tables
}

fn chains_that_set_zones(listing: &Value) -> BTreeSet<String> {
    let mut zoning = BTreeSet::new();
    for rule in objects(listing, "rule") {
        let mut statements = rule["expr"].as_array().into_iter().flatten();
        if statements.any(|statement| statement["mangle"]["key"]["ct"]["key"] == "zone") {
            let [family, table, chain] = ["family", "table", "chain"].map(|part| text(&rule[part]));
            zoning.insert(format!("{family} {table} {chain}"));
        }
    }
    zoning
}

/// The objects of one kind in what nft lists.
pub(super) fn objects<'a>(listing: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = listing["nftables"].as_array().into_iter().flatten();
    all.map(move |object| &object[kind])
        .filter(|object| !object.is_null())
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(super) async fn listed(args: &[&str]) -> Result<Value, NftError> {
    let text = timed(helper::get_current_ruleset_raw_async(NFT, args.to_vec())).await?;
    serde_json::from_str(&text).map_err(NftError::Output)
}

#[derive(Debug, PartialEq, Eq)]
struct Chain {
    family: String,
    table: String,
    name: String,
    drops_by_policy: bool,
}

/// Base chains of filters of others at the input hook.
fn input_chains(listing: &Value) -> Vec<Chain> {
    let mut filters = Vec::new();
    for chain in objects(listing, "chain") {
        let is_foreign = chain["table"] != super::table::TABLE;
        if chain["hook"] == "input" && is_foreign && chain["type"] == "filter" {
            filters.push(Chain {
                drops_by_policy: chain["policy"] == "drop",
                family: text(&chain["family"]),
                table: text(&chain["table"]),
                name: text(&chain["name"]),
            });
        }
    }
    filters
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn filters_of_others_are_found_with_what_their_policy_does() {
        let chain = |family: &str, table: &str, name: &str, hook: &str, policy: &str| json!({"chain": {"family": family, "table": table, "name": name, "type": "filter", "hook": hook, "prio": 0, "policy": policy}});
        let listing = json!({"nftables": [
            {"metainfo": {"version": "1.0.6"}},
            {"chain": {"family": "ip", "table": "filter", "name": "KUBE-FIREWALL", "handle": 3}},
            chain("ip", "filter", "INPUT", "input", "drop"),
            chain("ip", "filter", "FORWARD", "forward", "drop"),
            chain("ip6", "filter", "INPUT", "input", "accept"),
            chain("inet", "firewalld", "filter_INPUT", "input", "accept"),
            chain("inet", "culvert", "guard", "input", "drop"),
        ]});
        let mut found = Vec::new();
        for chain in input_chains(&listing) {
            let table = format!("{} {}", chain.family, chain.table);
            found.push((table, chain.drops_by_policy));
        }
        let expected = [
            ("ip filter", true),
            ("ip6 filter", false),
            ("inet firewalld", false),
        ];
        assert_eq!(
            found,
            expected.map(|(table, drops)| (table.to_owned(), drops))
        );
    }

    #[test]
    fn a_chain_whose_last_rule_refuses_everything_drops() {
        let rule = |expr: Value| json!({"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "handle": 4, "expr": expr}});
        let counter = json!({"counter": {"packets": 0, "bytes": 0}});
        let of_pods = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "10.244.0.2"}});
        let accept = rule(json!([of_pods, {"accept": null}]));
        for (last, refuses) in [
            (
                json!([counter, {"xt": {"type": "target", "name": "REJECT"}}]),
                true,
            ),
            (
                json!([{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}]),
                true,
            ),
            (json!([counter, {"drop": null}]), true),
            (json!([of_pods, {"drop": null}]), false),
            (
                json!([{"xt": {"type": "match", "name": "multiport"}}, {"drop": null}]),
                false,
            ),
            (json!([counter]), false),
        ] {
            let listing = json!({"nftables": [accept, rule(last.clone())]});
            assert_eq!(ends_in_a_refusal(&listing, "INPUT"), refuses, "{last}");
            assert!(!ends_in_a_refusal(&listing, "FORWARD"));
        }
    }

    #[test]
    fn chains_that_drop_by_user_or_cgroup_are_found_if_they_meet_steered_connections() {
        let rule = |chain: &str, expr: Value| json!({"rule": {"family": "inet", "table": "egress", "chain": chain, "handle": 4, "expr": expr}});
        let of_user =
            json!({"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": 65534}});
        let to = |ports: Value| json!({"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": ports}});
        // As nft 1.0.6 lists these rules, the last one of iptables-nft.
        let listing = json!({"nftables": [
            rule("user", json!([of_user, {"match": {"op": "!=", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": {"prefix": {"addr": "10.0.0.0", "len": 8}}}}, {"counter": {"packets": 0, "bytes": 0}}, {"drop": null}])),
            rule("cgroup", json!([{"match": {"op": "==", "left": {"socket": {"key": "cgroupv2"}}, "right": "batch.slice"}}, {"reject": {"type": "icmp", "expr": "admin-prohibited"}}])),
            rule("range", json!([of_user, to(json!({"range": [7000, 8000]})), {"drop": null}])),
            rule("OUTPUT", json!([{"xt": {"type": "match", "name": "owner"}}, {"xt": {"type": "target", "name": "REJECT"}}])),
            rule("mail", json!([of_user, to(json!({"set": [25, 465]})), {"drop": null}])),
            rule("udp", json!([of_user, {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "udp"}}, {"drop": null}])),
            rule("counts", json!([of_user, {"counter": {"packets": 0, "bytes": 0}}])),
            rule("all", json!([{"drop": null}])),
        ]});
        let found: Vec<String> = chains_by_owner(&listing).into_iter().collect();
        assert_eq!(
            found,
            [
                "inet egress OUTPUT",
                "inet egress cgroup",
                "inet egress range",
                "inet egress user"
            ]
        );
    }

    #[test]
    fn chains_that_set_a_zone_are_found_in_tables_that_run_before_connection_tracking() {
        let chain = |table: &str, priority: i32| json!({"chain": {"family": "inet", "table": table, "name": "pre", "type": "filter", "hook": "prerouting", "prio": priority, "policy": "accept"}});
        let listing =
            json!({"nftables": [chain("vpc", -300), chain("late", -150), chain("culvert", -300)]});
        assert_eq!(
            tables_before_conntrack(&listing),
            BTreeSet::from([("inet".to_owned(), "vpc".to_owned())])
        );
        // As nft 1.0.6 and 1.1.7 list `iifname "pod" ct zone set 7` and `notrack`.
        let table = json!({"nftables": [
            {"table": {"family": "inet", "name": "vpc", "handle": 1}},
            {"rule": {"family": "inet", "table": "vpc", "chain": "pre", "handle": 3, "expr": [
                {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "pod"}},
                {"mangle": {"key": {"ct": {"key": "zone"}}, "value": 7}}]}},
            {"rule": {"family": "inet", "table": "vpc", "chain": "out", "handle": 4, "expr": [{"notrack": null}]}},
        ]});
        assert_eq!(
            chains_that_set_zones(&table),
            BTreeSet::from(["inet vpc pre".to_owned()])
        );
    }
}
