use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::directory::vips::REST;

const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);
const MIB: usize = 1 << 20;

fn ranges(vip4: &str) -> VipRanges {
    VipRanges::checked(vip4.parse().unwrap(), "fd00:1::/64".parse().unwrap(), &[]).unwrap()
}

fn wide() -> VipRanges {
    ranges("198.18.0.0/15")
}

fn names(prefix: &str, count: usize) -> Vec<NodeName> {
    (0..count)
        .map(|index| format!("{prefix}{index:05}").parse().unwrap())
        .collect()
}

fn first(nodes: &[NodeName], ranges: &VipRanges, bytes: usize) -> VipShards {
    VipShards::default().reconciled(nodes.iter(), ranges, NOW, bytes)
}

fn vips(held: &[(&str, u32)]) -> Vips {
    let held: BTreeMap<&str, u32> = held.iter().copied().collect();
    serde_json::from_value(serde_json::json!({"held": held, "resting": {}})).unwrap()
}

fn offset(shards: &VipShards, node: &NodeName) -> u32 {
    shards.union().host_part(node).unwrap()
}

fn bytes(vips: &Vips) -> usize {
    serde_json::to_string(vips).unwrap().len()
}

#[test]
fn one_shard_has_all_nodes_until_its_block_is_full() {
    let per_block = (BLOCK - BLOCK / 128) as usize;
    let shards = first(&names("n", per_block), &wide(), MIB);
    assert_eq!(shards.iter().len(), 1);
    let more = names("n", per_block + 1);
    let grown = shards.reconciled(more.iter(), &wide(), NOW, MIB);
    assert_eq!(grown.iter().len(), 2);
    assert_eq!(grown.0[0], shards.0[0], "only the new shard is written");
    assert_eq!(offset(&grown, more.last().unwrap()), BLOCK + 1);
}

#[test]
fn a_hundred_thousand_nodes_have_vips_and_a_change_concerns_one_shard() {
    let nodes = names("edge-node-of-a-shop-", 100_000);
    let shards = first(&nodes, &wide(), MIB);
    let all = shards.union();
    assert_eq!(all.held.len(), nodes.len());
    assert_eq!(all.problem(&wide()), None, "no host part twice");
    assert!(shards.iter().all(|shard| bytes(shard) < MIB / 2));
    let mut others = nodes;
    others.remove(50_000);
    others.extend(names("new-", 1));
    let changed = shards.reconciled(others.iter(), &wide(), NOW, MIB);
    let differs = |(before, after): (&Vips, &Vips)| before != after;
    let differing = shards
        .iter()
        .zip(changed.iter())
        .filter(|both| differs(*both));
    // One where a node is gone, and one with a new node.
    assert!(differing.count() <= 2);
}

#[test]
fn nodes_that_do_not_fit_are_left_out_and_take_nothing_from_the_others() {
    let small = ranges("198.18.0.0/24");
    let before = first(&names("z", 1), &small, MIB);
    let many = [names("a", 300), names("z", 1)].concat();
    let full = before.reconciled(many.iter(), &small, NOW, MIB);
    assert_eq!(full.union().held.len(), 254);
    assert_eq!(offset(&full, &names("z", 1)[0]), 1);

    let long = [names("z", 1), names(&"a".repeat(58), 40)].concat();
    let bounded = before.reconciled(long.iter(), &small, NOW, 2_000);
    let held = bounded.union().held;
    assert!((20..41).contains(&held.len()) && held.contains_key(&long[0]));
    let least = r#"{"held":{},"resting":{}}"#.len();
    assert!(bytes(&bounded.0[0]) <= 2_000 + least);

    // Reserved entries are longer. Those with the longest reservation are kept.
    let gone = bounded.reconciled(long[..1].iter(), &small, NOW, 2_000);
    assert!(bytes(&gone.0[0]) <= 2_000 + least);
    assert_eq!(gone.union().held.len(), 1);
    assert_eq!(gone.union().problem(&small), None);
}

#[test]
fn a_shard_with_long_names_is_full_early_and_the_next_one_goes_on() {
    let long = names(&"a".repeat(58), 40);
    let shards = first(&long, &wide(), 2_000);
    assert_eq!(shards.union().held.len(), 40);
    assert_eq!(shards.iter().len(), 2);
}

#[test]
fn a_node_that_comes_back_gets_its_own_vip_of_its_own_shard() {
    let per_block = (BLOCK - BLOCK / 128) as usize;
    let nodes = names("n", per_block + 2);
    let shards = first(&nodes, &wide(), MIB);
    let last = nodes.last().unwrap();
    let without = shards.reconciled(nodes[..per_block + 1].iter(), &wide(), NOW, MIB);
    let early = (NOW + REST).before(Duration::from_secs(1));
    let back = without.reconciled(nodes.iter(), &wide(), early, MIB);
    assert_eq!(offset(&back, last), offset(&shards, last));
}

#[test]
fn an_object_of_an_earlier_version_stays_as_it_is() {
    let earlier = vips(&[("a", 1), ("b", 9_000)]);
    let read = VipShards::read(vec![Some(earlier.clone())], &earlier);
    assert_eq!(read.iter().collect::<Vec<_>>(), [&earlier]);
    let nodes: Vec<NodeName> = ["a", "b"].map(|name| name.parse().unwrap()).into();
    let next = read.reconciled(nodes.iter(), &wide(), NOW, MIB);
    assert_eq!(next, read);
    let crowd = [nodes, names("n", 9_000)].concat();
    let grown = next.reconciled(crowd.iter(), &wide(), NOW, MIB);
    assert_eq!(
        grown.union().problem(&wide()),
        None,
        "9000 is not given twice"
    );
    assert_eq!(grown.union().held.len(), 9_002);
}

#[test]
fn a_lost_shard_comes_back_from_memory_and_takes_nothing_from_the_others() {
    let first = vips(&[("a", 1), ("c", 2)]);
    let remembered = vips(&[("a", 1), ("b", BLOCK + 1), ("c", BLOCK + 2)]);
    let read = VipShards::read(vec![Some(first.clone()), None], &remembered);
    let second = vips(&[("b", BLOCK + 1)]);
    assert_eq!(read.iter().collect::<Vec<_>>(), [&first, &second]);
    assert_eq!(VipShards::needed_for(&remembered), 2);
    let all = VipShards::read(vec![None, None], &remembered);
    assert_eq!(all.union(), remembered);
}

#[test]
fn of_two_places_of_a_node_or_host_part_the_lower_shard_counts() {
    let lower = vips(&[("a", 1), ("b", BLOCK + 1)]);
    let higher = vips(&[("a", BLOCK + 2), ("c", BLOCK + 1), ("d", BLOCK + 3)]);
    let read = VipShards::read(vec![Some(lower.clone()), Some(higher)], &Vips::default());
    let rest = vips(&[("d", BLOCK + 3)]);
    assert_eq!(read.iter().collect::<Vec<_>>(), [&lower, &rest]);
}
