//! The resolution of destinations, and the differences between views.

use super::*;
use crate::clock::UnixTime;

fn view(nodes: &[(&str, &[&str])]) -> View {
    let node = |(name, addresses): &(&str, &[&str])| {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        (
            name.parse().unwrap(),
            NodeSpec {
                addresses,
                ports: vec![9100],
                zone: Some("plant.example".parse().unwrap()),
                behind: Vec::new(),
            },
        )
    };
    let nodes: BTreeMap<NodeName, NodeSpec> = nodes.iter().map(node).collect();
    let protect = "10.96.0.0/12".parse().unwrap();
    let ranges = VipRanges::checked(
        "198.18.0.0/15".parse().unwrap(),
        "fd00:1::/64".parse().unwrap(),
        &[],
    )
    .unwrap();
    let vips = Vips::default()
        .reconciled(nodes.keys(), &ranges, UnixTime::now())
        .unwrap();
    let cloud = |address: &str| CloudNode {
        addresses: vec![address.parse().unwrap()],
        ..CloudNode::default()
    };
    View::new(&ViewInput {
        nodes: &nodes,
        source: &|_| Source::File,
        protected: &Protected {
            ranges: vec![protect],
            ..Protected::default()
        },
        vips: &vips,
        ranges,
        zone: &"Edge.Internal.".parse().unwrap(),
        localhost_ports: [10266].into(),
        left_out: BTreeSet::new(),
        clouds: Arc::new(
            [
                ("master-1".parse().unwrap(), cloud("10.0.0.1")),
                ("db.example".parse().unwrap(), cloud("10.0.0.2")),
            ]
            .into(),
        ),
    })
}

fn target(view: &View, destination: &str) -> (String, Option<String>, u16) {
    let target = view.resolve(&destination.parse().unwrap()).unwrap();
    (
        target.node.to_string(),
        target.address.map(|address| address.to_string()),
        target.port,
    )
}

fn refusal(view: &View, destination: &str) -> String {
    view.resolve(&destination.parse().unwrap())
        .unwrap_err()
        .to_string()
}

#[test]
fn an_address_leads_to_its_one_node_however_it_is_written() {
    let view = view(&[("edge-1", &["10.0.3.7", "2001:db8::7"])]);
    for dialled in ["10.0.3.7", "[::ffff:10.0.3.7]"] {
        assert_eq!(
            target(&view, &format!("{dialled}:80")),
            ("edge-1".into(), Some("10.0.3.7".into()), 80)
        );
    }
    assert_eq!(target(&view, "[2001:db8::7]:80").1.unwrap(), "2001:db8::7");
}

#[test]
fn a_vip_leads_to_its_node_on_any_port_and_keeps_the_family() {
    let view = view(&[
        ("edge-1", &["10.0.3.7", "2001:db8::7"]),
        ("edge-2", &["10.0.3.8"]),
        ("edge-3", &[]),
    ]);
    assert_eq!(
        target(&view, "198.18.0.1:4711"),
        ("edge-1".into(), Some("10.0.3.7".into()), 4711)
    );
    assert_eq!(target(&view, "[fd00:1::1]:1").1.unwrap(), "2001:db8::7");
    assert_eq!(target(&view, "[fd00:1::2]:1").1.unwrap(), "10.0.3.8");
    assert_eq!(target(&view, "198.18.0.3:1").1, None);
    assert!(refusal(&view, "198.18.0.4:1").contains("in the VIP range but no node has it"));
}

#[test]
fn names_are_bare_or_in_the_zone_in_any_case_with_or_without_the_dot() {
    let view = view(&[("edge-1", &["10.0.3.7"]), ("press.hall-2", &[])]);
    for name in [
        "edge-1",
        "EDGE-1.",
        "edge-1.edge.internal",
        "Edge-1.Edge.Internal.",
    ] {
        assert_eq!(target(&view, &format!("{name}:9100")).0, "edge-1", "{name}");
    }
    assert_eq!(
        target(&view, "press.hall-2.edge.internal:1").0,
        "press.hall-2"
    );
    for name in [
        "edge-2",
        "edge-1.example",
        "edge.internal",
        "edge-1edge.internal",
        "edge_1",
    ] {
        assert!(
            refusal(&view, &format!("{name}:1")).contains("the directory has 2 nodes"),
            "{name}"
        );
    }
}

#[test]
fn a_node_answers_to_its_own_zone_too_and_a_cloud_node_to_all() {
    let view = view(&[("edge-1", &["10.0.3.7"])]);
    assert_eq!(target(&view, "edge-1.plant.example:80").0, "edge-1");
    refusal(&view, "edge-1.other.example:80");
    let cloud = |text: &str| {
        view.cloud(&text.parse().unwrap())
            .map(|(node, address)| format!("{node} {address}"))
    };
    let found = Some("master-1 10.0.0.1:443".to_owned());
    for text in [
        "master-1:443",
        "Master-1.edge.internal.:443",
        "master-1.plant.example:443",
        "10.0.0.1:443",
    ] {
        assert_eq!(cloud(text), found, "{text}");
    }
    assert_eq!(
        cloud("db.example.edge.internal:5432").as_deref(),
        Some("db.example 10.0.0.2:5432")
    );
    for text in [
        "edge-1:443",
        "master-1.other.example:443",
        "10.0.3.7:443",
        "db.example:5432",
    ] {
        assert_eq!(cloud(text), None, "{text}");
    }
    refusal(&view, "master-1:443");
}

