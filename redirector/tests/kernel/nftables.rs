//! Tests of nftables alone, and of both mechanisms together.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::clients::{Client, can_limit_hooks_to_the_host};
use crate::fake_directory::{FakeDirectory, node, usual_nodes};
use crate::proxy::{Proxy, Sockets, check_hooks_steer, so_original_dst};
use crate::redirector::{
    BOTH, NFTABLES, Redirector, counted, daemon, get, installed, run, run_to_the_end,
};
use crate::world::{NODE4, eventually, in_a_world, sh};

/// Longer than a connection takes.
const WAIT: Duration = Duration::from_secs(2);

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
fn counters_tell_whether_filters_of_others_let_pods_through_however_they_are_written() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let _proxy = Proxy::listen();
        for (policy, rules, passes) in [
            // As firewalld's, which lets translated connections pass.
            ("accept", "ct status dnat accept\nreject", true),
            // The addresses of pods are trusted.
            ("drop", "ip saddr 10.244.0.0/16 accept", true),
            ("accept", "reject with icmpx admin-prohibited", false),
            ("drop", "tcp dport 22 accept", false),
        ] {
            let before = steered();
            let file = world.state_dir().join("filter.nft");
            let table = format!(
                "table inet filter_of_others {{ chain in {{\ntype filter hook input priority 10; \
                 policy {policy};\niifname lo accept\n{rules}\n}}\n}}\n"
            );
            std::fs::write(&file, table).unwrap();
            sh(&format!("nft -f {}", file.display()));
            let to = "10.0.3.7:9100".parse().unwrap();
            let dialled = world.pods[0].run(|| TcpStream::connect_timeout(&to, WAIT));
            assert_eq!(dialled.is_ok(), passes, "{rules}: {dialled:?}");
            let after = steered();
            let begun = after.0 - before.0;
            let admitted = after.1 - before.1;
            assert!(begun > 0, "{rules}");
            assert_eq!(admitted == begun, passes, "{rules}: {admitted} of {begun}");
            sh("nft delete table inet filter_of_others");
        }
    });
}

/// First packets that nftables has steered, and those that passed all filters.
fn steered() -> (u64, u64) {
    let counts = &installed()["steered"];
    let count = |name: &str| counts[name].as_u64().unwrap();
    (count("begun"), count("admitted"))
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
        let marked = Client::new_v4().marked(0x1000);
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
        assert!(run(world, &["explain", "edge-1"]).contains("nftables   refused, without"));
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
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
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
fn a_pod_behind_an_interface_without_addresses_is_steered() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let proxy = Proxy::listen();
        // Calico connects its pods this way.
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
        let nodes = (7..21).map(|number| ports(number, 40_000)).collect();
        let directory = FakeDirectory::serve(&world.directory_socket(), nodes);
        let flags = ["--mechanism", "ebpf", "--dns-listen", "none"];
        let alone = Redirector::start_unready(world, &flags);
        let cause = "capacity for 524288 destinations, and 35712 more are not steered";
        eventually("the cause", || {
            get("/readyz").filter(|text| text.contains(cause))
        });
        alone.kill();
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
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
            dial("10.0.3.20:39999"),
            (None, destination("10.0.3.20:39999"))
        );
        assert_eq!(
            dial("198.18.0.8:39999"),
            (destination("198.18.0.8:39999"), None)
        );
        directory.change(vec![ports(7, 10)], &[]);
        eventually("the hooks have room again", || {
            (dial("10.0.3.20:39999").1.is_none()).then_some(())
        });
    });
}

#[test]
fn without_the_nft_program_the_hooks_carry_all() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let all = [&BOTH[..], &["--hooks", "all"]].concat();
        let redirector = Redirector::spawn(daemon(world, &all).env("PATH", "/nonexistent"));
        redirector.until_ready();
        let proxy = Proxy::listen();
        check_hooks_steer(world, &proxy);
    });
}

#[test]
fn without_the_nft_program_hooks_of_the_host_alone_are_not_ready_for_pods() {
    in_a_world(|world| {
        if !can_limit_hooks_to_the_host() {
            return;
        }
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let host = [&BOTH[..], &["--hooks", "host"]].concat();
        let redirector = Redirector::spawn(daemon(world, &host).env("PATH", "/nonexistent"));
        eventually("the cause", || {
            get("/readyz").filter(|text| text.contains("pods: connect hooks leave pods to"))
        });
        redirector.kill();
        let told = [&host[..], &["--accept-unseen-pods"]].concat();
        Redirector::spawn(daemon(world, &told).env("PATH", "/nonexistent")).until_ready();
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
