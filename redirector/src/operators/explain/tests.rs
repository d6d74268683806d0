//! Tests of the explanations, one claim each.

use super::*;
use crate::config::{Intercept, NodeIps};
use crate::directory::examples;
use crate::mechanisms::bpf::kernel_config;
use crate::plan::{Freshness, plan};

/// The kernel's view after the redirector filled the maps, with the lease `lease`.
fn kernel(address: &str, lease: u64) -> KernelView {
    let directory = examples::directory();
    let plan = plan(&directory, Freshness::Live);
    let node = NodeIps {
        v4: Some("10.9.0.1".parse().unwrap()),
        v6: None,
    };
    let config = kernel_config(
        &Intercept {
            node,
            ports: vec![7410],
            mark: 0,
        },
        directory.ranges,
    );
    let address: SocketAddr = address.parse().unwrap();
    let destination = if directory.ranges.contains(address.ip()) {
        Destination::Vip(address.ip())
    } else {
        Destination::Edge(address)
    };
    let value = plan
        .destinations
        .get(&destination)
        .map(|liveness| liveness.value());
    KernelView {
        config: KernelConfig {
            offline_lease_ns: lease,
            ..config
        },
        value,
        reach: SocketReach::Node,
        now_ns: 100,
    }
}

fn hooked(address: &str, lease: u64) -> HookDecision {
    kernel(address, lease).decides(address.parse().unwrap())
}

fn hooks(address: &str, lease: u64) -> String {
    hooked(address, lease).to_string()
}

/// Parses `IP` or `IP:PORT`.
fn asked(text: &str) -> (IpAddr, Option<u16>) {
    let address = text
        .parse::<SocketAddr>()
        .map(|address| (address.ip(), Some(address.port())));
    address.unwrap_or_else(|_| (text.parse().unwrap(), None))
}

fn directory(text: &str) -> String {
    let (ip, port) = asked(text);
    DirectoryEntry::of(Some(&examples::directory()), ip, port).to_string()
}

fn fixed(text: &str, hooked: HookDecision, packets: &NftDecision) -> Option<String> {
    let directory = examples::directory();
    let zone = "edge.internal".parse().unwrap();
    let (ip, port) = asked(text);
    fix(
        &DirectoryEntry::of(Some(&directory), ip, port),
        hooked,
        packets,
        (ip, port),
        &zone,
    )
}

#[test]
fn a_name_is_explained_by_its_vips() {
    let directory = examples::directory();
    let zone = "edge.internal".parse().unwrap();
    let of = |name: &str| addresses(Some(&directory), &zone, &name.parse().unwrap());
    let expected: [IpAddr; 2] = [
        "198.18.0.1".parse().unwrap(),
        "fd12:3456:789a:bcde::1".parse().unwrap(),
    ];
    assert_eq!(of("edge-1").unwrap(), expected);
    assert_eq!(of("Edge-1.Edge.Internal.").unwrap(), expected);
    assert_eq!(
        of("edge-1.plant.example").unwrap(),
        expected,
        "its own zone, as DNS has it"
    );
    assert!(
        of("edge-3.plant.example").is_err(),
        "a zone of another node's"
    );
    for unknown in ["edge-9", "a_b"] {
        let error = of(unknown).unwrap_err().to_string();
        assert!(error.contains("no node of this name"), "{error}");
    }
}

#[test]
fn a_name_is_explained_as_dns_reads_it() {
    let mut directory = examples::directory();
    let first = directory.nodes[&"edge-1".parse().unwrap()].clone();
    let second = directory.nodes[&"edge-2".parse().unwrap()].clone();
    directory
        .nodes
        .insert("edge-1.edge.internal".parse().unwrap(), second);
    directory
        .nodes
        .insert("press.hall-2".parse().unwrap(), first);
    let zone = "edge.internal".parse().unwrap();
    let of = |name: &str| addresses(Some(&directory), &zone, &name.parse().unwrap());
    assert_eq!(of("edge-1").unwrap()[0].to_string(), "198.18.0.1");
    assert_eq!(
        of("edge-1.edge.internal").unwrap()[0].to_string(),
        "198.18.0.2",
        "the node with this whole name"
    );
    assert_eq!(of("press.hall-2.edge.internal").unwrap().len(), 2);
    let error = of("press.hall-2").unwrap_err().to_string();
    assert!(error.contains("press.hall-2.edge.internal"), "{error}");
    assert_eq!(of("master-1").unwrap()[0].to_string(), "10.0.0.1");
}

#[test]
fn the_hooks_verdict_is_the_programs_own() {
    assert_eq!(hooks("10.0.3.7:9100", 0), "steered to 10.9.0.1:7410");
    assert_eq!(
        hooks("10.0.3.7:22", 0),
        "passes: neither a VIP nor a port of an edge address"
    );
    assert_eq!(
        hooks("10.9.0.1:7410", 0),
        "passes: this is the proxy's intercept listener"
    );
    assert!(hooks("[fd00::7]:9100", 0).contains("no intercept address of this family"));
}

