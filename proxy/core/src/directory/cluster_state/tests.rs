//! The saved state of a cluster, and the agreement of its proxies.

use super::*;
use crate::directory::allocation::{Proposal, ShardedAllocation};
use crate::directory::cluster_nodes::EdgeNode;
use crate::directory::vips::{VipRanges, Vips};
use crate::testing::FullDisk;

/// Bytes of a shard.
const SHARD_BYTES: usize = 10_000;
const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);

fn names(names: &[&str]) -> Vec<NodeName> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn ranges(vip4: &str, vip6: &str) -> VipRanges {
    VipRanges::checked(vip4.parse().unwrap(), vip6.parse().unwrap(), &[]).unwrap()
}

fn proposal(vip4: &str, vip6: Option<&str>) -> Proposal {
    let last = Allocation {
        ranges: ranges(vip4, vip6.unwrap_or("fd00:1::/64")),
        vips: Vips::default(),
    };
    Proposal {
        vip4: vip4.parse().unwrap(),
        vip6: vip6.map(|text| text.parse().unwrap()),
        last,
    }
}

fn vip4(agreed: &ShardedAllocation, node: &str) -> String {
    let allocation = agreed.allocation();
    allocation
        .vips
        .of(&node.parse().unwrap(), &allocation.ranges)
        .unwrap()
        .v4
        .to_string()
}

#[test]
fn what_the_cluster_keeps_wins_over_what_a_proxy_remembers() {
    let ours = proposal("198.18.0.0/15", None);
    let theirs = proposal("198.18.0.0/15", Some("fd00:2::/64"));
    let kept = theirs
        .agreed(None, names(&["b"]).iter(), NOW, SHARD_BYTES)
        .unwrap();
    let agreed = ours
        .agreed(
            Some(kept.clone()),
            names(&["a", "b"]).iter(),
            NOW,
            SHARD_BYTES,
        )
        .unwrap();
    assert_eq!(
        (vip4(&agreed, "a"), vip4(&agreed, "b")),
        ("198.18.0.2".into(), "198.18.0.1".into())
    );
    assert_eq!(agreed.ranges, kept.ranges);
}

#[test]
fn a_cluster_that_lost_its_vips_gets_back_those_that_a_proxy_remembers() {
    let mut proposal = proposal("198.18.0.0/15", None);
    proposal.last = proposal
        .agreed(None, names(&["b"]).iter(), NOW, SHARD_BYTES)
        .unwrap()
        .allocation();
    let agreed = proposal
        .agreed(None, names(&["a", "b"]).iter(), NOW, SHARD_BYTES)
        .unwrap();
    assert_eq!(
        (vip4(&agreed, "a"), vip4(&agreed, "b")),
        ("198.18.0.2".into(), "198.18.0.1".into())
    );
}

#[test]
fn a_proxy_with_other_ranges_than_the_clusters_refuses_and_says_what_to_give() {
    let kept = proposal("198.18.0.0/15", Some("fd00:2::/64"))
        .agreed(None, names(&["b"]).iter(), NOW, SHARD_BYTES)
        .unwrap();
    let refusal = |own: Proposal| {
        own.agreed(Some(kept.clone()), names(&["b"]).iter(), NOW, SHARD_BYTES)
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(proposal("10.9.0.0/16", None)).contains("give --vip4-range 198.18.0.0/15"));
    assert!(
        refusal(proposal("198.18.0.0/15", Some("fd00:3::/64")))
            .contains("give --vip6-range fd00:2::/64")
    );
}

