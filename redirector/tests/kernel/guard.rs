//! Tests which sources are neither steered nor accepted, and which packets are refused.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use crate::clients::{Client, Ping};
use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::proxy::{Proxy, so_original_dst};
use crate::redirector::{BOTH, NFTABLES, Redirector, installed};
use crate::world::{DEADLINE, Netns, World, cable, eventually, in_a_world, sh};

#[test]
fn another_host_cannot_reach_the_intercept_ports() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        world
            .outside
            .run(|| sh("ip route add 198.18.0.0/15 via 10.9.0.1"));
        // Directly, and by routing a VIP's packets through this host. The client is outside the
        // cgroup, as another host is.
        for destination in ["10.9.0.1/7410", "198.18.0.1/80"] {
            let mut dial = world.outside_the_cgroup(&format!(
                "exec timeout 1 bash -c 'exec 3<>/dev/tcp/{destination}'"
            ));
            let status = world.outside.run(|| dial.status()).unwrap();
            assert_ne!(
                status.code(),
                Some(0),
                "{destination} is lost or refused on the way"
            );
        }
        assert!(proxy.try_accept().is_none());
    });
}

/// As LXC, libvirt and Proxmox have it: a bridge with a card of the host as a port, here a tunnel, and a container
/// on it.
#[test]
fn what_a_container_behind_an_outer_bridge_loses_is_counted_and_the_bridge_named() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let container = stranger();
        outer_bridge();
        let _redirector = Redirector::start(world, &BOTH);
        let before = installed();
        assert_eq!(before["outer_bridges"], serde_json::json!(["br0"]));
        let proxy = Proxy::listen();
        let mut dial =
            world.outside_the_cgroup("exec timeout 1 bash -c 'exec 3<>/dev/tcp/10.77.0.1/7410'");
        container.run(|| dial.status()).unwrap();
        assert!(proxy.try_accept().is_none());
        let drops = |page: &serde_json::Value| page["guard_drops"].as_u64().unwrap();
        assert!(drops(&installed()) > drops(&before));
    });
}

/// The container itself dials edge nodes, and nothing else of this host. A hook does not act for it.
#[test]
fn what_a_container_behind_an_outer_bridge_is_refused_is_counted_and_its_range_allows_it() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let container = stranger();
        outer_bridge();
        let redirector = Redirector::start(world, &NFTABLES);
        let proxy = Proxy::listen();
        let refused = || installed()["refused_of_bridges"].as_u64().unwrap();
        for destination in ["10.0.3.7:9100", "[fd00::7]:9100", VIPS[0]] {
            let before = refused();
            let dialled = container.run(|| TcpStream::connect(destination));
            assert_eq!(
                dialled.unwrap_err().kind(),
                ErrorKind::HostUnreachable,
                "{destination}"
            );
            // The client may have tried again before it was told.
            assert!(refused() > before, "{destination}");
        }
        let before = refused();
        let other_host = world.outside.run(|| {
            sh("ip route add 198.18.0.0/15 via 10.9.0.1");
            TcpStream::connect(VIPS[0])
        });
        assert_eq!(
            other_host.unwrap_err().kind(),
            ErrorKind::HostUnreachable,
            "by a network card"
        );
        assert_eq!(refused(), before, "by a network card");
        redirector.kill();
        let allow = ["--guard-allow", "10.77.0.0/24"];
        let _redirector = Redirector::start(world, &[&NFTABLES[..], &allow].concat());
        let _served = container
            .run(|| TcpStream::connect("10.0.3.7:9100"))
            .unwrap();
        proxy.accept();
        assert_eq!(refused(), 0);
    });
}

/// Makes the network of [`stranger`] a bridge that has a card of this host as a port too.
fn outer_bridge() {
    sh(
        "ip link add br0 type bridge && ip link add card3 type vxlan id 7 dstport 4789 && \
        ip link set card3 master br0 && ip addr flush dev net2 && ip link set net2 master br0 && \
        ip addr add 10.77.0.1/24 dev br0 && ip addr add fd77::1/64 dev br0 nodad && \
        ip link set card3 up && ip link set br0 up",
    );
}