#[test]
fn where_a_client_of_the_host_is_steered_to_is_said_for_one_port_and_for_all() {
    let of_host = |address: &str| {
        let kernel = KernelView {
            reach: SocketReach::Loopback,
            ..kernel(address, 0)
        };
        kernel.decides(address.parse().unwrap()).to_string()
    };
    assert_eq!(of_host("198.18.0.1:9100"), "steered to 127.97.39.184:7410");
    assert_eq!(
        of_host("198.18.0.1:0"),
        "steered to 127.64.0.0/10, each port to an address of its own"
    );
}

#[test]
fn an_offline_node_is_refused_while_somebody_vouches_for_it() {
    assert_eq!(
        hooks("198.18.0.3:80", 200),
        "refused with EHOSTUNREACH: its node is offline"
    );
    assert!(
        hooks("198.18.0.3:80", 50).starts_with("steered to 10.9.0.1:7410 (its node was offline")
    );
}

#[test]
fn the_directory_says_whose_address_it_is() {
    assert_eq!(directory("10.0.3.7:9100"), "address of edge-1");
    assert_eq!(directory("10.0.3.7"), "address of edge-1");
    assert_eq!(
        directory("10.0.3.7:22"),
        "address of edge-1, steered on ports 9100, 10250 only"
    );
    assert!(directory("192.168.1.10:9100").contains("several nodes (edge-2, edge-3)"));
    assert!(directory("10.0.0.1:9100").starts_with("address of edge-4, but never steered"));
    assert_eq!(directory("198.18.0.1:1"), "VIP of edge-1; every port");
    assert!(directory("198.18.9.9:1").contains("no node's"));
    assert_eq!(directory("8.8.8.8"), "not an edge node's address");
}

#[test]
fn ports_of_which_the_same_is_said_share_a_line() {
    let lines = |told: &[(u16, &str)]| {
        grouped(
            told.iter()
                .map(|(port, text)| (*port, (*text).to_owned()))
                .collect(),
        )
        .collect::<Vec<_>>()
    };
    assert_eq!(lines(&[(80, "steered")]), ["steered"]);
    assert_eq!(
        lines(&[(80, "steered"), (81, "passes"), (82, "steered")]),
        ["steered (80, 82)", "passes (81)"]
    );
}

#[test]
fn what_comes_through_needs_no_fix() {
    for packets in [NftDecision::Steers(NftSet::Edges), NftDecision::NoTable] {
        assert_eq!(
            fixed("10.0.3.7:9100", hooked("10.0.3.7:9100", 0), &packets),
            None,
            "{packets}"
        );
    }
    assert_eq!(
        fixed(
            "10.0.3.7:9100",
            HookDecision::Absent,
            &NftDecision::Steers(NftSet::Edges)
        ),
        None,
        "nftables alone"
    );
}

#[test]
fn what_does_not_come_through_is_told_with_its_fix() {
    let steers = NftDecision::Steers(NftSet::Edges);
    for (address, packets, expected) in [
        (
            "8.8.8.8",
            &NftDecision::Passes,
            "culvert token create NODE --address 8.8.8.8`",
        ),
        (
            "198.18.9.9:1",
            &NftDecision::Steers(NftSet::Vips),
            "look the node's name up again",
        ),
        (
            "192.168.1.10:9100",
            &steers,
            "dial edge-2.edge.internal:9100 or edge-3.edge.internal:9100",
        ),
        (
            "10.0.0.1",
            &NftDecision::Passes,
            "dial edge-4.edge.internal",
        ),
        (
            "10.0.3.7:22",
            &NftDecision::Passes,
            "`culvert token create edge-1 --port 22,9100,10250`",
        ),
        (
            "198.18.0.3:80",
            &NftDecision::Steers(NftSet::Vips),
            "`culvert why edge-3` says why it is offline",
        ),
        (
            "[fd00::7]:9100",
            &NftDecision::Refuses(NftSet::Edges),
            "--node-ip",
        ),
    ] {
        let port = if asked(address).1.is_some() { "" } else { ":1" };
        let told = fixed(address, hooked(&format!("{address}{port}"), 200), packets).unwrap();
        assert!(told.contains(expected), "{address}: {told}");
    }
    for (hooked, packets) in [
        (HookDecision::Detached, &steers),
        (HookDecision::Absent, &NftDecision::NoTable),
        (hooked("198.18.0.3:80", 50), &steers),
    ] {
        let told = fixed("10.0.3.7:9100", hooked, packets).unwrap();
        assert!(
            told.starts_with("start culvert-redirector"),
            "{hooked} {packets}: {told}"
        );
    }
    let nothing = fix(
        &DirectoryEntry::Nothing,
        HookDecision::Absent,
        &NftDecision::NoTable,
        asked("10.0.3.7"),
        &"x".parse().unwrap(),
    );
    assert!(nothing.unwrap().starts_with("start culvert-redirector"));
}

#[test]
fn a_detached_hook_steers_only_the_other_family() {
    let hook = |program, cgroup| Hook {
        program,
        link: Some(1),
        cgroup_id: Some(cgroup),
        ..Hook::default()
    };
    let hooks = [hook(SOCKOPS, 1), hook(CONNECT4, 0), hook(CONNECT6, 1)];
    assert_eq!(
        attachment(&hooks, "10.0.3.7:9100".parse().unwrap()),
        Attachment::Detached
    );
    assert_eq!(
        attachment(&hooks, "[fd00::7]:9100".parse().unwrap()),
        Attachment::Attached
    );
}
