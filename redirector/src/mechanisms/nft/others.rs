//! Other tables' chains that harm steered connections: those that drop packets to this host, as
//! pods' steered connections are, and those that hide them in a zone of connection tracking.

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
    let chains = objects(listing, "chain").filter(|chain| chain["hook"] == "input");
    let dropping = chains.filter(|chain| {
        chain["table"] != super::table::TABLE
            && (chain["policy"] == "drop"
                || (chain["table"] == FIREWALLD && chain["type"] == "filter"))
    });
    dropping
        .map(|chain| Chain {
            family: text(&chain["family"]),
            table: text(&chain["table"]),
            name: text(&chain["name"]),
        })
        .collect()
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
