//! The routes of VIPs and the addresses of the host.

use std::io;
use std::net::{TcpListener, TcpStream};

use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::proxy::Proxy;
use crate::redirector::{
    BOTH, EBPF, Redirector, daemon, get, installed, run, run_to_the_end, saved_directory,
};
use crate::world::{DEADLINE, NODE4, Netns, cable, eventually, in_a_world, sh};

#[test]
fn a_vip_never_leaves_a_host_or_reaches_its_services_when_nothing_steers_any_more() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        // A listener that would accept the packets if they left the host.
        let _elsewhere = world.outside.run(|| {
            sh(
                "ip addr add 198.18.0.1/32 dev lo && ip addr add fd12:3456:789a:bcde::1/128 dev lo \
                nodad",
            );
            ["198.18.0.1:80", "[fd12:3456:789a:bcde::1]:80"]
                .map(|vip| TcpListener::bind(vip).unwrap())
        });
        Redirector::start(world, &BOTH).kill();
        sh(&format!(
            "rm -r {}/culvert && nft flush ruleset",
            world.bpffs().display()
        ));
        // Nor does it reach a service that listens on all addresses of this host.
        let service = TcpListener::bind("[::]:80").unwrap();
        service.set_nonblocking(true).unwrap();
        for vip in ["198.18.0.1:80", "[fd12:3456:789a:bcde::1]:80"] {
            for place in [None, Some(&world.pods[0])] {
                let dial = || TcpStream::connect_timeout(&vip.parse().unwrap(), DEADLINE).map(drop);
                let refused = place.map_or_else(dial, |pod| pod.run(dial)).unwrap_err();
                assert_eq!(refused.kind(), std::io::ErrorKind::HostUnreachable, "{vip}");
            }
        }
        assert_eq!(
            service.accept().unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
    });
}

#[test]
fn a_range_of_vips_that_the_host_routes_is_refused_by_name() {
    in_a_world(|world| {
        sh("ip route add 198.18.3.0/24 dev up0");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let output = run_to_the_end(&mut daemon(world, &BOTH));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        let clash = "198.18.0.0/15 overlaps 198.18.3.0/24, which this host routes by up0 (ip \
            route show table 254)";
        assert!(
            error.contains(clash) && error.contains("(--vip4-range)"),
            "{error}"
        );
    });
}

#[test]
fn a_range_of_vips_that_the_host_routes_is_left_alone_by_a_saved_directory() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &BOTH).kill();
        let saved = std::fs::read(saved_directory(world)).unwrap();
        run(world, &["uninstall"]);
        std::fs::write(saved_directory(world), saved).unwrap();
        sh("ip route add 198.18.3.0/24 dev up0");
        let output = run_to_the_end(&mut daemon(world, &BOTH));
        assert!(!output.status.success());
        assert!(!sh(&format!("bpftool cgroup show {}", world.cgroup().display())).contains("cv_"));
    });
}

#[test]
fn an_interface_address_in_a_range_of_vips_is_refused_with_the_interface_and_the_flag() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        for (address, parts) in [
            (
                "198.18.7.1/24",
                [
                    "198.18.0.0/15 overlaps 198.18.7.1/32, this host's own on up0",
                    "(--vip4-range)",
                ],
            ),
            (
                "fd12:3456:789a:bcde::99/128",
                [
                    "fd12:3456:789a:bcde::/64 overlaps fd12:3456:789a:bcde::99/128, this host's \
                     own on up0",
                    "(--vip6-range)",
                ],
            ),
        ] {
            let is_v6 = address.contains("::");
            let family = if is_v6 { "-6" } else { "-4" };
            let nodad = if is_v6 { "nodad" } else { "" };
            sh(&format!("ip addr add {address} dev up0 {nodad}"));
            // The kernel makes an IPv6 address the host's own a moment later.
            let own = address.split('/').next().unwrap();
            eventually("the address is the host's own", || {
                sh(&format!("ip {family} route show table local {own}"))
                    .contains(own)
                    .then_some(())
            });
            let output = run_to_the_end(&mut daemon(world, &BOTH));
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success());
            for part in parts {
                assert!(error.contains(part), "no {part:?} in {error}");
            }
            sh(&format!("ip addr del {address} dev up0"));
        }
        let _redirector = Redirector::start(world, &BOTH);
    });
}

#[test]
fn routes_that_are_removed_come_back() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &EBPF);
        let is_back = || {
            sh("ip route show table local")
                .contains("198.18.0.0/15")
                .then_some(())
        };
        sh("ip route del 198.18.0.0/15 table local");
        eventually("the route is back", is_back);
        sh("ip link del culvert0");
        eventually("the route and its interface are back", is_back);
        eventually("both are counted", || {
            (installed()["repairs"]["routes"] == 2).then_some(())
        });
    });
}

#[test]
fn no_arp_request_for_a_vip_is_answered() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &EBPF);
        world.outside.run(|| {
            sh("ip route add 198.18.0.0/15 dev eth0 && echo > /dev/udp/198.18.0.77/9");
            // The request to the node's own address proves that such requests are answered.
            sh("echo > /dev/udp/10.9.0.1/9");
            let state = |ip: &str| sh(&format!("ip neigh show {ip}"));
            eventually("the node answers", || {
                state("10.9.0.1").contains("lladdr").then_some(())
            });
            eventually("nobody answers", || {
                state("198.18.0.77").contains("FAILED").then_some(())
            });
        });
    });
}

