//! Other tables' chains that harm steered connections: those that drop packets to this host, as
//! pods' steered connections are, those that drop what some users or cgroups send, and those that
//! hide connections in a zone of connection tracking.

use std::collections::BTreeSet;

use culvert_api::ports::INTERCEPT_PORTS;
use nftables::helper;
use serde_json::Value;

use super::{NFT, NftError, timed};

/// firewalld's table: it accepts by policy and rejects in its last rule.
const FIREWALLD: &str = "firewalld";

/// The chains of other tables, such as `ip filter INPUT`, that drop or reject by default and have
/// no rule for the intercept ports.
pub(crate) async fn dropping_chains() -> Result<Vec<String>, NftError> {
    let chains = listed(&["list", "chains"]).await?;
    let mut dropping = Vec::new();
    for Chain {
        family,
        table,
        name,
    } in input_chains(&chains)
    {
        let rules = listed(&["list", "table", &family, &table]).await?;
        // A rule that accepts the intercept ports names the first one.
        if !rules.to_string().contains(&INTERCEPT_PORTS[0].to_string()) {
            dropping.push(format!("{family} {table} {name}"));
        }
    }
    Ok(dropping)
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
}

/// Base chains at the input hook that drop by policy, or belong to firewalld.
fn input_chains(listing: &Value) -> Vec<Chain> {
    let mut dropping = Vec::new();
    for chain in objects(listing, "chain") {
        if chain["hook"] != "input" || chain["table"] == super::table::TABLE {
            continue;
        }
        let is_firewalld = chain["table"] == FIREWALLD && chain["type"] == "filter";
        if chain["policy"] == "drop" || is_firewalld {
            dropping.push(Chain {
                family: text(&chain["family"]),
                table: text(&chain["table"]),
                name: text(&chain["name"]),
            });
        }
    }
    dropping
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn chains_that_drop_by_policy_and_firewalld_s_are_found_and_no_others() {
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
        let found: Vec<String> = input_chains(&listing)
            .into_iter()
            .map(|chain| chain.table + " " + &chain.name)
            .collect();
        assert_eq!(found, ["filter INPUT", "firewalld filter_INPUT"]);
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
