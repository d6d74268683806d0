//! nftables alone, and both mechanisms together.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::clients::{Client, Ping};
use crate::fake_directory::{FakeDirectory, node, usual_nodes};
use crate::proxy::{Proxy, Sockets, so_original_dst};
use crate::redirector::{Redirector, counted, daemon, get, run, run_to_the_end};
use crate::world::{DEADLINE, NODE4, Netns, World, cable, eventually, in_a_world, sh};

const NFTABLES: [&str; 4] = ["--mechanism", "nftables", "--dns-listen", "none"];
const BOTH: [&str; 4] = ["--mechanism", "both", "--dns-listen", "none"];

#[test]
fn nftables_alone_carries_host_and_pod() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let proxy = Proxy::listen();
        for destination in [
            "10.0.3.7:9100",
            "[fd00::7]:9100",
            "198.18.0.1:1",
            "[fd12:3456:789a:bcde::1]:1",
        ] {
            let _host = TcpStream::connect(destination).unwrap();
            assert_eq!(
                so_original_dst(&proxy.accept()),
                Some(destination.parse().unwrap()),
                "host"
            );
            let _pod = world.pods[0]
                .run(|| TcpStream::connect(destination))
                .unwrap();
            assert_eq!(
                so_original_dst(&proxy.accept()),
                Some(destination.parse().unwrap()),
                "pod"
            );
        }
        let _mapped = TcpStream::connect("[::ffff:10.0.3.7]:10250").unwrap();
        assert_eq!(
            so_original_dst(&proxy.accept()),
            Some("10.0.3.7:10250".parse().unwrap())
        );
        assert!(!world.bpffs().join("culvert").exists(), "nothing is pinned");
    });
}

#[test]
fn nftables_leaves_marked_and_unmatched_connections_alone() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let proxy = Proxy::listen();
        let edges = world
            .outside
            .run(|| [9100, 22].map(|port| TcpListener::bind(("10.0.3.7", port)).unwrap()));
        let marked = Client::new_v4().marked(0x2000);
        marked.dial("10.0.3.7:9100").unwrap();
        edges[0].accept().unwrap();
        let _unmatched = TcpStream::connect("10.0.3.7:22").unwrap();
        edges[1].accept().unwrap();
        assert!(proxy.try_accept().is_none());
    });
}

#[test]
fn nftables_follows_the_directory_without_touching_connections() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let _proxy = Proxy::listen();
        directory.change(vec![node("edge-9", 9, &["10.0.3.99"], true)], &["edge-1"]);
        eventually("edge-9 is there and edge-1 is gone", || {
            let sets = sh("nft list table inet culvert");
            (sets.contains("10.0.3.99 . 9100") && !sets.contains("10.0.3.7 . 9100")).then_some(())
        });
        assert!(
            run(world, &["explain", "10.0.3.99:9100"])
                .contains("steered by the set of edge addresses")
        );
    });
}

#[test]
fn nftables_without_an_ipv6_intercept_address_refuses_ipv6() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector =
            Redirector::start(world, &[&["--node-ip", NODE4], &NFTABLES[..]].concat());
        assert!(run(world, &["explain", "edge-1"]).contains("nftables   refused, for want of"));
        let dial = || {
            TcpStream::connect_timeout(&"[fd00::7]:9100".parse().unwrap(), Duration::from_secs(5))
        };
        for error in [dial().unwrap_err(), world.pods[0].run(dial).unwrap_err()] {
            assert_ne!(
                error.kind(),
                ErrorKind::TimedOut,
                "refused, not lost: {error}"
            );
        }
    });
}

#[test]
fn with_both_the_hooks_carry_what_they_see_and_nftables_the_rest() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        let _seen = TcpStream::connect("10.0.3.7:9100").unwrap();
        let accepted = proxy.accept();
        assert_eq!(
            sockets.original_dst(&accepted),
            Some("10.0.3.7:9100".parse().unwrap())
        );
        assert_eq!(
            so_original_dst(&accepted),
            None,
            "nftables had nothing to do"
        );
        let mut unseen = world
            .outside_the_cgroup("exec 3<>/dev/tcp/10.0.3.7/10250 && read -u 3")
            .spawn()
            .unwrap();
        let accepted = proxy.accept();
        assert_eq!(sockets.original_dst(&accepted), None);
        assert_eq!(
            so_original_dst(&accepted),
            Some("10.0.3.7:10250".parse().unwrap())
        );
        drop(accepted);
        unseen.wait().unwrap();
        assert_eq!(
            (counted("accepted"), counted("unknown")),
            (1, 0),
            "nftables has a port of its own"
        );
    });
}

