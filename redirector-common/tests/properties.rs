//! Properties of the kernel programs' decisions for every configuration, table of destinations and
//! connect.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use culvert_redirector_common::{
    Addr, Config, Connect, DestinationKey, DestinationValue, Endpoint, MAX_INTERCEPT_PORTS, Pass,
    Prefix, Reject, Role, SocketDst, SocketReach, Steer, Verdict, decide, loopback, spread,
};
use proptest::collection::{hash_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// The table that user space writes.
type Table = HashMap<DestinationKey, DestinationValue>;

/// A configured host with its table, and a connect.
#[derive(Clone, Debug)]
struct Scene {
    config: Config,
    vip4: (Ipv4Addr, u8),
    table: Table,
    connect: Connect,
    now: u64,
}

impl Scene {
    fn decide(&self) -> Verdict {
        decide(
            &self.config,
            &self.connect,
            |key| self.table.get(key).copied(),
            || self.now,
        )
    }

    fn dst(&self) -> SocketAddr {
        self.connect.dst.socket_addr()
    }

    fn is_vip(&self) -> bool {
        let addr = &self.connect.dst.addr;
        self.config.vip4.contains(addr) || self.config.vip6.contains(addr)
    }

    /// The table's entry for the destination, by user space's rules: a VIP by address, all others
    /// by address and port.
    fn listed(&self) -> Option<DestinationValue> {
        let Connect { dst, .. } = self.connect;
        let key = if self.is_vip() {
            DestinationKey::vip(dst.addr)
        } else {
            DestinationKey::exact(dst)
        };
        self.table.get(&key).copied()
    }

    fn is_exempt(&self) -> bool {
        let Config {
            mark, mark_mask, ..
        } = self.config;
        mark_mask != 0 && (self.connect.mark ^ mark) & mark_mask == 0
    }

    fn is_to_the_proxy(&self) -> bool {
        let Connect { dst, .. } = self.connect;
        let ports = &self.config.ports[..self.config.port_count as usize];
        [self.config.intercept4, self.config.intercept6].contains(&dst.addr)
            && ports.contains(&dst.port)
    }

    fn passes_before_the_table(&self) -> bool {
        self.is_exempt() || self.is_to_the_proxy()
    }
}

/// One of a few addresses, so that connects often match entries of the table; sometimes any
/// address.
fn ip() -> impl Strategy<Value = IpAddr> {
    let near4 = (0..4_u8, 0..4_u8).prop_map(|(net, host)| IpAddr::from([10, 0, net, host]));
    let vip4 =
        (0..4_u8, any::<u8>()).prop_map(|(net, host)| IpAddr::from([198, 18 + net, 0, host % 8]));
    let near6 = (0..4_u16).prop_map(|host| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host]));
    let mapped = near4.clone().prop_map(|ip| match ip {
        IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => IpAddr::V6(v6),
    });
    prop_oneof![4 => near4, 2 => vip4, 3 => near6, 2 => mapped, 1 => any::<IpAddr>()]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![4 => select(vec![22_u16, 9100, 10250, 7410, 7411]), 1 => any::<u16>()]
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (ip(), port()).prop_map(SocketAddr::from)
}

fn config() -> impl Strategy<Value = (Config, (Ipv4Addr, u8))> {
    let ports = hash_set(
        prop_oneof![Just(7410_u16), Just(7411), 1..u16::MAX],
        1..=MAX_INTERCEPT_PORTS,
    );
    let intercept6 = option::of(Just("fd00::1".parse::<Ipv6Addr>().unwrap()));
    let mask = prop_oneof![Just(0_u32), Just(0x2000), any::<u32>()];
    (
        ports,
        intercept6,
        any::<u32>(),
        mask,
        8..=32_u8,
        0..1000_u64,
    )
        .prop_map(|(ports, v6, mark, mark_mask, length, lease)| {
            let vip4 = (Ipv4Addr::new(198, 18, 0, 0), length);
            let mut config = Config {
                offline_lease_ns: lease,
                mark,
                mark_mask,
                port_count: u16::try_from(ports.len()).unwrap(),
                intercept4: Ipv4Addr::new(10, 0, 0, 1).into(),
                intercept6: v6.map_or(Addr::NONE, |ip| IpAddr::V6(ip).into()),
                vip4: Prefix::new(vip4.0.into(), vip4.1),
                vip6: Prefix::new("fd12:3456::".parse().unwrap(), 64),
                ..Config::default()
            };
            for (slot, port) in config.ports.iter_mut().zip(ports) {
                *slot = port.to_be();
            }
            (config, vip4)
        })
}