#[test]
fn localhost_ports_are_dialled_at_the_nodes_loopback_whatever_was_dialled() {
    let view = view(&[("edge-1", &["10.0.3.7"])]);
    for dialled in ["10.0.3.7", "198.18.0.1", "edge-1"] {
        assert_eq!(
            target(&view, &format!("{dialled}:10266")).1,
            None,
            "{dialled}"
        );
        assert_eq!(
            target(&view, &format!("{dialled}:9100")).1,
            Some("10.0.3.7".into()),
            "{dialled}"
        );
    }
}

#[test]
fn shared_and_protected_addresses_are_refused_and_their_names_work() {
    let view = view(&[
        ("edge-2", &["192.168.1.10"]),
        ("edge-3", &["192.168.1.10"]),
        ("edge-4", &["10.96.0.1"]),
    ]);
    assert_eq!(
        refusal(&view, "192.168.1.10:80"),
        "192.168.1.10 belongs to edge-2 and edge-3: use their names"
    );
    assert!(refusal(&view, "10.96.0.1:443").contains("protected range 10.96.0.0/12"));
    assert_eq!(
        target(&view, "edge-3:80"),
        ("edge-3".into(), Some("192.168.1.10".into()), 80)
    );
    assert!(refusal(&view, "10.1.1.1:80").contains("no edge node has the address 10.1.1.1"));
}

#[test]
fn a_second_owner_changes_both_nodes() {
    let before = view(&[("edge-2", &["192.168.1.10"]), ("edge-1", &["10.0.3.7"])]);
    let after = view(&[
        ("edge-2", &["192.168.1.10"]),
        ("edge-3", &["192.168.1.10"]),
        ("edge-1", &["10.0.3.7"]),
    ]);
    let names = |difference: &Difference| {
        difference
            .changed
            .iter()
            .map(|node| node.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&after.since(&before)), ["edge-2", "edge-3"]);
    let back = before.since(&after);
    assert_eq!(
        (names(&back), back.removed.len()),
        (vec!["edge-2".to_owned()], 1)
    );
    assert_eq!(after.since(&after), Difference::default());
}

#[test]
fn dns_and_connect_read_names_alike() {
    let view = view(&[
        ("edge-1", &["10.0.3.7"]),
        ("edge-1.edge.internal", &["10.0.3.8"]),
        ("edge-7.edge.internal", &[]),
        ("press.hall-x", &[]),
        ("localhost", &[]),
    ]);
    for (text, node) in [
        ("edge-1:80", "edge-1"),
        ("edge-1.edge.internal:80", "edge-1.edge.internal"),
        ("edge-7.edge.internal:80", "edge-7.edge.internal"),
        ("press.hall-x.edge.internal:80", "press.hall-x"),
    ] {
        assert_eq!(target(&view, text).0, node, "{text}");
    }
    let foreign = refusal(&view, "press.hall-x:80");
    assert!(foreign.contains("press.hall-x.edge.internal"), "{foreign}");
    let own = refusal(&view, "localhost:80");
    assert!(own.contains("by its address"), "{own}");
    refusal(&view, "edge-7:80");
    let exactly = Destination::Node("press.hall-x".parse().unwrap(), 80);
    assert_eq!(
        view.resolve(&exactly).unwrap().node.as_str(),
        "press.hall-x"
    );
    // An entry of --forward with a zone.
    let in_zone = Destination::Node("press.hall-x.edge.internal".parse().unwrap(), 80);
    assert_eq!(
        view.resolve(&in_zone).unwrap().node.as_str(),
        "press.hall-x"
    );
    let nobody = Destination::Node("edge-8.edge.internal".parse().unwrap(), 80);
    assert!(view.resolve(&nobody).is_err());
}

#[test]
fn a_node_is_dialled_at_its_other_family_and_loopback_too_and_an_address_alone() {
    let view = view(&[("edge-1", &["10.0.3.7", "10.0.3.8", "2001:db8::7"])]);
    let instead = |text: &str| {
        let target = view.resolve(&text.parse().unwrap()).unwrap();
        let instead = target.instead.iter().map(ToString::to_string);
        instead.collect::<Vec<_>>().join(" ")
    };
    for text in ["edge-1:9100", "198.18.0.1:9100"] {
        assert_eq!(instead(text), "2001:db8::7 127.0.0.1 ::1", "{text}");
    }
    assert_eq!(instead("[fd00:1::1]:9100"), "10.0.3.7 127.0.0.1 ::1");
    for text in ["10.0.3.7:9100", "[2001:db8::7]:9100", "edge-1:10266"] {
        assert_eq!(instead(text), "", "{text}");
    }
}
