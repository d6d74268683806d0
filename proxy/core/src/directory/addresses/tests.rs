//! The addresses of nodes that route.

use super::*;
use crate::directory::CloudNode;

fn states(nodes: &[(&str, &[&str])], protected: &Protected) -> BTreeMap<IpAddr, AddressState> {
    let node = |(name, addresses): &(&str, &[&str])| {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        (
            name.parse().unwrap(),
            NodeSpec {
                addresses,
                ports: vec![9100],
                zone: None,
                behind: Vec::new(),
            },
        )
    };
    address_states(&nodes.iter().map(node).collect(), protected)
}

/// The claims of cloud nodes' addresses, and of nodes' pods.
fn claims(clouds: &[(&str, &[&str])], pods: &[(&str, &str)]) -> Claims {
    let cloud = |(name, addresses): &(&str, &[&str])| {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let node = CloudNode {
            addresses: addresses[..1].to_vec(),
            others: addresses[1..].iter().copied().collect(),
        };
        (name.parse().unwrap(), node)
    };
    Claims::new(&ClusterNodes {
        edges: BTreeMap::new(),
        clouds: clouds.iter().map(cloud).collect(),
        pod_ranges: pods
            .iter()
            .map(|(range, node)| (range.parse().unwrap(), node.parse().unwrap()))
            .collect(),
    })
}

/// A cluster whose ranges are known.
fn known() -> ClusterProtected {
    let own = ClusterOwn {
        api_servers: ["192.0.2.5".parse().unwrap()].into(),
        service_ranges: [
            "10.96.0.0/12".parse().unwrap(),
            "fd00:96::/108".parse().unwrap(),
        ]
        .into(),
        pod_ranges: ["10.244.0.0/16".parse().unwrap()].into(),
    };
    ClusterProtected {
        own,
        asked: OwnRanges::Known,
        ..ClusterProtected::default()
    }
}

fn in_cluster(cluster: ClusterProtected) -> Protected {
    Protected {
        cluster: Some(cluster),
        ..Protected::default()
    }
}

fn reason(states: &BTreeMap<IpAddr, AddressState>, address: &str) -> String {
    let address = address.parse().unwrap();
    states[&address].reason(address)
}

#[test]
fn an_address_of_one_node_routes() {
    let states = states(
        &[("edge-1", &["10.0.3.7", "fd00::7"]), ("edge-2", &[])],
        &Protected::default(),
    );
    assert_eq!(states.len(), 2);
    assert!(
        states
            .values()
            .all(|state| *state == AddressState::Routed("edge-1".parse().unwrap()))
    );
    assert_eq!(reason(&states, "10.0.3.7"), "");
}

#[test]
fn an_address_of_two_nodes_is_shared_and_names_both() {
    let states = states(
        &[("edge-3", &["192.168.1.10"]), ("edge-2", &["192.168.1.10"])],
        &Protected::default(),
    );
    assert_eq!(
        reason(&states, "192.168.1.10"),
        "192.168.1.10 belongs to edge-2 and edge-3: use their names"
    );
}

#[test]
fn an_address_of_the_cloud_never_routes_and_names_both_owners() {
    let protected = Protected {
        ranges: vec!["10.96.0.0/12".parse().unwrap()],
        host: ["10.0.0.1".parse().unwrap()].into(),
        edge_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        cluster: Some(ClusterProtected {
            claims: claims(&[("master-1", &["10.0.0.2"])], &[]),
            ..Default::default()
        }),
        ..Protected::default()
    };
    let states = states(
        &[("edge-1", &["10.96.0.1", "10.0.0.1", "10.0.0.2", "10.0.3.7"])],
        &protected,
    );
    assert_eq!(
        reason(&states, "10.0.0.2"),
        "10.0.0.2 of edge-1 is also the address of the cloud node master-1: use the node's name"
    );
    assert_eq!(
        reason(&states, "10.96.0.1"),
        "10.96.0.1 of edge-1 is also in the protected range 10.96.0.0/12: use the node's name"
    );
    assert_eq!(
        reason(&states, "10.0.0.1"),
        "10.0.0.1 of edge-1 is also an address of this proxy's host: use the node's name"
    );
    assert_eq!(reason(&states, "10.0.3.7"), "");
}

#[test]
fn what_a_cluster_uses_itself_never_routes_without_being_asked() {
    let direct = vec!["172.16.0.0/12".parse().unwrap()];
    let claims = claims(
        &[("worker-1", &["10.0.1.1", "198.51.100.9"])],
        &[("10.250.7.0/24", "worker-1")],
    );
    let mut protected = in_cluster(ClusterProtected {
        claims,
        direct,
        ..known()
    });
    protected.vips = vec!["198.18.0.0/15".parse().unwrap()];
    for (claimed, by) in [
        ("192.0.2.5", "also an address of the API server"),
        (
            "10.96.0.1",
            "also in the cluster's Service range 10.96.0.0/12",
        ),
        (
            "fd00:96::1",
            "also in the cluster's Service range fd00:96::/108",
        ),
        (
            "10.244.7.9",
            "also in the cluster's pod range 10.244.0.0/16",
        ),
        (
            "10.250.7.9",
            "also in the pod range 10.250.7.0/24 of the node worker-1",
        ),
        ("10.0.1.1", "also the address of the cloud node worker-1"),
        (
            "198.51.100.9",
            "also the address of the cloud node worker-1",
        ),
        ("198.18.0.9", "also in the VIP range 198.18.0.0/15"),
        ("172.16.5.5", "also in the range 172.16.0.0/12 of --direct"),
        ("169.254.169.254", "also a link-local address"),
    ] {
        let told = reason(&states(&[("edge-7", &[claimed])], &protected), claimed);
        assert_eq!(
            told,
            format!("{claimed} of edge-7 is {by}: use the node's name")
        );
    }
    assert_eq!(
        reason(
            &states(&[("edge-7", &["10.250.8.9"])], &protected),
            "10.250.8.9"
        ),
        ""
    );
}