#[test]
fn ports_of_the_cluster_and_of_the_node_are_steered_together() {
    let folder = tempfile::tempdir().unwrap();
    let mut source = ClusterSource::open(&StateDir::open(folder.path()).unwrap()).unwrap();
    let edge = EdgeNode {
        ports: [10250, 8080].into(),
        ..EdgeNode::default()
    };
    let nodes = ClusterNodes {
        edges: [("a".parse().unwrap(), edge)].into(),
        ..ClusterNodes::default()
    };
    let allocation = proposal("198.18.0.0/15", None)
        .agreed(None, nodes.edges.keys(), NOW, SHARD_BYTES)
        .unwrap()
        .allocation();
    source.set(nodes, allocation, &Claims::default()).unwrap();
    source
        .set_ports(ClusterPorts {
            ports: [10250].into(),
            localhost_ports: [10266].into(),
        })
        .unwrap();
    assert_eq!(
        source.specs()[&"a".parse::<NodeName>().unwrap()].ports,
        [8080, 10250, 10266]
    );
    let many = ClusterPorts {
        ports: (1..=65).collect(),
        localhost_ports: BTreeSet::new(),
    };
    assert!(
        source
            .set_ports(many)
            .unwrap_err()
            .to_string()
            .contains("65 ports, at most 64")
    );
}

fn nodes(edges: &[(&str, &str)], clouds: &[(&str, &str)], pods: &[&str]) -> ClusterNodes {
    let edge = |(name, address): &(&str, &str)| {
        let edge = EdgeNode {
            addresses: vec![address.parse().unwrap()],
            ..EdgeNode::default()
        };
        (name.parse().unwrap(), edge)
    };
    let cloud = |(name, address): &(&str, &str)| {
        let cloud = CloudNode {
            addresses: vec![address.parse().unwrap()],
            ..CloudNode::default()
        };
        (name.parse().unwrap(), cloud)
    };
    ClusterNodes {
        edges: edges.iter().map(edge).collect(),
        clouds: clouds.iter().map(cloud).collect(),
        pod_ranges: pods
            .iter()
            .map(|range| (range.parse().unwrap(), "worker".parse().unwrap()))
            .collect(),
    }
}

#[test]
fn who_had_an_address_first_is_known_over_restarts_and_until_one_gives_it_up() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path()).unwrap();
    let contested = |nodes: ClusterNodes| {
        let mut source = ClusterSource::open(&state).unwrap();
        let claims = source
            .last()
            .map(|kept| Claims::new(&kept.nodes))
            .unwrap_or_default();
        let allocation = proposal("198.18.0.0/15", None)
            .agreed(None, nodes.edges.keys(), NOW, SHARD_BYTES)
            .unwrap()
            .allocation();
        source.set(nodes, allocation, &claims).unwrap();
        let kept = source.last().unwrap();
        kept.contested
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let edge = [("edge-1", "10.0.3.7")];
    assert_eq!(
        contested(nodes(&edge, &[("worker", "10.0.3.7")], &[])),
        [""; 0],
        "nobody knows who was first"
    );
    assert_eq!(contested(nodes(&edge, &[], &[])), [""; 0]);
    for _ in 0..2 {
        assert_eq!(
            contested(nodes(&edge, &[("edge-7", "10.0.3.7")], &[])),
            ["10.0.3.7"]
        );
    }
    assert_eq!(
        contested(nodes(&edge, &[], &["10.0.3.0/24"])),
        ["10.0.3.7"],
        "by whatever claim"
    );
    assert_eq!(
        contested(nodes(&[], &[("edge-7", "10.0.3.7")], &[])),
        [""; 0]
    );
    assert_eq!(
        contested(nodes(&edge, &[("edge-7", "10.0.3.7")], &[])),
        [""; 0],
        "the cloud's came first"
    );
}

#[test]
fn one_bad_node_is_left_out_and_keeps_nobody_else_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut source = ClusterSource::open(&StateDir::open(folder.path()).unwrap()).unwrap();
    let edges = [
        ("edge-1", "10.0.3.7"),
        ("edge-2", "10.0.3.8"),
        ("edge-number-3", "10.0.3.9"),
    ];
    let nodes = nodes(
        &edges,
        &[("worker", "198.18.0.9"), ("master", "192.0.2.1")],
        &[],
    );
    let short = "edge-1".len() + 14;
    let allocation = proposal("198.18.0.0/15", None)
        .agreed(None, nodes.edges.keys(), NOW, short)
        .unwrap()
        .allocation();
    source.set(nodes, allocation, &Claims::default()).unwrap();
    let (clouds, left_out) = source.last().unwrap().in_use();
    assert_eq!(
        clouds
            .values()
            .map(|cloud| cloud.addresses.len())
            .collect::<Vec<_>>(),
        [1, 0]
    );
    let reasons: Vec<String> = left_out
        .into_iter()
        .map(|left| format!("{}: {}", left.node, left.reason))
        .collect();
    assert!(
        reasons[0].starts_with("edge-number-3: the edge node edge-number-3 has no VIP"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].starts_with("worker: 198.18.0.9 of the cloud node worker is in the VIP range"),
        "{reasons:?}"
    );
    assert_eq!(reasons.len(), 2);
}

