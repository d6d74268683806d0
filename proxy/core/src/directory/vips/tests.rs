use super::*;

const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);

fn ranges(vip4: &str) -> VipRanges {
    VipRanges::checked(vip4.parse().unwrap(), "fd00:1::/64".parse().unwrap(), &[]).unwrap()
}

fn names(names: &[&str]) -> Vec<NodeName> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn v4(vips: &Vips, name: &str) -> String {
    vips.of(&name.parse().unwrap(), &ranges("198.18.0.0/15"))
        .unwrap()
        .v4
        .to_string()
}

#[test]
fn a_node_has_the_same_host_part_in_both_ranges_and_keeps_it() {
    let ranges = ranges("198.18.0.0/15");
    let first = Vips::default()
        .reconciled(names(&["edge-2"]).iter(), &ranges, NOW)
        .unwrap();
    let more = first
        .reconciled(names(&["edge-1", "edge-2"]).iter(), &ranges, NOW)
        .unwrap();
    let vip = more.of(&"edge-2".parse().unwrap(), &ranges).unwrap();
    assert_eq!(
        (vip.v4, vip.v6),
        ("198.18.0.1".parse().unwrap(), "fd00:1::1".parse().unwrap())
    );
    assert_eq!(v4(&more, "edge-1"), "198.18.0.2");
}

#[test]
fn a_vip_rests_a_day_before_another_node_gets_it_and_its_own_node_gets_it_back() {
    let ranges = ranges("198.18.0.0/15");
    let gone = Vips::default()
        .reconciled(names(&["a"]).iter(), &ranges, NOW)
        .unwrap();
    let gone = gone.reconciled(names(&[]).iter(), &ranges, NOW).unwrap();
    let early = (NOW + REST).before(Duration::from_secs(1));
    assert_eq!(
        v4(
            &gone
                .reconciled(names(&["b"]).iter(), &ranges, early)
                .unwrap(),
            "b"
        ),
        "198.18.0.2"
    );
    assert_eq!(
        v4(
            &gone
                .reconciled(names(&["b"]).iter(), &ranges, NOW + REST)
                .unwrap(),
            "b"
        ),
        "198.18.0.1"
    );
    let back = gone
        .reconciled(names(&["a", "b"]).iter(), &ranges, early)
        .unwrap();
    assert_eq!(
        (v4(&back, "a"), v4(&back, "b")),
        ("198.18.0.1".into(), "198.18.0.2".into())
    );
}

#[test]
fn dot_zero_and_dot_255_are_nobodys() {
    let ranges = ranges("198.18.0.0/23");
    let offsets: Vec<u32> = ranges.offsets().collect();
    assert_eq!(offsets.len(), 508);
    assert!(
        offsets
            .iter()
            .all(|offset| !matches!(offset % 256, 0 | 255))
    );
}

#[test]
fn a_full_range_says_so_with_the_fix() {
    let ranges = ranges("198.18.0.0/24");
    let nodes: Vec<NodeName> = (0..255)
        .map(|index| format!("n{index}").parse().unwrap())
        .collect();
    Vips::default()
        .reconciled(nodes[..254].iter(), &ranges, NOW)
        .unwrap();
    let error = Vips::default()
        .reconciled(nodes.iter(), &ranges, NOW)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("all 254 VIPs of 198.18.0.0/24") && error.contains("--vip4-range"),
        "{error}"
    );
}

#[test]
fn a_smaller_range_moves_only_the_nodes_that_do_not_fit() {
    let wide = ranges("198.18.0.0/15");
    let nodes: Vec<NodeName> = (0..300)
        .map(|index| format!("n{index:03}").parse().unwrap())
        .collect();
    let vips = Vips::default()
        .reconciled(nodes.iter(), &wide, NOW)
        .unwrap();
    let (kept, lost) = vips.moved(&ranges("10.9.0.0/24"));
    assert_eq!(lost, 46);
    assert_eq!(kept.problem(&ranges("10.9.0.0/24")), None);
}

#[test]
fn a_range_that_overlaps_the_cloud_is_refused() {
    let protected = [(
        "198.19.0.0/16".parse().unwrap(),
        "the protected range 198.19.0.0/16".to_owned(),
    )];
    let error = VipRanges::checked(
        "198.18.0.0/15".parse().unwrap(),
        random_vip6_range(),
        &protected,
    )
    .unwrap_err();
    assert!(matches!(&error, VipError::Overlap { .. }), "{error}");
    assert!(
        VipRanges::checked("198.18.0.0/25".parse().unwrap(), random_vip6_range(), &[]).is_err()
    );
}

#[test]
fn an_edited_file_with_one_vip_for_two_nodes_is_noticed() {
    let vips: Vips = serde_json::from_str(r#"{"held": {"a": 1, "b": 1}, "resting": {}}"#).unwrap();
    assert_eq!(
        vips.problem(&ranges("198.18.0.0/15")).unwrap(),
        "a and b have the same host part 1"
    );
}

#[test]
fn random_ranges_are_unique_local_64s() {
    let one = random_vip6_range();
    let other = random_vip6_range();
    assert_ne!(one, other);
    assert!(one.addr().is_unique_local() && one.prefix_len() == 64 && one.trunc() == one);
}
