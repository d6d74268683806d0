//! The explanations, one claim each.

use super::*;
use crate::bpf::kernel_config;
use crate::config::{Intercept, NodeIps};
use crate::directory::examples;
use crate::plan::{Freshness, plan};

/// The kernel as the redirector would have filled it, with or without a lease.
fn kernel(address: &str, lease: u64) -> Kernel {
    let directory = examples::directory();
    let plan = plan(&directory, Freshness::Live);
    let node = NodeIps { v4: Some("10.9.0.1".parse().unwrap()), v6: None };
    let config = kernel_config(&Intercept { node, ports: vec![7410], mark: 0 }, directory.ranges);
    let address: SocketAddr = address.parse().unwrap();
    let destination = if directory.ranges.contains(address.ip()) {
        Destination::Vip(address.ip())
    } else {
        Destination::Edge(address)
    };
    let value = plan.destinations.get(&destination).map(|liveness| liveness.value());
    Kernel { config: KernelConfig { offline_lease_ns: lease, ..config }, value, now_ns: 100 }
}

fn hooks(address: &str, lease: u64) -> String {
    by_hooks(Some(&kernel(address, lease)), Attachment::Attached, address.parse().unwrap())
}

fn directory(address: &str) -> String {
    by_directory(&examples::directory(), address.parse().unwrap())
}

fn resolved(destination: &str) -> Result<Vec<String>> {
    let zone = "edge.internal".parse().unwrap();
    let addresses = resolve(&examples::directory(), &zone, destination)?;
    Ok(addresses.iter().map(ToString::to_string).collect())
}

#[test]
fn a_name_is_explained_by_its_vips() {
    let expected = ["198.18.0.1:0", "[fd12:3456:789a:bcde::1]:0"];
    for name in ["edge-1", "edge-1.edge.internal", "Edge-1.Edge.Internal."] {
        assert_eq!(resolved(name).unwrap(), expected, "{name}");
    }
    assert_eq!(resolved("edge-1:80").unwrap()[0], "198.18.0.1:80");
    assert_eq!(resolved("[::ffff:10.0.3.7]:9100").unwrap(), ["10.0.3.7:9100"]);
}

#[test]
fn what_is_neither_address_nor_node_is_named() {
    assert!(resolved("edge-9").unwrap_err().to_string().contains("no node edge-9"));
    assert!(resolved("edge-1:http").unwrap_err().to_string().contains("\"http\" is not a port"));
    assert!(resolved("10.0.3.7").unwrap_err().to_string().contains("10.0.3.7 needs a port"));
    assert!(resolved("fd00::7").unwrap_err().to_string().contains("needs a port"));
    assert!(resolved("a_b").unwrap_err().to_string().contains("neither IP:PORT nor a node's name"));
}

#[test]
fn the_hooks_verdict_is_the_programs_own() {
    assert_eq!(hooks("10.0.3.7:9100", 0), "steered to 10.9.0.1:7410");
    assert_eq!(hooks("10.0.3.7:22", 0), "passes: neither a VIP nor a port of an edge address");
    assert_eq!(hooks("10.9.0.1:7410", 0), "passes: this is the proxy's intercept listener");
    assert!(hooks("[fd00::7]:9100", 0).contains("no intercept address of this family"));
    assert_eq!(by_hooks(None, Attachment::Attached, "10.0.3.7:9100".parse().unwrap()), "not attached");
}

#[test]
fn an_offline_node_is_refused_while_somebody_vouches_for_it() {
    assert_eq!(hooks("198.18.0.3:80", 200), "refused with EHOSTUNREACH: its node is offline");
    assert!(hooks("198.18.0.3:80", 50).starts_with("steered to 10.9.0.1:7410 (its node was offline"));
}

#[test]
fn the_directory_says_whose_address_it_is() {
    assert_eq!(directory("10.0.3.7:9100"), "address of edge-1");
    assert_eq!(directory("10.0.3.7:22"), "address of edge-1, steered on ports 9100, 10250 only");
    assert!(directory("192.168.1.10:9100").contains("several nodes (edge-2, edge-3)"));
    assert!(directory("10.0.0.1:9100").starts_with("address of edge-4, but never steered"));
    assert_eq!(directory("198.18.0.1:1"), "VIP of edge-1; every port");
    assert!(directory("198.18.9.9:1").contains("no node's"));
    assert_eq!(directory("8.8.8.8:53"), "not an edge node's address");
}

#[test]
fn a_detached_hook_steers_only_the_other_family() {
    let hook = |program, cgroup| Hook { program, link: Some(1), cgroup_id: Some(cgroup), ..Hook::default() };
    let hooks = [hook(SOCKOPS, 1), hook(CONNECT4, 0), hook(CONNECT6, 1)];
    assert_eq!(attachment(&hooks, "10.0.3.7:9100".parse().unwrap()), Attachment::Detached);
    assert_eq!(attachment(&hooks, "[fd00::7]:9100".parse().unwrap()), Attachment::Attached);
    assert_eq!(
        by_hooks(Some(&kernel("10.0.3.7:9100", 0)), Attachment::Detached, "10.0.3.7:9100".parse().unwrap()),
        "not attached"
    );
}
