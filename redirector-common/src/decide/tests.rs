//! Tests of the decisions, one claim each.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::string::ToString;

use super::*;
use crate::Prefix;

const LEASE: u64 = 1_000;

fn config() -> Config {
    let mut config = Config {
        offline_lease_ns: LEASE,
        mark: 0x2000,
        mark_mask: 0x2000,
        port_count: 4,
        intercept4: "10.9.0.1".parse::<std::net::IpAddr>().unwrap().into(),
        intercept6: "fd09::1".parse::<std::net::IpAddr>().unwrap().into(),
        vip4: Prefix::new("198.18.0.0".parse().unwrap(), 15),
        vip6: Prefix::new("fd12:3456::".parse().unwrap(), 64),
        ..Config::default()
    };
    for (slot, port) in config.ports.iter_mut().zip(7410_u16..7414) {
        *slot = port.to_be();
    }
    config
}

fn endpoint(text: &str) -> Endpoint {
    text.parse::<SocketAddr>().unwrap().into()
}

fn table() -> HashMap<DestinationKey, DestinationValue> {
    HashMap::from([
        (
            DestinationKey::exact(endpoint("10.0.3.7:10250")),
            DestinationValue::ONLINE_VALUE,
        ),
        (
            DestinationKey::exact(endpoint("10.0.3.8:10250")),
            DestinationValue::OFFLINE_VALUE,
        ),
        (
            DestinationKey::exact(endpoint("[fd00::7]:10250")),
            DestinationValue::ONLINE_VALUE,
        ),
        (
            DestinationKey::vip(endpoint("198.18.0.2:0").addr),
            DestinationValue::OFFLINE_VALUE,
        ),
    ])
}

fn decide_with(config: &Config, dst: &str, mark: u32, now: u64) -> Verdict {
    let table = table();
    decide(
        config,
        &Connect {
            dst: endpoint(dst),
            mark,
            reach: SocketReach::Node,
            has_source_port: false,
        },
        |key| table.get(key).copied(),
        || now,
    )
}

fn decide_for(dst: &str) -> Verdict {
    decide_with(&config(), dst, 0, 0)
}

#[track_caller]
fn steered_to(verdict: Verdict) -> SocketAddr {
    let Verdict::Steer(steer) = verdict else {
        panic!("not steered: {verdict:?}")
    };
    steer.to.socket_addr()
}

#[test]
fn an_edge_address_is_steered_to_the_intercept_address_of_its_family() {
    assert_eq!(
        steered_to(decide_for("10.0.3.7:10250")).ip().to_string(),
        "10.9.0.1"
    );
    assert_eq!(
        steered_to(decide_for("[fd00::7]:10250")).ip().to_string(),
        "fd09::1"
    );
    assert!((7410..7414).contains(&steered_to(decide_for("10.0.3.7:10250")).port()));
}

#[test]
fn a_client_that_reaches_loopback_addresses_is_steered_to_the_one_of_its_destination() {
    let decide_for = |dst: &str| {
        let connect = Connect {
            dst: endpoint(dst),
            mark: 0,
            reach: SocketReach::Loopback,
            has_source_port: true,
        };
        let table = table();
        decide(&config(), &connect, |key| table.get(key).copied(), || 0)
    };
    let kubelet = steered_to(decide_for("10.0.3.7:10250"));
    assert_eq!(
        Addr::from(kubelet.ip()),
        loopback(endpoint("10.0.3.7:10250"))
    );
    assert!((7410..7414).contains(&kubelet.port()));
    assert_ne!(
        kubelet.ip(),
        steered_to(decide_for("198.18.0.1:10250")).ip()
    );
    assert_eq!(
        steered_to(decide_for("[fd00::7]:10250")).ip().to_string(),
        "fd09::1",
        "IPv6 has one loopback address"
    );
    assert_eq!(
        decide_for(&kubelet.to_string()),
        Verdict::Pass(Pass::Intercept)
    );
    assert_eq!(
        decide_for("127.64.0.1:9100"),
        Verdict::Pass(Pass::Unmatched)
    );
}

#[test]
fn a_mapped_destination_is_an_ipv4_destination() {
    assert_eq!(
        decide_for("[::ffff:10.0.3.7]:10250"),
        decide_for("10.0.3.7:10250")
    );
}

#[test]
fn another_port_of_an_edge_address_passes() {
    assert_eq!(decide_for("10.0.3.7:22"), Verdict::Pass(Pass::Unmatched));
}

