//! Tests of the answers, one claim each.

use super::*;
use crate::directory::examples;

fn both_families() -> NodeIps {
    NodeIps {
        v4: Some("10.9.0.1".parse().unwrap()),
        v6: Some("fd09::1".parse().unwrap()),
    }
}

fn origin() -> Origin {
    Origin::try_from(&"edge.internal".parse().unwrap()).unwrap()
}

fn ask_as(node: NodeIps, name: &str, kind: RecordType) -> Answer {
    answer(
        &examples::directory(),
        &origin(),
        node,
        &Name::from_ascii(name).unwrap(),
        kind,
    )
}

fn ask(name: &str, kind: RecordType) -> Answer {
    ask_as(both_families(), name, kind)
}

/// The records' data as text.
fn data(answer: &Answer) -> Vec<String> {
    answer
        .answers
        .iter()
        .map(|record| record.data.to_string())
        .collect()
}

#[track_caller]
fn assert_negative(answer: &Answer, code: ResponseCode, apex: &str) {
    assert_eq!((answer.code, data(answer)), (code, vec![]));
    let soa = answer
        .soa
        .as_ref()
        .expect("an SOA, so that the answer may be kept");
    assert_eq!(soa.name.to_ascii(), apex);
}

#[test]
fn a_node_has_its_vips_with_and_without_the_zone() {
    for name in ["edge-1.", "edge-1.edge.internal."] {
        assert_eq!(data(&ask(name, RecordType::A)), ["198.18.0.1"], "{name}");
        assert_eq!(
            data(&ask(name, RecordType::AAAA)),
            ["fd12:3456:789a:bcde::1"],
            "{name}"
        );
        assert_eq!(data(&ask(name, RecordType::ANY)).len(), 2, "{name}");
    }
}

#[test]
fn a_family_that_cannot_be_steered_has_no_addresses() {
    let v4_only = NodeIps {
        v6: None,
        ..both_families()
    };
    assert_negative(
        &ask_as(v4_only, "edge-1.edge.internal.", RecordType::AAAA),
        ResponseCode::NoError,
        "edge.internal.",
    );
    assert_eq!(
        data(&ask_as(v4_only, "edge-1.edge.internal.", RecordType::A)),
        ["198.18.0.1"]
    );
}

#[test]
fn inside_the_zone_what_is_not_there_does_not_exist() {
    for name in [
        "edge-9.edge.internal.",
        "x.edge-1.edge.internal.",
        "_srv.edge.internal.",
    ] {
        assert_negative(
            &ask(name, RecordType::A),
            ResponseCode::NXDomain,
            "edge.internal.",
        );
    }
}

#[test]
fn a_type_that_a_node_has_not_is_no_data() {
    assert_negative(
        &ask("edge-1.edge.internal.", RecordType::TXT),
        ResponseCode::NoError,
        "edge.internal.",
    );
    assert_negative(
        &ask("edge-1.", RecordType::MX),
        ResponseCode::NoError,
        "edge-1.",
    );
}

#[test]
fn foreign_and_unknown_bare_names_are_refused() {
    for name in [
        "edge-9.",
        "example.com.",
        "internal.",
        "edge-1.internal.",
        ".",
    ] {
        assert_eq!(ask(name, RecordType::A), refusal(), "{name}");
    }
}

#[test]
fn the_zone_has_an_soa_with_the_revision_as_its_serial() {
    let soa = ask("edge.internal.", RecordType::SOA);
    assert_eq!(
        data(&soa),
        ["ns.edge.internal. hostmaster.edge.internal. 7 3600 600 86400 5"]
    );
    assert_negative(
        &ask("edge.internal.", RecordType::A),
        ResponseCode::NoError,
        "edge.internal.",
    );
}

#[test]
fn a_vip_has_its_nodes_name() {
    assert_eq!(
        data(&ask("1.0.18.198.in-addr.arpa.", RecordType::PTR)),
        ["edge-1.edge.internal."]
    );
    let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.e.d.c.b.a.9.8.7.6.5.4.3.2.1.d.f.ip6.arpa.";
    assert_eq!(data(&ask(v6, RecordType::PTR)), ["edge-1.edge.internal."]);
}

#[test]
fn a_vip_of_no_node_does_not_exist_and_other_addresses_are_refused() {
    assert_negative(
        &ask("9.9.18.198.in-addr.arpa.", RecordType::PTR),
        ResponseCode::NXDomain,
        "18.198.in-addr.arpa.",
    );
    assert_negative(
        &ask("0.18.198.in-addr.arpa.", RecordType::PTR),
        ResponseCode::NoError,
        "18.198.in-addr.arpa.",
    );
    for name in [
        "7.3.0.10.in-addr.arpa.",
        "198.in-addr.arpa.",
        "in-addr.arpa.",
    ] {
        assert_eq!(ask(name, RecordType::PTR), refusal(), "{name}");
    }
}

#[test]
fn a_nodes_own_zone_has_that_node_and_no_other() {
    assert_eq!(
        data(&ask("edge-1.plant.example.", RecordType::A)),
        ["198.18.0.1"]
    );
    assert_negative(
        &ask("edge-1.plant.example.", RecordType::MX),
        ResponseCode::NoError,
        "edge-1.plant.example.",
    );
    for name in [
        "edge-2.plant.example.",
        "edge-1.other.example.",
        "plant.example.",
        "x.edge-1.plant.example.",
    ] {
        assert_eq!(ask(name, RecordType::A), refusal(), "{name}");
    }
}