#[test]
fn another_host_cannot_reach_the_intercept_ports() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        world
            .outside
            .run(|| sh("ip route add 198.18.0.0/15 via 10.9.0.1"));
        // Straight, and by routing a VIP's packets through this host; from outside the cgroup, as
        // another host is.
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

#[test]
fn a_flushed_table_comes_back_and_a_foreign_one_survives_all() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &BOTH);
        sh("nft flush ruleset && nft add table ip foreign && nft add chain ip foreign mine");
        eventually("the table is back", || {
            sh("nft list tables")
                .contains("table inet culvert")
                .then_some(())
        });
        redirector.kill();
        run(world, &["uninstall"]);
        assert_eq!(sh("nft list tables").trim(), "table ip foreign");
    });
}

#[test]
fn a_pod_behind_an_interface_without_addresses_is_steered() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let proxy = Proxy::listen();
        // As Calico connects its pods.
        sh("ip addr flush dev pod1 && ip route add 10.244.1.2 dev pod1");
        let host = sh("ip -o link show pod1 | sed 's/.*ether \\([^ ]*\\).*/\\1/'");
        let host = host.trim();
        world.pods[0].run(|| {
            sh(&format!(
                "ip neigh add 169.254.1.1 dev eth0 lladdr {host} && ip route replace \
                default via 169.254.1.1 dev eth0 onlink"
            ));
        });
        let _client = world.pods[0]
            .run(|| TcpStream::connect("10.0.3.7:9100"))
            .unwrap();
        assert_eq!(
            so_original_dst(&proxy.accept()),
            Some("10.0.3.7:9100".parse().unwrap())
        );
    });
}

#[test]
fn connections_go_on_while_the_table_is_replaced() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let flags = |mark: &'static str| [&NFTABLES[..], &["--mark", mark]].concat();
        let redirector = Redirector::start(world, &flags("0x2000"));
        let proxy = Proxy::listen();
        let mut client = TcpStream::connect("10.0.3.7:9100").unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut accepted = proxy.accept();
        let mut exchange = || {
            client.write_all(b"?").unwrap();
            accepted.read_exact(&mut [0]).unwrap();
            accepted.write_all(b"!").unwrap();
            client.read_exact(&mut [0]).unwrap();
        };
        exchange();
        redirector.kill();
        // Another table, in place of the first.
        Redirector::start(world, &flags("0x4000")).kill();
        exchange();
    });
}

#[test]
fn single_elements_that_somebody_takes_or_adds_are_put_right() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        sh(
            "nft delete element inet culvert dst4 { 10.0.3.7 . 9100 } && nft add element inet \
             culvert dst6 { fd00::99 . 80 }",
        );
        eventually("the elements are right", || {
            let sets = sh("nft list table inet culvert");
            (sets.contains("10.0.3.7 . 9100") && !sets.contains("fd00::99")).then_some(())
        });
    });
}

#[test]
fn destinations_that_the_hooks_have_no_room_for_are_steered_by_nftables() {
    in_a_world(|world| {
        let ports = |number: u8, ports: u32| {
            let node = node(
                &format!("edge-{number}"),
                number,
                &[&format!("10.0.3.{number}")],
                true,
            );
            culvert_api::proto::directory::Node {
                ports: (1..=ports).collect(),
                ..node
            }
        };
        let directory = FakeDirectory::serve(
            &world.directory_socket(),
            vec![ports(7, 40_000), ports(8, 40_000)],
        );
        let flags = ["--mechanism", "ebpf", "--dns-listen", "none"];
        let alone = Redirector::start_unready(world, &flags);
        let cause = "room for 65536 destinations, and 14464 more are not steered";
        eventually("the cause", || {
            get("/readyz").filter(|text| text.contains(cause))
        });
        alone.kill();
        let _redirector = Redirector::start(world, &BOTH);
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        let dial = |destination: &str| {
            let _client = TcpStream::connect(destination).unwrap();
            let accepted = proxy.accept();
            (sockets.original_dst(&accepted), so_original_dst(&accepted))
        };
        let destination = |text: &str| Some(text.parse().unwrap());
        assert_eq!(
            dial("10.0.3.7:39999"),
            (destination("10.0.3.7:39999"), None)
        );
        assert_eq!(
            dial("10.0.3.8:39999"),
            (None, destination("10.0.3.8:39999"))
        );
        assert_eq!(
            dial("198.18.0.8:39999"),
            (destination("198.18.0.8:39999"), None)
        );
        directory.change(vec![ports(7, 10)], &[]);
        eventually("the hooks have room again", || {
            (dial("10.0.3.8:39999").1.is_none()).then_some(())
        });
    });
}