#[test]
fn an_interface_of_somebody_else_with_the_name_of_ours_is_left_alone_and_named() {
    in_a_world(|world| {
        sh("ip link add culvert0 type ifb");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start_unready(world, &EBPF);
        eventually("the cause", || {
            get("/readyz").filter(|text| text.contains("the interface culvert0 is there"))
        });
        assert!(sh("ip -d link show culvert0").contains("ifb"));
    });
}

#[test]
fn a_host_without_ipv6_steers_ipv4() {
    in_a_world(|world| {
        sh("for conf in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 > $conf; done");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &[&["--node-ip", NODE4], &BOTH[..]].concat());
        let proxy = std::net::TcpListener::bind("0.0.0.0:7410").unwrap();
        let _other = std::net::TcpListener::bind("0.0.0.0:7411").unwrap();
        let _client = TcpStream::connect("198.18.0.1:80").unwrap();
        drop(proxy);
    });
}

#[test]
fn an_intercept_address_that_the_host_loses_ends_the_redirector() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let mut command = daemon(world, &EBPF);
        let redirector = Redirector::spawn(command.stderr(std::process::Stdio::piped()));
        redirector.until_ready();
        sh("ip addr del 10.9.0.1/24 dev up0");
        let error = redirector.until_the_end();
        assert!(
            error.contains("10.9.0.1 is not an address of this host"),
            "{error}"
        );
    });
}

#[test]
fn an_address_that_is_lost_is_missed_where_programs_may_bind_any() {
    in_a_world(|world| {
        // keepalived sets this.
        std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").unwrap();
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let foreign = run_to_the_end(&mut daemon(world, &["--node-ip", "10.9.0.77"]));
        let error = String::from_utf8(foreign.stderr).unwrap();
        assert!(
            error.contains("10.9.0.77 is not an address of this host"),
            "{error}"
        );
        let mut command = daemon(world, &EBPF);
        let redirector = Redirector::spawn(command.stderr(std::process::Stdio::piped()));
        redirector.until_ready();
        sh("ip addr del 10.9.0.1/24 dev up0");
        let error = redirector.until_the_end();
        assert!(
            error.contains("10.9.0.1 is not an address of this host"),
            "{error}"
        );
    });
}

#[test]
fn an_address_of_a_family_that_had_none_is_taken_up_when_it_comes() {
    in_a_world(|world| {
        sh("ip -6 route del default && ip addr del fd09::1/64 dev up0");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::spawn(
            daemon(world, &["--mechanism", "both"]).env_remove("CULVERT_NODE_IP"),
        );
        redirector.until_ready();
        let proxy = Proxy::listen();
        let dial = || {
            let client = TcpStream::connect_timeout(&"[fd00::7]:9100".parse().unwrap(), DEADLINE);
            client.ok().and_then(|_client| proxy.try_accept())
        };
        assert!(dial().is_none());
        sh("ip addr add fd09::1/64 dev up0 nodad && ip -6 route add default via fd09::2");
        eventually("IPv6 is steered", dial);
        eventually("DNS is answered there", || {
            sh("ss -Hlun 'sport = 53'")
                .contains("[fd09::1]:53")
                .then_some(())
        });
    });
}

/// A host with this address on a network of the cloud host, 10.0.3.0/24.
fn neighbour(address: &str) -> Netns {
    let neighbour = Netns::new();
    cable(
        "net3",
        "10.0.3.1/24",
        "fd33::1/64",
        &neighbour,
        address,
        "fd33::2/64",
    );
    neighbour
}

/// Dials the address of edge-1.
pub(crate) fn dial() -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&"10.0.3.7:9100".parse().unwrap(), DEADLINE)
}

#[test]
fn an_edge_address_is_a_neighbours_while_this_host_has_a_network_there() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        let _steered = dial().unwrap();
        proxy.accept();

        let neighbour = neighbour("10.0.3.7/24");
        let server = neighbour.run(|| {
            sh("ip route add default via 10.0.3.1");
            TcpListener::bind("10.0.3.7:9100").unwrap()
        });
        server.set_nonblocking(true).unwrap();
        eventually("the neighbour is reached", || {
            let client = dial().ok()?;
            server
                .accept()
                .ok()
                .map(|accepted| drop((client, accepted)))
        });
        while proxy.try_accept().is_some() {}
        let pod = world.pods[0].run(dial).unwrap();
        drop((server.accept().unwrap(), pod));
        assert!(proxy.try_accept().is_none());
        let explained = run(world, &["explain", "10.0.3.7:9100"]);
        for part in ["never steered", "10.0.3.0/24", "net3", "dial edge-1"] {
            assert!(explained.contains(part), "no {part:?} in {explained}");
        }
        assert!(get("/debug/installed").is_some_and(|page| page.contains("10.0.3.7 of edge-1")));
        // A VIP is no address of the network.
        let _by_vip = TcpStream::connect_timeout(&"198.18.0.1:80".parse().unwrap(), DEADLINE);
        proxy.accept();

        sh("ip link del net3");
        eventually("the edge is reached again", || {
            dial().ok().and(proxy.try_accept())
        });
    });
}

#[test]
fn an_edge_address_in_a_network_of_this_host_is_steered_on_the_operators_word() {
    in_a_world(|world| {
        let _neighbour = neighbour("10.0.3.9/24");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let flag = ["--steer-own-network", "10.0.0.0/16"];
        let _redirector = Redirector::start(world, &[&BOTH[..], &flag].concat());
        let proxy = Proxy::listen();
        let _steered = dial().unwrap();
        proxy.accept();
        // Who asks does not repeat the flags of the service.
        let explained = run(world, &["explain", "10.0.3.7:9100"]);
        assert!(!explained.contains("never steered"), "{explained}");
        assert!(!explained.contains("fix"), "{explained}");
    });
}