#[test]
fn in_a_cluster_of_unknown_ranges_no_address_routes_unless_an_operator_says_where_edges_are() {
    let edge: &[(&str, &[&str])] = &[("edge-1", &["10.0.3.7"])];
    for (services, pods, flags) in [
        (None, None, "--service-range and --pod-range"),
        (None, Some("10.244.0.0/16"), "--service-range"),
        (Some("10.96.0.0/12"), None, "--pod-range"),
    ] {
        let ranges =
            |text: Option<&str>| text.map(|text| text.parse().unwrap()).into_iter().collect();
        let own = ClusterOwn {
            service_ranges: ranges(services),
            pod_ranges: ranges(pods),
            ..ClusterOwn::default()
        };
        let mut protected = in_cluster(ClusterProtected { own, ..known() });
        let told = reason(&states(edge, &protected), "10.0.3.7");
        assert!(
            told.contains(&format!("(give --edge-range, or {flags})")),
            "{told}"
        );
        protected.edge_ranges = vec!["10.0.3.0/24".parse().unwrap()];
        assert_eq!(reason(&states(edge, &protected), "10.0.3.7"), "");
    }
    assert_eq!(reason(&states(edge, &in_cluster(known())), "10.0.3.7"), "");
    let never_asked = states(edge, &in_cluster(ClusterProtected::default()));
    assert!(
        matches!(
            never_asked.values().next(),
            Some(AddressState::Contested { .. })
        ),
        "it is not dialled either"
    );
}

#[test]
fn addresses_count_only_inside_the_edge_range() {
    let edge_ranges = vec![
        "10.0.3.0/24".parse().unwrap(),
        "10.96.0.0/16".parse().unwrap(),
    ];
    let nodes: &[(&str, &[&str])] = &[("edge-1", &["10.0.3.7", "10.0.4.7", "10.96.0.1"])];
    let states = states(
        nodes,
        &Protected {
            edge_ranges,
            ..in_cluster(known())
        },
    );
    assert_eq!(reason(&states, "10.0.3.7"), "");
    assert!(reason(&states, "10.0.4.7").contains("is outside every --edge-range"));
    assert!(
        reason(&states, "10.96.0.1").contains("Service range"),
        "an edge range opens nothing of the cloud's"
    );
}

#[test]
fn what_an_edge_node_had_before_a_node_claimed_it_is_refused_and_neither_routed_nor_left_alone() {
    let claims = claims(
        &[("worker-1", &["10.0.3.7"])],
        &[("10.0.4.0/24", "worker-1")],
    );
    let contested = ["10.0.3.7".parse().unwrap(), "10.0.4.7".parse().unwrap()].into();
    let protected = in_cluster(ClusterProtected {
        claims,
        contested,
        ..known()
    });
    let states = states(
        &[("edge-1", &["10.0.3.7", "10.0.4.7", "10.0.4.8"])],
        &protected,
    );
    assert_eq!(
        reason(&states, "10.0.3.7"),
        "10.0.3.7 of edge-1 is also the address of the cloud node worker-1, which claims it \
         since: use the node's name"
    );
    for (address, is_contested) in [("10.0.3.7", true), ("10.0.4.7", true), ("10.0.4.8", false)] {
        let state = &states[&address.parse().unwrap()];
        assert_eq!(
            matches!(state, AddressState::Contested { .. }),
            is_contested,
            "{state:?}"
        );
        assert_eq!(
            matches!(state, AddressState::Protected { .. }),
            !is_contested,
            "{state:?}"
        );
    }
}

#[test]
fn no_nodes_pods_are_inside_the_edge_range() {
    let claims = claims(&[("worker-1", &["10.0.3.9"])], &[("10.0.0.0/20", "edge-7")]);
    let mut protected = in_cluster(ClusterProtected { claims, ..known() });
    let nodes: &[(&str, &[&str])] = &[("edge-1", &["10.0.3.7", "10.0.3.9"])];
    assert!(
        reason(&states(nodes, &protected), "10.0.3.7")
            .contains("pod range 10.0.0.0/20 of the node edge-7")
    );
    protected.edge_ranges = vec!["10.0.3.0/24".parse().unwrap()];
    assert_eq!(reason(&states(nodes, &protected), "10.0.3.7"), "");
    assert!(
        reason(&states(nodes, &protected), "10.0.3.9").contains("cloud node worker-1"),
        "an address is another matter"
    );
}

#[test]
fn a_protected_address_stays_protected_when_it_is_shared_too() {
    let protected = Protected {
        ranges: vec!["192.168.1.0/24".parse().unwrap()],
        ..Protected::default()
    };
    let states = states(
        &[("a", &["192.168.1.10"]), ("b", &["192.168.1.10"])],
        &protected,
    );
    assert!(reason(&states, "192.168.1.10").contains("of a and b is also in the protected range"));
}
