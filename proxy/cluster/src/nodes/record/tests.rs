use serde_json::{Value, json};

use super::*;

fn reduced(node: Value) -> Reduced {
    let node: WatchedNode = serde_json::from_value(node).unwrap();
    node.reduced(
        &"node-restriction.kubernetes.io/culvert-edge"
            .parse()
            .unwrap(),
        Annotations::Ignored,
    )
}

fn trusting(node: Value) -> Reduced {
    let node: WatchedNode = serde_json::from_value(node).unwrap();
    node.reduced(&"culvert.dev/edge".parse().unwrap(), Annotations::Trusted)
}

fn node(metadata: Value, addresses: &[(&str, &str)]) -> Value {
    let address = |(kind, address): &(&str, &str)| json!({"type": kind, "address": address});
    let addresses: Vec<Value> = addresses.iter().map(address).collect();
    json!({
        "metadata": metadata,
        "spec": {"podCIDR": "10.244.1.0/24"},
        "status": {
            "addresses": addresses,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "conditions": [{"type": "Ready", "lastHeartbeatTime": "2026-11-21T00:00:00Z"}],
            "images": [{"names": ["a"], "sizeBytes": 1}]
        }
    })
}

fn edge(reduced: &Reduced) -> &EdgeNode {
    match &reduced.node {
        Some((
            _,
            Record {
                kind: Kind::Edge(edge),
                ..
            },
        )) => edge,
        other => panic!("{other:?} is not an edge node"),
    }
}

#[test]
fn an_edge_node_is_what_the_selector_says_with_its_internal_addresses_and_ports() {
    let metadata = json!({
        "name": "edge-1", "labels": {
            "node-restriction.kubernetes.io/culvert-edge": "",
            "node-restriction.kubernetes.io/culvert-ports": "8080.9256",
            "node-restriction.kubernetes.io/culvert-zone": "plant.example"}
    });
    let addresses = [
        ("InternalIP", "10.0.3.7"),
        ("InternalIP", "fd00::7"),
        ("Hostname", "edge-1"),
        ("ExternalIP", "1.2.3.4"),
    ];
    let reduced = reduced(node(metadata, &addresses));
    let edge = edge(&reduced);
    assert_eq!(
        edge.addresses,
        [
            "10.0.3.7".parse::<IpAddr>().unwrap(),
            "fd00::7".parse().unwrap()
        ]
    );
    assert_eq!(edge.ports, BTreeSet::from([8080, 9256, 10250]));
    assert_eq!(edge.zone.as_ref().unwrap().to_string(), "plant.example");
    assert_eq!(reduced.problems, [""; 0]);
}

#[test]
fn what_is_behind_a_node_no_kubelet_may_say() {
    let camera: BTreeSet<std::net::SocketAddr> = ["192.168.1.20:554".parse().unwrap()].into();
    let edge_label = "node-restriction.kubernetes.io/culvert-edge";
    let by_label = json!({"name": "edge-1", "labels": {
        edge_label: "", "node-restriction.kubernetes.io/culvert-behind-camera": "192.168.1.20_554"}});
    let by_annotation = json!({"name": "edge-1", "labels": {edge_label: "", "culvert.dev/edge": ""},
        "annotations": {"culvert.dev/behind": "192.168.1.20:554"}});
    let addresses = [("InternalIP", "10.0.3.7")];
    assert_eq!(edge(&reduced(node(by_label, &addresses))).behind, camera);
    let distrusted = reduced(node(by_annotation.clone(), &addresses));
    assert!(edge(&distrusted).behind.is_empty());
    let problem = &distrusted.problems[0];
    assert!(
        problem.contains("culvert-behind") && problem.contains("--trust-node-annotations"),
        "{problem}"
    );
    assert_eq!(
        edge(&trusting(node(by_annotation, &addresses))).behind,
        camera
    );
}