#[test]
fn a_cloud_node_has_its_own_addresses_in_all_zones_whatever_can_be_steered() {
    let nothing_steered = NodeIps { v4: None, v6: None };
    for name in [
        "master-1.",
        "master-1.edge.internal.",
        "master-1.plant.example.",
    ] {
        assert_eq!(
            data(&ask_as(nothing_steered, name, RecordType::A)),
            ["10.0.0.1"],
            "{name}"
        );
        assert_eq!(data(&ask(name, RecordType::AAAA)), ["fd00::1"], "{name}");
    }
    assert_eq!(ask("master-1.other.example.", RecordType::A), refusal());
    assert_eq!(ask("1.0.0.10.in-addr.arpa.", RecordType::PTR), refusal());
}

#[test]
fn a_cloud_nodes_name_with_dots_is_answered_inside_the_zone_only() {
    let mut directory = examples::directory();
    directory.clouds.insert(
        "registry.example.com".parse().unwrap(),
        vec!["10.0.0.9".parse().unwrap()],
    );
    let ask = |name: &str| {
        answer(
            &directory,
            &origin(),
            both_families(),
            &Name::from_ascii(name).unwrap(),
            RecordType::A,
        )
    };
    assert_eq!(ask("registry.example.com."), refusal());
    assert_eq!(
        data(&ask("registry.example.com.edge.internal.")),
        ["10.0.0.9"]
    );
    assert_eq!(
        data(&ask("registry.example.com.plant.example.")),
        ["10.0.0.9"]
    );
}

#[test]
fn a_name_above_a_node_exists_without_records() {
    let mut directory = examples::directory();
    let edge = directory.nodes[&"edge-1".parse().unwrap()].clone();
    directory
        .nodes
        .insert("press.hall-2".parse().unwrap(), edge);
    let ask = |name: &str| {
        answer(
            &directory,
            &origin(),
            both_families(),
            &Name::from_ascii(name).unwrap(),
            RecordType::A,
        )
    };
    assert_eq!(data(&ask("press.hall-2.edge.internal.")), ["198.18.0.1"]);
    assert_negative(
        &ask("hall-2.edge.internal."),
        ResponseCode::NoError,
        "edge.internal.",
    );
    assert_negative(
        &ask("2.edge.internal."),
        ResponseCode::NXDomain,
        "edge.internal.",
    );
}

/// The example's directory with more nodes like edge-2.
fn with_edges(names: &[&str]) -> Directory {
    let mut directory = examples::directory();
    let edge = directory.nodes[&"edge-2".parse().unwrap()].clone();
    for name in names {
        directory.nodes.insert(name.parse().unwrap(), edge.clone());
    }
    directory
}

fn asked(directory: &Directory, name: &str) -> Answer {
    let name = Name::from_ascii(name).unwrap();
    answer(directory, &origin(), both_families(), &name, RecordType::A)
}

#[test]
fn a_nodes_whole_name_comes_before_the_name_without_the_zone() {
    let directory = with_edges(&["edge-1.edge.internal", "edge-7.edge.internal"]);
    for name in [
        "edge-1.edge.internal.",
        "edge-7.edge.internal.",
        "edge-7.edge.internal.edge.internal.",
    ] {
        assert_eq!(data(&asked(&directory, name)), ["198.18.0.2"], "{name}");
    }
    assert_eq!(data(&asked(&directory, "edge-1.")), ["198.18.0.1"]);
    assert_eq!(asked(&directory, "edge-7."), refusal());
}

#[test]
fn names_that_mean_something_else_are_not_answered() {
    let directory = with_edges(&["localhost", "press.hall-2", "registry.example.com", "10.1"]);
    for name in [
        "localhost.",
        "press.hall-2.",
        "registry.example.com.",
        "10.1.",
    ] {
        assert_eq!(asked(&directory, name), refusal(), "{name}");
    }
    assert_negative(
        &asked(&directory, "localhost.edge.internal."),
        ResponseCode::NXDomain,
        "edge.internal.",
    );
    for name in ["press.hall-2", "registry.example.com", "10.1"] {
        let name = format!("{name}.edge.internal.");
        assert_eq!(data(&asked(&directory, &name)), ["198.18.0.2"], "{name}");
    }
}

#[test]
fn a_dot_inside_a_label_is_no_dot_between_labels() {
    let directory = with_edges(&["press.hall-2"]);
    assert_negative(
        &asked(&directory, "press\\.hall-2.edge.internal."),
        ResponseCode::NXDomain,
        "edge.internal.",
    );
}

#[test]
fn the_name_of_a_vip_leads_back_to_it() {
    let mut directory = with_edges(&["edge-1.edge.internal"]);
    directory.nodes.remove(&"edge-2".parse().unwrap());
    let pointer = |name: &str| {
        let name = Name::from_ascii(name).unwrap();
        data(&answer(
            &directory,
            &origin(),
            both_families(),
            &name,
            RecordType::PTR,
        ))
    };
    assert_eq!(pointer("1.0.18.198.in-addr.arpa."), ["edge-1."]);
    assert_eq!(
        pointer("2.0.18.198.in-addr.arpa."),
        ["edge-1.edge.internal."]
    );
}