#[test]
fn without_the_nft_program_the_hooks_carry_all() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::spawn(daemon(world, &BOTH).env("PATH", "/nonexistent"));
        redirector.until_ready();
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        assert_eq!(
            sockets.original_dst(&proxy.accept()),
            Some("10.0.3.7:9100".parse().unwrap())
        );
    });
}

#[test]
fn nftables_alone_without_the_nft_program_is_an_error_that_names_the_fix() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let output = run_to_the_end(daemon(world, &NFTABLES).env("PATH", "/nonexistent"));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(error.contains("install the package nftables"), "{error}");
    });
}

/// Services of this host that listen on all of its addresses, as kubelet does.
struct Services {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Services {
    fn listen(port: u16) -> Self {
        let tcp = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        let udp = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        Self { tcp, udp }
    }

    #[track_caller]
    fn assert_unreached(&self) {
        assert_eq!(self.tcp.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(
            self.udp.recv(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }
}

/// What comes of a datagram that this host sends.
fn send(destination: &str) -> std::io::Error {
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

const VIPS: [&str; 2] = ["198.18.0.1:9100", "[fd12:3456:789a:bcde::1]:9100"];

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
            .marked(0x2000);
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
        // As kube-proxy has Services, and the first one without us.
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

/// Another host on a second network of the cloud host, which has routes by it to all that it may
/// want.
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
        // Nothing that pods are behind.
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

#[test]
fn a_table_that_is_flushed_again_and_again_comes_back_before_anybody_looks() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let deadline = Instant::now() + DEADLINE;
        // Looks at intervals would take twice the deadline.
        for _ in 0..8 {
            sh("nft flush ruleset");
            eventually("the table is back", || {
                sh("nft list tables")
                    .contains("table inet culvert")
                    .then_some(())
            });
        }
        assert!(Instant::now() < deadline, "the kernel's word was not heard");
    });
}

#[test]
fn a_rule_that_somebody_replaces_in_place_is_put_right() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let rules = || sh("nft -a list chain inet culvert guard");
        let before = rules();
        let dropping = before.lines().find(|rule| rule.contains(" drop ")).unwrap();
        let handle = dropping.rsplit(' ').next().unwrap();
        sh(&format!(
            "nft replace rule inet culvert guard handle {handle} counter accept"
        ));
        let drops = |rules: &str| rules.matches(" drop ").count();
        eventually("the rule is right", || {
            (drops(&rules()) == drops(&before)).then_some(())
        });
    });
}

#[test]
fn where_the_kernel_translates_in_no_inet_table_there_is_one_for_each_family() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        // As kernels before 5.2 answer.
        let (old, path) = (tempfile::tempdir().unwrap(), std::env::var("PATH").unwrap());
        let nft = old.path().join("nft");
        let script = format!(
            "#!/bin/bash\nexport PATH='{path}'\ninput=$(if [[ \"$*\" == *-f* ]]; then cat; fi)\n\
             if [[ $input == *'\"family\":\"inet\"'*'\"nat\"'* ]]; then echo 'Error: Operation \
             not supported' >&2; exit 1; fi\n\
             exec nft \"$@\" <<<\"$input\"\n"
        );
        std::fs::write(&nft, script).unwrap();
        sh(&format!("chmod +x {}", nft.display()));
        let mut command = daemon(world, &NFTABLES);
        let redirector =
            Redirector::spawn(command.env("PATH", format!("{}:{path}", old.path().display())));
        redirector.until_ready();
        assert_eq!(
            sh("nft list tables"),
            "table ip culvert\ntable ip6 culvert\n"
        );
        let (proxy, services) = (Proxy::listen(), Services::listen(9100));
        for destination in ["10.0.3.7:9100", "[fd00::7]:9100", VIPS[0], VIPS[1]] {
            let _host = TcpStream::connect(destination).unwrap();
            assert_eq!(
                so_original_dst(&proxy.accept()),
                Some(destination.parse().unwrap()),
                "host"
            );
            let _pod = world.pods[0]
                .run(|| TcpStream::connect(destination))
                .unwrap();
            assert_eq!(
                so_original_dst(&proxy.accept()),
                Some(destination.parse().unwrap()),
                "pod"
            );
        }
        for vip in VIPS {
            assert_eq!(send(vip).kind(), ErrorKind::PermissionDenied, "{vip}");
        }
        services.assert_unreached();
        sh("nft delete table ip6 culvert");
        eventually("the table is back", || {
            sh("nft list tables")
                .contains("table ip6 culvert")
                .then_some(())
        });
        assert!(run(world, &["explain", "edge-1"]).contains("steered by the set of VIPs"));
        redirector.kill();
        // On another kernel the next one needs one table.
        let _redirector = Redirector::start(world, &NFTABLES);
        assert_eq!(sh("nft list tables"), "table inet culvert\n");
    });
}
