//! Compares the rendered table with a golden file, and tests the changes of its elements.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::config::NodeIps;
use crate::mechanisms::nft::table::examples::{spec, v4_only};

/// Everything that is rendered for the example directory, one command per line.
const GOLDEN: &str = include_str!("golden.jsonl");

/// The commands as JSON. The order of flags has no meaning, so it is sorted.
fn rendered(commands: &Nftables<'_>) -> Value {
    let mut value = serde_json::to_value(commands).unwrap();
    sort_flags(&mut value);
    value
}

fn sort_flags(value: &mut Value) {
    if let Value::Object(fields) = value {
        if let Some(Value::Array(flags)) = fields.get_mut("flags") {
            flags.sort_by_key(Value::to_string);
        }
        fields.values_mut().for_each(sort_flags);
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(sort_flags);
    }
}

fn rules(commands: &Nftables<'_>, chain: &str) -> Vec<String> {
    let value = rendered(commands);
    let rules = value["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| &command["add"]["rule"]);
    rules
        .filter(|rule| rule["chain"] == chain)
        .map(|rule| rule["expr"].to_string())
        .collect()
}

#[test]
fn the_whole_table_is_as_the_golden_file_has_it() {
    let rendered = rendered(&render(&spec(v4_only()), Layout::Joint, Replace::Tables));
    let lines: String = rendered["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| format!("{command}\n"))
        .collect();
    assert_eq!(
        lines, GOLDEN,
        "if the change is meant, this is the new file:\n{lines}"
    );
}

#[test]
fn the_table_is_replaced_whatever_it_was_before() {
    let commands = rendered(&render(&spec(v4_only()), Layout::Joint, Replace::Tables));
    let first: Vec<_> = commands["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .take(3)
        .cloned()
        .collect();
    let table = json!({ "table": { "family": "inet", "name": "culvert" } });
    assert_eq!(
        first,
        [
            json!({ "add": table }),
            json!({ "delete": table }),
            json!({ "add": table })
        ]
    );
}

#[test]
fn marked_packets_leave_before_anything_is_translated() {
    let commands = render(&spec(v4_only()), Layout::Joint, Replace::Tables);
    for chain in ["prerouting", "output"] {
        let first = &rules(&commands, chain)[0];
        assert!(
            first.contains("mark") && first.contains("return"),
            "{first}"
        );
    }
}

#[test]
fn rules_are_replaced_without_deleting_anything_that_packets_pass() {
    let commands = rendered(&render(&spec(v4_only()), Layout::Joint, Replace::Rules));
    let commands = commands["nftables"].as_array().unwrap();
    assert!(
        commands
            .iter()
            .all(|command| command.get("delete").is_none())
    );
    let whole = rendered(&render(&spec(v4_only()), Layout::Joint, Replace::Tables));
    let rules = |commands: &[Value]| -> Vec<Value> {
        let added = commands
            .iter()
            .map(|command| command["add"]["rule"].clone());
        added.filter(|rule| !rule.is_null()).collect()
    };
    assert_eq!(
        rules(commands),
        rules(whole["nftables"].as_array().unwrap())
    );
}

#[test]
fn a_family_without_an_intercept_address_is_refused_and_with_one_steered() {
    let without = render(&spec(v4_only()), Layout::Joint, Replace::Tables);
    assert!(
        !rules(&without, STEER)
            .iter()
            .any(|rule| rule.contains("ip6"))
    );
    for refused in ["@dst4", "@dst6", "@vip4", "@vip6"] {
        assert!(
            rules(&without, "refuse_output")
                .iter()
                .any(|rule| rule.contains(refused)),
            "{refused}"
        );
    }
    let with = render(
        &spec(NodeIps {
            v6: Some("fd09::1".parse().unwrap()),
            ..v4_only()
        }),
        Layout::Joint,
        Replace::Tables,
    );
    assert_eq!(
        rules(&with, STEER)
            .iter()
            .filter(|rule| rule.contains("fd09::1"))
            .count(),
        2
    );
}

#[test]
fn a_vip_is_refused_whatever_its_packets_mark_and_an_edge_address_only_without() {
    let commands = render(&spec(v4_only()), Layout::Joint, Replace::Tables);
    let refused = rules(&commands, "refuse_output");
    let first = |word: &str| refused.iter().position(|rule| rule.contains(word)).unwrap();
    assert!(first("@vip4") < first("mark") && first("@vip6") < first("mark"));
    assert!(first("mark") < first("@dst4") && first("mark") < first("@dst6"));
    assert!(
        rules(&commands, "guard")[0].contains("@vip4"),
        "before anything is let in"
    );
}

#[test]
fn tables_of_one_family_each_have_the_rules_of_that_family() {
    let joint = rendered(&render(&spec(v4_only()), Layout::Joint, Replace::Tables));
    let split = rendered(&render(&spec(v4_only()), Layout::Split, Replace::Tables));
    let lines = |value: &Value, of: &str| -> BTreeSet<String> {
        let commands = value["nftables"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|command| command["add"].as_object());
        let of_family = commands
            .flat_map(serde_json::Map::values)
            .filter(|object| object["family"] == of);
        of_family
            .map(|object| object["expr"].to_string() + &object["elem"].to_string())
            .collect()
    };
    let v4 = lines(&split, "ip");
    let v6 = lines(&split, "ip6");
    assert_eq!(&v4 | &v6, lines(&joint, "inet"));
    for (own, other) in [(&v4, "@dst6"), (&v6, "@dst4")] {
        assert!(
            !own.iter().any(|line| line.contains(other)),
            "{other} has no such set"
        );
    }
}

#[test]
fn elements_change_alone_while_the_rules_are_the_same() {
    let gone = "10.0.3.7:9100".parse().unwrap();
    let new = "[fd00::9]:9100".parse().unwrap();
    let commands = rendered(&element_changes(&[gone], &[new], Layout::Joint));
    let element = |set: &str, ip: &str| json!({ "element": { "family": "inet", "table": "culvert", "name": set, "elem": [{ "concat": [ip, 9100] }] } });
    let expected = [
        json!({ "delete": element("dst4", "10.0.3.7") }),
        json!({ "add": element("dst6", "fd00::9") }),
    ];
    assert_eq!(commands["nftables"], Value::from(expected.to_vec()));
}