#[test]
fn every_port_of_the_vip_range_is_steered_even_when_no_node_has_the_vip() {
    steered_to(decide_for("198.18.0.1:1"));
    steered_to(decide_for("198.19.255.255:65535"));
    steered_to(decide_for("[fd12:3456::1]:443"));
}

#[test]
fn a_marked_socket_is_exempt_and_a_mask_of_zero_exempts_none() {
    assert_eq!(
        decide_with(&config(), "10.0.3.7:10250", 0x2001, 0),
        Verdict::Pass(Pass::Exempt)
    );
    let unmarked = Config {
        mark: 0,
        mark_mask: 0,
        ..config()
    };
    steered_to(decide_with(&unmarked, "10.0.3.7:10250", 0, 0));
}

#[test]
fn an_offline_node_is_refused_while_the_lease_lasts_and_steered_afterwards() {
    for dst in ["10.0.3.8:10250", "198.18.0.2:9100"] {
        assert_eq!(
            decide_with(&config(), dst, 0, LEASE - 1),
            Verdict::Reject(Reject::Offline)
        );
        steered_to(decide_with(&config(), dst, 0, LEASE));
    }
}

#[test]
fn a_family_without_an_intercept_address_is_refused() {
    let v4_only = Config {
        intercept6: Addr::NONE,
        ..config()
    };
    assert_eq!(
        decide_with(&v4_only, "[fd00::7]:10250", 0, 0),
        Verdict::Reject(Reject::NoIntercept)
    );
    let no_port = Config {
        port_count: 0,
        ..config()
    };
    assert_eq!(
        decide_with(&no_port, "10.0.3.7:10250", 0, 0),
        Verdict::Reject(Reject::NoIntercept)
    );
}

#[test]
fn a_connect_to_the_proxy_passes() {
    assert_eq!(decide_for("10.9.0.1:7411"), Verdict::Pass(Pass::Intercept));
}

#[test]
fn a_connect_that_passes_removes_what_an_earlier_one_stored() {
    for pass in [Pass::Intercept, Pass::Unmatched, Pass::Exempt] {
        assert_eq!(pass.storage(), Storage::Remove);
    }
}

#[test]
fn a_configuration_never_written_steers_nothing() {
    let zeroed = Config {
        version: 0,
        vip4: Prefix {
            addr: Addr::NONE,
            mask: Addr::NONE,
        },
        ..config()
    };
    assert_eq!(
        decide_with(&zeroed, "10.0.3.7:10250", 0, 0),
        Verdict::Pass(Pass::Unconfigured)
    );
}

#[test]
fn destinations_spread_over_all_ports() {
    let config = config();
    let mut counts = HashMap::<u16, u32>::new();
    for host in 0..=255_u8 {
        for port in [10250, 9100] {
            let dst = SocketAddr::from(([10, 0, 3, host], port));
            *counts
                .entry(u16::from_be(spread(&config, dst.into())))
                .or_default() += 1;
        }
    }
    assert_eq!(counts.len(), 4);
    assert!(
        counts.values().all(|count| *count > 64),
        "uneven: {counts:?}"
    );
}

#[test]
fn a_client_with_a_source_port_is_left_to_nftables_while_that_is_vouched_for() {
    let config = Config {
        offline_lease_ns: 100,
        nftables: 1,
        ..config()
    };
    let decide_at = |now: u64, dst: &str, reach: SocketReach, has_source_port: bool| {
        let connect = Connect {
            dst: endpoint(dst),
            mark: 0,
            reach,
            has_source_port,
        };
        let table = table();
        decide(&config, &connect, |key| table.get(key).copied(), || now)
    };
    let left = Verdict::Pass(Pass::ToNftables);
    assert_eq!(
        decide_at(50, "10.0.3.7:10250", SocketReach::Node, true),
        left
    );
    assert_eq!(
        decide_at(50, "[fd00::7]:10250", SocketReach::Loopback, true),
        left
    );
    let steered = [
        decide_at(50, "10.0.3.7:10250", SocketReach::Node, false),
        decide_at(50, "10.0.3.7:10250", SocketReach::Loopback, true),
        decide_at(100, "10.0.3.7:10250", SocketReach::Node, true),
    ];
    for verdict in steered {
        assert!(matches!(verdict, Verdict::Steer(_)), "{verdict:?}");
    }
    assert_eq!(
        decide_at(50, "198.18.0.2:80", SocketReach::Node, true),
        Verdict::Reject(Reject::Offline)
    );
}