#[test]
fn what_a_kubelet_may_write_opens_no_port_and_gives_no_name_unless_an_operator_trusts_it() {
    let metadata = json!({
        "name": "edge-1", "labels": {"culvert.dev/edge": "", "node-restriction.kubernetes.io/culvert-edge": ""},
        "annotations": {"culvert.dev/ports": "443, 6443", "culvert.dev/zone": "plant.example"}
    });
    let mut written = node(metadata, &[("InternalIP", "10.0.3.7")]);
    let read = reduced(written.clone());
    assert_eq!(
        (&edge(&read).ports, &edge(&read).zone),
        (&BTreeSet::from([10250]), &None)
    );
    for (problem, label) in read.problems.iter().zip(["culvert-ports", "culvert-zone"]) {
        assert!(
            problem.contains(label) && problem.contains("--trust-node-annotations"),
            "{problem}"
        );
    }
    let trusted = trusting(written.clone());
    assert_eq!(edge(&trusted).ports, BTreeSet::from([443, 6443, 10250]));
    assert!(edge(&trusted).zone.is_some() && trusted.problems.is_empty());

    for (said, steered) in [(10350, true), (443, false)] {
        written["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] = json!(said);
        let read = reduced(written.clone());
        assert_eq!(edge(&read).ports.contains(&said), steered, "{said}");
        assert_eq!(
            read.problems[0].contains("culvert-ports names it"),
            !steered,
            "{:?}",
            read.problems
        );
    }
}

#[test]
fn all_other_nodes_are_the_clouds() {
    let addresses = [
        ("ExternalIP", "198.51.100.9"),
        ("InternalIP", "10.0.0.1"),
        ("Hostname", "master-1"),
        ("InternalDNS", "master-1.example"),
        ("ExternalIP", "2001:db8::9"),
    ];
    let reduced = reduced(node(json!({"name": "master-1"}), &addresses));
    let others = [
        "198.51.100.9".parse().unwrap(),
        "2001:db8::9".parse().unwrap(),
    ]
    .into();
    let cloud = CloudNode {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        others,
    };
    let record = Record {
        kind: Kind::Cloud(cloud),
        pods: ["10.244.1.0/24".parse().unwrap()].into(),
    };
    assert_eq!(reduced.node, Some(("master-1".parse().unwrap(), record)));
    assert_eq!(reduced.problems, [""; 0]);
}

#[test]
fn ranges_of_a_nodes_pods_are_no_more_than_that() {
    let spec = |spec: Value| reduced(json!({"metadata": {"name": "m"}, "spec": spec}));
    let both =
        spec(json!({"podCIDR": "10.244.1.9/24", "podCIDRs": ["10.244.1.0/24", "fd00:244:1::/64"]}));
    let ranges: Vec<String> = both
        .node
        .unwrap()
        .1
        .pods
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        (ranges, both.problems),
        (
            vec!["10.244.1.0/24".into(), "fd00:244:1::/64".into()],
            vec![]
        )
    );
    let all = spec(json!({"podCIDRs": ["10.0.0.0/19", "fd00::/55", "ten"]}));
    assert!(all.node.unwrap().1.pods.is_empty());
    for (problem, said) in all.problems.iter().zip([
        "10.0.0.0/19 is too wide",
        "fd00::/55 is too",
        "\"ten\" is no",
    ]) {
        assert!(problem.contains(said), "{problem}");
    }
}

#[test]
fn what_makes_no_sense_is_left_out_and_named() {
    let labels = json!({
        "node-restriction.kubernetes.io/culvert-edge": "true",
        "node-restriction.kubernetes.io/culvert-ports": "80.http",
        "node-restriction.kubernetes.io/culvert-zone": "no_zone"});
    let metadata = json!({"name": "edge-1", "labels": labels});
    let addresses = [
        ("InternalIP", "ten"),
        ("InternalIP", "127.0.0.1"),
        ("InternalIP", "10.0.3.7"),
    ];
    let reduced = reduced(node(metadata, &addresses));
    assert_eq!(
        (
            edge(&reduced).addresses.len(),
            edge(&reduced).ports.len(),
            &edge(&reduced).zone
        ),
        (1, 1, &None)
    );
    for (problem, said) in reduced.problems.iter().zip([
        "\"ten\" is no",
        "127.0.0.1 is a loopback",
        "\"http\"",
        "\"no_zone\"",
    ]) {
        assert!(problem.contains(said), "{problem}");
    }
    assert_eq!(reduced.problems.len(), 4);
    let many: Vec<String> = (0..20).map(|last| format!("10.0.3.{last}")).collect();
    let many: Vec<(&str, &str)> = many
        .iter()
        .map(|address| ("InternalIP", address.as_str()))
        .collect();
    assert!(self::reduced(node(json!({"name": "m"}), &many)).problems[0].contains("more than 16"));
}

#[test]
fn a_node_that_has_no_status_yet_is_a_node_without_addresses() {
    for value in [
        json!({"metadata": {"name": "m"}}),
        json!({"metadata": {"name": "m"}, "status": {"addresses": null}}),
    ] {
        let record = Record {
            kind: Kind::Cloud(CloudNode::default()),
            pods: BTreeSet::new(),
        };
        assert_eq!(reduced(value).node, Some(("m".parse().unwrap(), record)));
    }
    assert_eq!(
        reduced(json!({"metadata": {"name": "10.0.0.1"}})).node,
        None
    );
}

#[test]
fn a_heartbeat_changes_nothing_of_the_record() {
    let before = node(
        json!({"name": "m", "resourceVersion": "1"}),
        &[("InternalIP", "10.0.0.1")],
    );
    let mut after = before.clone();
    after["metadata"]["resourceVersion"] = json!("2");
    after["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-11-21T00:05:00Z");
    assert_eq!(reduced(before), reduced(after));
}