#[test]
fn of_a_state_of_0_1_the_ports_are_not_believed_and_what_the_cluster_uses_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path()).unwrap();
    let before = r#"{"version": 1, "state": {"kept": {"as_of": 1700000000,
        "allocation": {"ranges": {"vip4": "198.18.0.0/15", "vip6": "fd00:1::/64"}, "vips": {"held": {"edge-7": 1}, "resting": {}}},
        "nodes": {"edges": {"edge-7": {"addresses": ["10.96.0.1"], "ports": [443], "zone": "plant.example"}},
            "clouds": {"master": {"addresses": ["10.0.0.1"]}}}},
        "ports": {"ports": [10250], "localhost_ports": []}}}"#;
    std::fs::write(state.join("cluster.json"), before).unwrap();
    let source = ClusterSource::open(&state).unwrap();
    assert_eq!(
        source.specs()[&"edge-7".parse::<NodeName>().unwrap()].ports,
        [10250]
    );
    assert_eq!(
        source
            .last()
            .unwrap()
            .nodes
            .edges
            .values()
            .next()
            .unwrap()
            .zone,
        None
    );
    assert_eq!(source.own(), None);
}

#[test]
fn what_the_cluster_uses_stays_known_when_nobody_says_it_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path()).unwrap();
    let mut source = ClusterSource::open(&state).unwrap();
    let ranges = |text: &str| [text.parse().unwrap()].into();
    let own = ClusterOwn {
        service_ranges: ranges("10.96.0.0/12"),
        ..ClusterOwn::default()
    };
    source.set_own(own.clone()).unwrap();
    source
        .set_own(ClusterOwn {
            pod_ranges: ranges("10.244.0.0/16"),
            ..ClusterOwn::default()
        })
        .unwrap();
    let known = ClusterOwn {
        pod_ranges: ranges("10.244.0.0/16"),
        ..own
    };
    assert_eq!(ClusterSource::open(&state).unwrap().own(), Some(&known));
}

#[test]
fn a_full_disk_keeps_no_change_of_the_cluster_from_being_in_force() {
    let temporary = tempfile::tempdir().unwrap();
    let state = StateDir::open(temporary.path()).unwrap();
    let allocation = |of: &[&str]| {
        proposal("198.18.0.0/15", None)
            .agreed(None, names(of).iter(), NOW, SHARD_BYTES)
            .unwrap()
            .allocation()
    };
    let edges = |source: &ClusterSource| source.specs().into_keys().collect::<Vec<_>>();
    let set = |source: &mut ClusterSource, name: &str, address: &str| {
        let nodes = nodes(&[(name, address)], &[], &[]);
        source
            .set(nodes, allocation(&[name]), &Claims::default())
            .unwrap();
    };
    let mut source = ClusterSource::open(&state).unwrap();
    set(&mut source, "a", "10.0.3.7");
    let full = FullDisk::of(temporary.path(), FILE.name);
    set(&mut source, "b", "10.0.3.8");
    assert_eq!(edges(&source), names(&["b"]), "a removed Node is gone");
    let ports = ClusterPorts {
        ports: [443].into(),
        localhost_ports: BTreeSet::new(),
    };
    source.set_ports(ports.clone()).unwrap();
    assert_eq!(source.ports(), &ports);
    source.write_again().unwrap_err();
    assert_eq!(
        edges(&ClusterSource::open(&state).unwrap()),
        names(&["a"]),
        "on disk is the state before"
    );
    drop(full);
    source.write_again().unwrap();
    assert_eq!(edges(&ClusterSource::open(&state).unwrap()), names(&["b"]));
}
