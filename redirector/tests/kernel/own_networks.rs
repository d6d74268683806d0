//! Networks of the host beyond those of its interfaces' addresses.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::addresses::dial;
use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::proxy::Proxy;
use crate::redirector::{BOTH, Redirector, installed, run};
use crate::world::{Netns, World, cable, eventually, in_a_world, sh};

const EDGE_1: &str = "10.0.3.7:9100";
/// Longer than a connection takes.
const A_MOMENT: Duration = Duration::from_millis(500);

/// Dials edge-1's address until the neighbour's server has the connection, and asks why.
#[track_caller]
fn assert_withheld(world: &World, server: &TcpListener, proxy: &Proxy, reason: &str) {
    server.set_nonblocking(true).unwrap();
    eventually("the neighbour is reached", || {
        let client = dial().ok()?;
        server
            .accept()
            .ok()
            .map(|accepted| drop((client, accepted)))
    });
    while proxy.try_accept().is_some() {}
    let _client = dial().unwrap();
    assert!(proxy.try_accept().is_none());
    let explained = run(world, &["explain", EDGE_1]);
    for part in ["never steered", reason] {
        assert!(explained.contains(part), "no {part:?} in {explained}");
    }
    let withheld = installed()["withheld"].to_string();
    assert!(withheld.contains(reason), "no {reason:?} in {withheld}");
}

/// As the CNI plugin ptp, Calico and LXD (`routed`) have pods: this host has a route to each, and no
/// address in its network.
#[test]
fn an_edge_address_is_a_neighbours_that_this_host_has_a_route_on_link_to() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        let _steered = dial().unwrap();
        proxy.accept();
        let pod = Netns::new();
        cable(
            "pod3",
            "169.254.1.1/32",
            "fe80::1/128",
            &pod,
            "10.0.3.7/32",
            "fe80::2/128",
        );
        let server = pod.run(|| {
            sh("ip route add 169.254.1.1 dev eth0 && ip route add default via 169.254.1.1");
            TcpListener::bind(EDGE_1).unwrap()
        });
        sh("ip route add 10.0.3.7/32 dev pod3 scope link");
        assert_withheld(world, &server, &proxy, "10.0.3.7/32");
        sh("ip link del pod3");
        eventually("the edge is reached again", || {
            dial().ok().and(proxy.try_accept())
        });
    });
}

/// As WireGuard and OpenVPN have it: a whole network on a point-to-point interface. No host is at
/// its other end here.
#[test]
fn an_edge_address_is_a_peers_in_the_network_of_a_point_to_point_interface() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        let _steered = dial().unwrap();
        proxy.accept();
        vpn("10.0.3.1/24");
        eventually("the redirector leaves its peers alone", || {
            let withheld = installed()["withheld"].to_string();
            withheld.contains("10.0.3.0/24").then_some(())
        });
        eventually("the edge is not reached", || {
            let dialled = TcpStream::connect_timeout(&EDGE_1.parse().unwrap(), A_MOMENT);
            dialled.is_err().then_some(())
        });
        let explained = run(world, &["explain", EDGE_1]);
        assert!(explained.contains("vpn0"), "{explained}");
    });
}

/// What is behind a gateway is no neighbour, nor is what is behind the other end of a point-to-point
/// interface: by such routes edges are reached that have no Culvert yet.
#[test]
fn an_edge_address_that_this_host_routes_through_others_is_steered() {
    in_a_world(|world| {
        vpn("10.8.0.1/24");
        sh("ip route add 10.0.3.0/24 dev vpn0 && ip route add 10.0.3.7 via 10.9.0.2");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        let _steered = dial().unwrap();
        proxy.accept();
        assert_eq!(installed()["withheld"], serde_json::json!([]));
    });
}

/// Makes a point-to-point interface with this address.
fn vpn(address: &str) {
    sh(&format!(
        "ip tuntap add dev vpn0 mode tun && ip addr add {address} dev vpn0 && ip link set vpn0 up"
    ));
}