/// Another host on a second network of the cloud host. Its routes lead through the cloud host.
fn stranger() -> Netns {
    let stranger = Netns::new();
    cable(
        "net2",
        "10.77.0.1/24",
        "fd77::1/64",
        &stranger,
        "10.77.0.2/24",
        "fd77::2/64",
    );
    stranger.run(|| {
        sh("ip route add default via 10.77.0.1 && ip -6 route add default via fd77::1");
    });
    stranger
}

#[track_caller]
fn assert_kept_out(world: &World, stranger: &Netns, proxy: &Proxy) {
    for destination in [
        "10.9.0.1/7410",
        "10.9.0.1/7411",
        "10.0.3.7/9100",
        "198.18.0.1/80",
        "fd00::7/9100",
        "fd09::1/7411",
    ] {
        let mut dial = world.outside_the_cgroup(&format!(
            "exec timeout 1 bash -c 'exec 3<>/dev/tcp/{destination}'"
        ));
        let status = stranger.run(|| dial.status()).unwrap();
        assert_ne!(
            status.code(),
            Some(0),
            "{destination} is lost or refused on the way"
        );
    }
    assert!(proxy.try_accept().is_none());
}

#[test]
fn another_host_on_a_second_network_is_neither_steered_nor_let_in() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let stranger = stranger();
        // An interface of a kind that pods never use.
        sh(
            "ip addr flush dev net2 && ip link set net2 arp off && ip link add link net2 name \
             card2 type macvlan && ip link set card2 up",
        );
        sh("ip addr add 10.77.0.1/24 dev card2 && ip addr add fd77::1/64 dev card2 nodad");
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        assert_kept_out(world, &stranger, &proxy);
        let _pod = world.pods[0]
            .run(|| TcpStream::connect("10.0.3.7:9100"))
            .unwrap();
        proxy.accept();
    });
}

#[test]
fn an_interface_that_comes_to_lead_out_is_followed() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        assert!(!sh("nft list chain inet culvert guard").contains("net2"));
        let _stranger = stranger();
        sh("ip route add default via 10.77.0.2 metric 9");
        eventually("it is one of the uplinks", || {
            sh("nft list chain inet culvert guard")
                .contains("net2")
                .then_some(())
        });
    });
}

#[test]
fn with_ranges_of_pods_nobody_else_is_steered_or_let_in_whatever_the_interface() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let stranger = stranger();
        let ranges = ["--pod-range", "10.244.0.0/16,fd44::/16"];
        let redirector = Redirector::start(world, &[&BOTH[..], &ranges].concat());
        let proxy = Proxy::listen();
        assert_kept_out(world, &stranger, &proxy);
        for destination in ["10.0.3.7:9100", "[fd00::7]:9100"] {
            let _pod = world.pods[0]
                .run(|| TcpStream::connect(destination))
                .unwrap();
            proxy.accept();
        }
        redirector.kill();
        let allow = ["--guard-allow", "10.77.0.0/24"];
        let _redirector = Redirector::start(world, &[&NFTABLES[..], &ranges, &allow].concat());
        let _allowed = stranger
            .run(|| TcpStream::connect("10.0.3.7:9100"))
            .unwrap();
        assert_eq!(
            so_original_dst(&proxy.accept()),
            Some("10.0.3.7:9100".parse().unwrap())
        );
    });
}

/// Services of this host that listen on all its addresses, as kubelet does.
pub(crate) struct Services {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Services {
    pub(crate) fn listen(port: u16) -> Self {
        let tcp = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        let udp = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        Self { tcp, udp }
    }

