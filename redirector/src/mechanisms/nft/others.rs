//! Other tables' chains that drop packets to this host: pods' steered connections are such packets.

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

async fn listed(args: &[&str]) -> Result<Value, NftError> {
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
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let chains = objects
        .map(|object| &object["chain"])
        .filter(|chain| chain["hook"] == "input");
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
}
