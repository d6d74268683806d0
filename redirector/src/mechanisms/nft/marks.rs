//! The bits of packets' marks that rules of other tables name. What `iptables -j MARK` and
//! `CONNMARK` set is not found, because nft does not show their arguments as JSON; the rules that
//! match it are.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::NftError;
use super::others::{listed, objects, text};
use super::table::TABLE;

/// Rules of more chains than these are not read: it would take too much memory.
const MAX_CHAINS: usize = 2_000;
/// A mask that leaves the whole mark.
const WHOLE: u32 = u32::MAX;

/// Each chain of another table whose rules set or match bits of the mark, such as `ip nat
/// KUBE-POSTROUTING`, with these bits.
pub(crate) async fn marking_chains() -> Result<BTreeMap<String, u32>, NftError> {
    let listing = listed(&["list", "chains"]).await?;
    let chains = objects(&listing, "chain").count();
    if chains > MAX_CHAINS {
        return Err(NftError::TooManyChains { chains });
    }
    let mut tables = BTreeSet::new();
    for chain in objects(&listing, "chain") {
        if chain["table"] != TABLE {
            tables.insert((text(&chain["family"]), text(&chain["table"])));
        }
    }
    let mut marking = BTreeMap::new();
    for (family, table) in tables {
        let rules = listed(&["-t", "list", "table", &family, &table]).await?;
        marking.extend(named_by_chains(&rules));
    }
    Ok(marking)
}

fn named_by_chains(listing: &Value) -> BTreeMap<String, u32> {
    let mut marking = BTreeMap::new();
    for rule in objects(listing, "rule") {
        let mut bits = 0;
        for statement in rule["expr"].as_array().into_iter().flatten() {
            bits |= named(statement);
        }
        if bits != 0 {
            let [family, table, chain] = ["family", "table", "chain"].map(|part| text(&rule[part]));
            *marking
                .entry(format!("{family} {table} {chain}"))
                .or_default() |= bits;
        }
    }
    marking
}

/// The bits of the mark that a statement matches or changes. One that compares or replaces the
/// whole mark names the bits of its value.
fn named(statement: &Value) -> u32 {
    let mangle = &statement["mangle"];
    let matched = &statement["match"];
    let map = &statement["vmap"];
    if is_mark(&mangle["key"]) {
        return changed(&mangle["value"]);
    }
    for (left, right) in [
        (&matched["left"], &matched["right"]),
        (&map["key"], &map["data"]),
    ] {
        match mask(left) {
            Some(WHOLE) => return numbers(right),
            Some(mask) => return mask,
            None => {}
        }
    }
    0
}

/// The mark of a packet, or of its socket.
fn is_mark(expression: &Value) -> bool {
    expression["meta"]["key"] == "mark" || expression["socket"]["key"] == "mark"
}

/// The part of the mark that an expression is; `None` if it is another thing.
fn mask(expression: &Value) -> Option<u32> {
    if is_mark(expression) {
        return Some(WHOLE);
    }
    let [of, mask] = operands(expression, "&")?;
    if is_mark(of) {
        Some(numbers(mask))
    } else {
        None
    }
}

/// The bits that differ after `meta mark set EXPRESSION`, or may.
fn changed(expression: &Value) -> u32 {
    for operator in ["|", "^"] {
        if let Some([left, right]) = operands(expression, operator) {
            return changed(left) | changed(right);
        }
    }
    match operands(expression, "&") {
        Some([left, mask]) if has_mark(left) => changed(left) | !numbers(mask),
        // The operand may be the mark of the connection, for example.
        Some([_, mask]) => numbers(mask),
        None => own_number(expression),
    }
}

fn has_mark(expression: &Value) -> bool {
    let nested = ["|", "^", "&"].map(|operator| operands(expression, operator));
    is_mark(expression) || nested.into_iter().flatten().any(|[left, _]| has_mark(left))
}

fn operands<'a>(expression: &'a Value, operator: &str) -> Option<[&'a Value; 2]> {
    let [left, right] = expression[operator].as_array()?.as_slice() else {
        return None;
    };
    Some([left, right])
}

