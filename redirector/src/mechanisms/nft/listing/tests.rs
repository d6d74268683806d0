//! Compares what is read from a listing with what was rendered.

use serde_json::json;

use super::*;
use crate::mechanisms::nft::table::examples::{spec, v4_only};

#[test]
fn a_listing_has_the_elements_that_were_rendered_and_a_changed_one_differs() {
    let spec = spec(v4_only());
    let commands = serde_json::to_value(render(&spec, Layout::Joint, Replace::Tables)).unwrap();
    // A listing differs from our commands in that there is no "add" around each object.
    let objects: Vec<_> = commands["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| command["add"].clone())
        .collect();
    let listing = json!({ "nftables": objects });
    assert_eq!(TableElements::of_json(&listing), TableElements::of(&spec));
    let text = listing.to_string();
    for (from, to) in [
        ("\"10.0.3.7\",9100", "\"10.0.3.7\",9101"),
        ("\"len\":15", "\"len\":16"),
        ("[\"10.0.3.7\",9100]", "[]"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from} is there");
        assert_ne!(
            TableElements::of_json(&changed.parse().unwrap()),
            TableElements::of(&spec),
            "{from}"
        );
    }
}

#[test]
fn a_listing_has_the_parts_that_were_rendered() {
    let rendered = TableParts::of(&spec(v4_only()), Layout::Joint).unwrap();
    assert_eq!((rendered.sets, rendered.chains, rendered.rules), (4, 8, 33));
    let rule = json!({ "chain": "steer", "expr": [{ "match": { "right": "@dst4" } }] });
    let listing = json!({ "nftables": [{ "metainfo": {} }, { "table": {} }, { "set": {} }, { "chain": {} }, { "rule": rule }] });
    let listed = TableParts::of_json(&listing);
    assert_eq!((listed.sets, listed.chains, listed.rules), (1, 1, 1));
    for parts in [rendered, listed] {
        assert!(
            parts.refuses("fd00::7".parse().unwrap())
                && !parts.refuses("10.0.3.7".parse().unwrap())
        );
    }
}

#[test]
fn a_rule_that_is_replaced_is_not_the_same_and_its_counter_does_not_matter() {
    let listing = |handle: u32, packets: u32| {
        let rule = json!({ "handle": handle, "expr": [{ "counter": { "packets": packets, "bytes": 0 } }] });
        fixed(json!({ "nftables": [{ "metainfo": { "version": "1" } }, { "rule": rule }] }))
    };
    assert_eq!(listing(7, 1), listing(7, 2));
    assert_ne!(listing(7, 1), listing(8, 1));
}

#[test]
fn what_the_guard_dropped_is_counted_and_what_others_did_is_not() {
    let rule = |chain: &str, packets: u32, verdict: &str| {
        json!({ "rule": { "chain": chain, "expr": [
            { "match": { "right": "eth0" } },
            { "counter": { "packets": packets, "bytes": 60 } },
            { verdict: null }
        ] } })
    };
    let listing = json!({ "nftables": [
        { "metainfo": {} },
        rule("guard", 3, "drop"),
        rule("guard", 4, "drop"),
        rule("guard", 100, "reject"),
        rule("steer", 1000, "drop"),
        rule("refuse_bridges", 5, "reject"),
        rule("refuse_forward", 2000, "reject"),
    ] });
    assert_eq!(guard_drops(&listing), 7);
    assert_eq!(refused_of_bridges(&listing), 5);
}