    #[track_caller]
    pub(crate) fn assert_unreached(&self) {
        assert_eq!(self.tcp.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(
            self.udp.recv(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }
}

/// The error of a datagram that this host sends.
pub(crate) fn send(destination: &str) -> std::io::Error {
    let destination: SocketAddr = destination.parse().unwrap();
    let any: SocketAddr = if destination.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    }
    .parse()
    .unwrap();
    let client = UdpSocket::bind(any).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    client.connect(destination).unwrap();
    client
        .send(b"?")
        .and_then(|_| client.recv(&mut [0]))
        .unwrap_err()
}

pub(crate) const VIPS: [&str; 2] = ["198.18.0.1:9100", "[fd12:3456:789a:bcde::1]:9100"];

#[test]
fn a_vip_that_is_not_steered_is_refused_though_this_host_listens_on_all_addresses() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let services = Services::listen(9100);
        for vip in VIPS {
            let is_v4 = vip.starts_with('1');
            let marked = if is_v4 {
                Client::new_v4()
            } else {
                Client::new_v6()
            }
            .marked(0x1000);
            assert_eq!(
                marked.dial(vip).unwrap_err().kind(),
                ErrorKind::HostUnreachable,
                "{vip}, marked"
            );
            assert_eq!(
                send(vip).kind(),
                ErrorKind::PermissionDenied,
                "{vip}, a datagram"
            );
            let ip = vip.parse::<SocketAddr>().unwrap().ip();
            world.pods[0].run(|| sh(&format!("echo > /dev/udp/{ip}/9100")));
            eventually("a pod's datagram is refused on its way", || {
                let rules = sh("nft list chain inet culvert refuse_forward");
                let rule = rules
                    .lines()
                    .find(|rule| rule.contains(if is_v4 { "@vip4" } else { "@vip6" }))
                    .unwrap();
                rule.contains("packets 1 ").then_some(())
            });
        }
        assert_eq!(
            crate::clients::ping("198.18.0.1".parse().unwrap()),
            Ping::Unreachable
        );
        assert_eq!(
            crate::clients::ping("198.18.9.9".parse().unwrap()),
            Ping::Unreachable,
            "nobody's VIP"
        );
        services.assert_unreached();
    });
}

#[test]
fn what_another_table_translates_to_an_edge_address_or_a_vip_is_refused() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let edge = world
            .outside
            .run(|| TcpListener::bind("10.0.3.7:9100"))
            .unwrap();
        edge.set_nonblocking(true).unwrap();
        let services = Services::listen(9100);
        // As kube-proxy has Services; the first one works without us.
        sh("nft 'add table ip services; add map ip services endpoints \
            { type ipv4_addr : ipv4_addr; }
            add element ip services endpoints { 10.96.0.1 : 10.0.3.7, 10.96.0.2 : 198.18.0.1 }
            add chain ip services pods { type nat hook prerouting priority -100; }
            add chain ip services host { type nat hook output priority -100; }
            add rule ip services pods meta l4proto tcp dnat to ip daddr map @endpoints
            add rule ip services host meta l4proto tcp dnat to ip daddr map @endpoints'");
        let _before = TcpStream::connect("10.96.0.1:9100").unwrap();
        edge.accept().unwrap();
        for flags in [NFTABLES, BOTH] {
            let redirector = Redirector::start(world, &flags);
            for service in ["10.96.0.1:9100", "10.96.0.2:9100"] {
                let dial = || {
                    TcpStream::connect_timeout(&service.parse().unwrap(), DEADLINE)
                        .map(drop)
                        .unwrap_err()
                };
                assert_eq!(dial().kind(), ErrorKind::HostUnreachable, "{service}");
                assert_eq!(
                    world.pods[0].run(dial).kind(),
                    ErrorKind::HostUnreachable,
                    "{service} of a pod"
                );
            }
            redirector.kill();
        }
        assert_eq!(edge.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        services.assert_unreached();
    });
}