/// All numbers in a value, such as a set.
fn numbers(value: &Value) -> u32 {
    let mut bits = 0;
    match value {
        Value::Array(values) => {
            for value in values {
                bits |= numbers(value);
            }
        }
        Value::Object(values) => {
            for value in values.values() {
                bits |= numbers(value);
            }
        }
        Value::Number(_) | Value::Null | Value::Bool(_) | Value::String(_) => {
            bits = own_number(value);
        }
    }
    bits
}

fn own_number(value: &Value) -> u32 {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As nft 1.0.6 lists them.
    #[test]
    fn the_bits_that_a_statement_names_are_those_of_its_mask_or_of_its_value() {
        let mark = || json!({"meta": {"key": "mark"}});
        let masked = |mask: u32| json!({"&": [mark(), mask]});
        let matches = |left: Value, right: Value| json!({"match": {"op": "==", "left": left, "right": right}});
        let sets = |value: Value| json!({"mangle": {"key": mark(), "value": value}});
        for (statement, bits) in [
            (matches(masked(0x4000), json!(0x4000)), 0x4000),
            (matches(masked(0xf00), json!(0x200)), 0xf00),
            (matches(mark(), json!(0x1001)), 0x1001),
            (matches(mark(), json!({"set": [3, 0x1000]})), 0x1003),
            (
                matches(json!({"socket": {"key": "mark"}}), json!(0x10)),
                0x10,
            ),
            (matches(mark(), json!("@marks")), 0),
            (
                matches(json!({"meta": {"key": "iifname"}}), json!("eth0")),
                0,
            ),
            (matches(json!({"ct": {"key": "mark"}}), json!(0x1000)), 0),
            (
                json!({"vmap": {"key": mark(), "data": {"set": [[3, {"drop": null}], [0x1000, {"accept": null}]]}}}),
                0x1003,
            ),
            (sets(json!({"|": [mark(), 0x4000]})), 0x4000),
            (sets(json!({"^": [mark(), 0x4000]})), 0x4000),
            (sets(masked(0xffff_efff)), 0x1000),
            (
                sets(json!({"|": [{"&": [mark(), 0xffff_1fff_u32]}, 0x1000]})),
                0xf000,
            ),
            (
                sets(json!({"|": [masked(0xffff_ff7f), {"&": [{"ct": {"key": "mark"}}, 0x80]}]})),
                0x80,
            ),
            (sets(json!(0x1234)), 0x1234),
            (sets(json!({"ct": {"key": "mark"}})), 0),
            (
                json!({"mangle": {"key": {"ct": {"key": "mark"}}, "value": mark()}}),
                0,
            ),
            (json!({"xt": {"type": "target", "name": "MARK"}}), 0),
            (json!({"counter": {"packets": 4096, "bytes": 4096}}), 0),
        ] {
            assert_eq!(named(&statement), bits, "{statement}");
        }
    }

    #[test]
    fn the_bits_of_a_chain_are_those_of_all_its_rules() {
        let rule = |chain: &str, mask: u32| {
            let left = json!({"&": [{"meta": {"key": "mark"}}, mask]});
            let matched = json!({"match": {"op": "==", "left": left, "right": mask}});
            json!({"rule": {"family": "ip", "table": "nat", "chain": chain, "expr": [matched, {"masquerade": null}]}})
        };
        let listing = json!({"nftables": [
            {"chain": {"family": "ip", "table": "nat", "name": "A"}},
            rule("A", 0x4000),
            rule("A", 0x8000),
            rule("B", 0x2000),
            {"rule": {"family": "ip", "table": "nat", "chain": "C", "expr": [{"accept": null}]}},
        ]});
        let marking = named_by_chains(&listing);
        assert_eq!(
            marking,
            BTreeMap::from([
                ("ip nat A".to_owned(), 0xc000),
                ("ip nat B".to_owned(), 0x2000)
            ])
        );
    }
}