/// Half of the connects match an entry of the table, and half of the sockets have the exempting
/// mark.
fn scene() -> impl Strategy<Value = Scene> {
    let value = prop_oneof![
        Just(DestinationValue::ONLINE_VALUE),
        Just(DestinationValue::OFFLINE_VALUE)
    ];
    let entries = vec((address(), any::<bool>(), value), 1..24);
    let dst = (any::<bool>(), any::<Index>(), address());
    let mark = option::of(any::<u32>());
    let reach = prop_oneof![Just(SocketReach::Loopback), Just(SocketReach::Node)];
    (config(), entries, dst, mark, reach, 0..2000_u64).prop_map(
        |((config, vip4), entries, dst, mark, reach, now)| {
            let (is_listed, index, other) = dst;
            let dst = if is_listed {
                index.get(&entries).0
            } else {
                other
            };
            let key = |address: SocketAddr, all_ports: bool| {
                let endpoint = Endpoint::from(address);
                if all_ports {
                    DestinationKey::vip(endpoint.addr)
                } else {
                    DestinationKey::exact(endpoint)
                }
            };
            let table = entries
                .into_iter()
                .map(|(address, all_ports, value)| (key(address, all_ports), value))
                .collect();
            let mark = mark.unwrap_or(config.mark);
            Scene {
                config,
                vip4,
                table,
                connect: Connect {
                    dst: dst.into(),
                    mark,
                    reach,
                    has_source_port: mark % 2 == 0,
                },
                now,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, max_global_rejects: 65_536, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_neither_listed_nor_a_vip_always_passes(scene in scene()) {
        prop_assume!(!scene.is_vip() && scene.listed().is_none());
        prop_assert!(matches!(scene.decide(), Verdict::Pass(_)), "{:?}", scene.decide());
    }

    #[test]
    fn what_is_listed_or_a_vip_never_passes_by_itself(scene in scene()) {
        prop_assume!((scene.is_vip() || scene.listed().is_some()) && !scene.passes_before_the_table());
        prop_assert!(!matches!(scene.decide(), Verdict::Pass(_)), "an edge address must never be \
            dialled for real");
    }

    #[test]
    fn an_exempt_socket_is_neither_steered_nor_refused(scene in scene()) {
        prop_assume!(scene.is_exempt());
        prop_assert_eq!(scene.decide(), Verdict::Pass(Pass::Exempt));
    }

    #[test]
    fn a_mask_of_zero_exempts_nobody(mut scene in scene()) {
        scene.config.mark_mask = 0;
        prop_assert_ne!(scene.decide(), Verdict::Pass(Pass::Exempt));
    }

    #[test]
    fn a_steered_connect_goes_to_a_configured_port_of_an_own_address_of_its_family(scene in scene()) {
        if let Verdict::Steer(Steer { to }) = scene.decide() {
            let own = match (scene.dst().is_ipv4(), scene.connect.reach) {
                (false, _) => scene.config.intercept6,
                (true, SocketReach::Node) => scene.config.intercept4,
                (true, SocketReach::Loopback) => loopback(scene.connect.dst),
            };
            prop_assert_eq!(to.addr, own);
            prop_assert!(scene.config.ports[..scene.config.port_count as usize].contains(&to.port));
            prop_assert_ne!(to.port, 0);
        }
    }

    #[test]
    fn what_was_steered_once_passes_a_second_hook(scene in scene()) {
        if let Verdict::Steer(Steer { to }) = scene.decide() {
            let again = Scene { connect: Connect { dst: to, ..scene.connect }, ..scene };
            prop_assert_eq!(again.decide(), Verdict::Pass(Pass::Intercept));
        }
    }

    #[test]
    fn a_mapped_destination_is_decided_like_its_ipv4_one(scene in scene()) {
        if let SocketAddr::V4(v4) = scene.dst() {
            let mapped = SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()));
            let in_v4_hook = Endpoint { addr: Addr::from_v4_word(u32::from_ne_bytes(v4.ip().octets())), port: v4.port().to_be() };
            for dst in [mapped.into(), in_v4_hook] {
                let other = Scene { connect: Connect { dst, ..scene.connect }, ..scene.clone() };
                prop_assert_eq!(other.decide(), scene.decide());
            }
        }
    }

    #[test]
    fn a_node_is_refused_as_offline_exactly_while_its_flag_and_the_lease_hold(scene in scene()) {
        let flagged = scene.listed().is_some_and(|value| value.is_offline());
        let expected = flagged && scene.now < scene.config.offline_lease_ns && !scene.passes_before_the_table();
        prop_assert_eq!(scene.decide() == Verdict::Reject(Reject::Offline), expected);
    }

    #[test]
    fn a_family_without_an_intercept_address_is_never_steered(mut scene in scene()) {
        (scene.config.intercept4, scene.config.intercept6) = (Addr::NONE, Addr::NONE);
        prop_assert!(!matches!(scene.decide(), Verdict::Steer(_)), "{:?}", scene.decide());
    }

    #[test]
    fn the_table_is_asked_at_most_once_and_a_port_only_for_what_is_no_vip(scene in scene()) {
        let asked = RefCell::new(Vec::new());
        let look = |key: &DestinationKey| { asked.borrow_mut().push(*key); None };
        let _verdict = decide(&scene.config, &scene.connect, look, || scene.now);
        let asked = asked.into_inner();
        prop_assert!(asked.len() <= 1);
        for key in asked {
            prop_assert_eq!(key.addr, scene.connect.dst.addr);
            prop_assert_eq!(key.port, if scene.is_vip() { 0 } else { scene.connect.dst.port });
            prop_assert_eq!(key.zero, 0);
        }
    }

    #[test]
    fn programs_that_nobody_configured_touch_nothing(scene in scene()) {
        let config = Config { version: 0, ..scene.config };
        prop_assert_eq!(Scene { config, ..scene }.decide(), Verdict::Pass(Pass::Unconfigured));
    }

    #[test]
    fn a_destination_keeps_its_intercept_port(scene in scene()) {
        let port = spread(&scene.config, scene.connect.dst);
        prop_assert!(scene.config.ports[..scene.config.port_count as usize].contains(&port));
        prop_assert_eq!(spread(&scene.config, scene.dst().into()), port, "however its address is \
            written");
    }

    #[test]
    fn a_range_contains_what_shares_its_leading_bits(scene in scene()) {
        let (network, length) = scene.vip4;
        let expected = match scene.dst().ip() {
            IpAddr::V4(ip) => (ip.to_bits() ^ network.to_bits()).leading_zeros() >= u32::from(length),
            IpAddr::V6(_) => false,
        };
        prop_assert_eq!(scene.config.vip4.contains(&scene.connect.dst.addr), expected);
    }

    #[test]
    fn addresses_and_ports_come_back_as_they_went(address in any::<SocketAddr>()) {
        let canonical = SocketAddr::new(address.ip().to_canonical(), address.port());
        let endpoint = Endpoint::from(address);
        prop_assert_eq!(endpoint.socket_addr(), canonical);
        prop_assert_eq!(endpoint.port.to_ne_bytes(), address.port().to_be_bytes(), "network order");
        prop_assert_eq!(Addr::from_words(endpoint.addr.as_words()), endpoint.addr);
        prop_assert_eq!(endpoint.addr.is_v4(), canonical.is_ipv4());
        prop_assert_eq!(endpoint.addr.is_none(), canonical.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    }

    #[test]
    fn two_destinations_have_one_key_only_if_they_are_the_same(one in address(), other in address()) {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let key = |address: SocketAddr| DestinationKey::exact(address.into());
        prop_assert_eq!(key(one) == key(other), canonical(one) == canonical(other));
        prop_assert_eq!(Endpoint::from(one).addr.is(&Endpoint::from(other).addr), canonical(one).ip() == canonical(other).ip());
    }

    #[test]
    fn a_client_sees_what_it_dialled_and_the_proxy_gets_the_same(address in any::<SocketAddr>()) {
        let client = SocketDst::client(address.into());
        let dialled = SocketAddr::new(address.ip().to_canonical(), address.port());
        prop_assert_eq!(client.endpoint(Role::Client).map(|endpoint| endpoint.socket_addr()), Some(dialled));
        prop_assert_eq!(client.accepted().original_dst(), Some(dialled));
        prop_assert_eq!(client.original_dst(), None, "a client's socket is not an accepted one");
        prop_assert_eq!(client.accepted().endpoint(Role::Client), None, "whose peer is the true \
            client");
    }

    #[test]
    fn a_value_of_another_version_or_role_says_nothing(address in any::<SocketAddr>(), version: u8, role: u8) {
        let value = SocketDst { version, role, ..SocketDst::client(address.into()) };
        let known = version == SocketDst::VERSION;
        prop_assert_eq!(value.endpoint(Role::Client).is_some(), known && role == Role::Client as u8);
        prop_assert_eq!(value.endpoint(Role::Accepted).is_some(), known && role == Role::Accepted as u8);
    }
}
