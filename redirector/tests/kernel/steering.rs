//! Tests of the connect hooks alone.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use nix::libc::{EHOSTUNREACH, EPROTONOSUPPORT};

use crate::clients::{Client, udp_peer};
use crate::fake_directory::{FakeDirectory, node, usual_nodes};
use crate::foreign::errno_of_refusals;
use crate::proxy::{Proxy, Sockets, canonical, so_original_dst};
use crate::redirector::{Redirector, counted, get, link_ids, run};
use crate::world::{DEADLINE, NODE4, NODE6, World, address, eventually, in_a_world, sh};

/// The number of the redirector's own connects, which prove that the hooks steer.
pub(crate) const PROOF: u64 = 1;

/// A world with hooks, and with everything that a test of the hooks needs.
pub(crate) struct Hooked<'a> {
    pub(crate) world: &'a World,
    pub(crate) redirector: Redirector,
    pub(crate) directory: FakeDirectory,
    pub(crate) proxy: Proxy,
    pub(crate) sockets: Sockets,
}

impl<'a> Hooked<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &["--mechanism", "ebpf", "--dns-listen", "none"]);
        Self {
            world,
            directory,
            redirector,
            proxy: Proxy::listen(),
            sockets: Sockets::open(world),
        }
    }

    /// Accepts the proxy's next connection, whose original destination must be `destination`.
    #[track_caller]
    pub(crate) fn accepts(&self, destination: &str) -> TcpStream {
        let accepted = self.proxy.accept();
        assert_eq!(
            self.sockets.original_dst(&accepted),
            Some(destination.parse().unwrap())
        );
        accepted
    }
}

/// The tuples that handshakes have left for accepted sockets, by bpftool.
pub(crate) fn tuples(world: &World) -> String {
    let pin = world.bpffs().join("culvert/v1/maps/cv_tuples");
    sh(&format!("bpftool -j map dump pinned {}", pin.display()))
        .trim()
        .to_owned()
}

#[test]
fn a_ready_redirector_has_proved_that_it_steers_without_a_packet() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let proxy = Proxy::listen();
        let _redirector =
            Redirector::start(world, &["--mechanism", "ebpf", "--dns-listen", "none"]);
        assert_eq!(counted("steered"), PROOF);
        assert!(proxy.try_accept().is_none());
        assert_eq!(tuples(world), "[]");
    });
}

/// The handshakes that SYN cookies have completed here.
fn by_cookie() -> u64 {
    let counters = sh("nstat --json --zeros --ignore --noupdate TcpExtSyncookiesRecv");
    let counters: serde_json::Value = serde_json::from_str(&counters).unwrap();
    counters["kernel"]["TcpExtSyncookiesRecv"].as_u64().unwrap()
}

/// The destination is found by the first number of the client, which a cookie does not store:
/// the kernel takes it from the last packet of the handshake.
#[test]
fn a_handshake_by_syn_cookie_keeps_its_destination() {
    in_a_world(|world| {
        let host = Hooked::new(world);
        sh("echo 2 > /proc/sys/net/ipv4/tcp_syncookies");
        let before = by_cookie();
        let mut open = Vec::new();
        for (client, destination) in [
            (Client::new_v4(), "10.0.3.7:9100"),
            (Client::new_v4(), "198.18.0.1:80"),
            (Client::new_v6(), "[fd00::7]:9100"),
        ] {
            client.dial(destination).unwrap();
            open.push((client, host.accepts(destination)));
        }
        assert_eq!(by_cookie() - before, 3);
        assert_eq!(tuples(world), "[]");
    });
}

#[test]
fn a_redirector_whose_connects_another_program_refuses_is_not_ready() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let flags = ["--mechanism", "ebpf", "--dns-listen", "none"];
        // The other program is our own, from a redirector without an IPv4 address. A mount hides
        // its pins.
        let other = Redirector::start(world, &[&flags[..], &["--node-ip", NODE6]].concat());
        let others = link_ids();
        other.kill();
        sh(&format!("mount -t bpf bpf {}", world.bpffs().display()));
        let redirector = Redirector::start_unready(world, &flags);
        eventually("the cause", || {
            get("/readyz").filter(|text| text.contains("hooks: try to connect to the VIP"))
        });
        let status = run(world, &["status"]);
        let cgroup = format!(
            "cgroup {}; before it runs program ",
            world.cgroup().display()
        );
        assert!(
            status
                .lines()
                .any(|line| line.starts_with("cv_connect4") && line.contains(&cgroup)),
            "{status}"
        );
        for link in others {
            sh(&format!("bpftool link detach id {link}"));
        }
        redirector.until_ready();
    });
}

#[test]
fn an_ipv4_client_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        hooked.accepts("10.0.3.7:9100");
    });
}

#[test]
fn an_ipv6_client_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let _client = TcpStream::connect("[fd00::7]:10250").unwrap();
        hooked.accepts("[fd00::7]:10250");
    });
}

#[test]
fn an_ipv6_socket_that_dials_ipv4_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let _client = TcpStream::connect("[::ffff:10.0.3.7]:10250").unwrap();
        hooked.accepts("10.0.3.7:10250");
    });
}

#[test]
fn any_port_of_a_vip_is_steered() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        for destination in [
            "198.18.0.1:1",
            "198.19.200.3:65535",
            "[fd12:3456:789a:bcde::1]:443",
        ] {
            let _client = TcpStream::connect(destination).unwrap();
            hooked.accepts(destination);
        }
    });
}

#[test]
fn a_client_in_a_pod_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        for destination in ["10.0.3.7:9100", "[fd00::7]:9100", "198.18.0.1:80"] {
            let _client = world.pods[0]
                .run(|| TcpStream::connect(destination))
                .unwrap();
            let accepted = hooked.accepts(destination);
            let client = canonical(accepted.peer_addr().unwrap()).ip().to_string();
            assert!(
                client == "10.244.1.2" || client == "fd44:1::2",
                "the proxy sees the pod, not {client}"
            );
        }
    });
}

#[test]
fn a_client_sees_what_it_dialled_and_the_proxy_sees_the_client() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        for destination in ["10.0.3.7:9100", "[fd00::7]:9100", "[::ffff:10.0.3.7]:9100"] {
            let client = TcpStream::connect(destination).unwrap();
            assert_eq!(client.peer_addr().unwrap(), address(destination));
            let accepted = hooked.proxy.accept();
            assert_eq!(
                canonical(accepted.peer_addr().unwrap()),
                canonical(client.local_addr().unwrap())
            );
        }
    });
}

#[test]
fn udp_and_unmatched_connects_are_untouched() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        assert_eq!(udp_peer("10.0.3.7:9100"), address("10.0.3.7:9100"));
        assert_eq!(udp_peer("198.18.0.1:53"), address("198.18.0.1:53"));
        let server = TcpListener::bind((NODE4, 8000)).unwrap();
        let client = TcpStream::connect((NODE4, 8000)).unwrap();
        let (accepted, _client) = server.accept().unwrap();
        assert_eq!(hooked.sockets.stored(&client), None);
        assert_eq!(hooked.sockets.stored(&accepted), None);
        assert!(hooked.proxy.try_accept().is_none());
        assert_eq!(counted("steered"), PROOF);
    });
}

#[test]
fn a_marked_socket_reaches_the_edge_address_itself() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let edge = world
            .outside
            .run(|| TcpListener::bind("10.0.3.7:9100"))
            .unwrap();
        let client = Client::new_v4().marked(0x1000);
        client.dial("10.0.3.7:9100").unwrap();
        let (_accepted, from) = edge.accept().unwrap();
        assert_eq!(from, client.stream().local_addr().unwrap());
        assert!(hooked.proxy.try_accept().is_none());
    });
}

#[test]
fn a_proxy_that_is_away_is_refused_at_once() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        drop(hooked.proxy);
        let error = TcpStream::connect_timeout(&address("10.0.3.7:9100"), Duration::from_secs(2))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_direct_connect_to_an_intercept_port_has_no_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        for node in [NODE4, NODE6, "127.64.0.1", "127.0.0.1"] {
            let _client = TcpStream::connect((node, 7410)).unwrap();
            let accepted = hooked.proxy.accept();
            assert_eq!(hooked.sockets.stored(&accepted), None);
            assert_eq!(so_original_dst(&accepted), None);
        }
        // Only connections to addresses that the hooks steer to count.
        assert_eq!(counted("unknown"), 3);
    });
}

#[test]
fn an_offline_node_is_refused_at_connect_until_its_agent_comes() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        for destination in [
            "10.0.3.8:9100",
            "198.18.0.2:80",
            "[fd12:3456:789a:bcde::2]:80",
        ] {
            let error = TcpStream::connect(destination).unwrap_err();
            assert_eq!(
                error.raw_os_error(),
                Some(errno_of_refusals()),
                "{destination}"
            );
        }
        let name = if errno_of_refusals() == EHOSTUNREACH {
            "EHOSTUNREACH"
        } else {
            "EPERM"
        };
        assert!(
            run(world, &["explain", "edge-2:80"])
                .contains(&format!("refused with {name}: its node is offline"))
        );
        let status = run(world, &["status"]);
        assert!(
            status
                .lines()
                .any(|line| line.starts_with(&format!("refused with  {name}"))),
            "{status}"
        );
        assert!(
            get("/metrics")
                .unwrap()
                .contains(&format!("refusal_info{{error=\"{name}\"}} 1"))
        );
        assert!(
            get("/debug/installed")
                .unwrap()
                .contains(&format!("\"refusal\":\"{name}\""))
        );
        hooked
            .directory
            .change(vec![node("edge-2", 2, &["10.0.3.8"], true)], &[]);
        let _client = eventually("edge-2 is online", || {
            TcpStream::connect("10.0.3.8:9100").ok()
        });
        hooked.accepts("10.0.3.8:9100");
    });
}

#[test]
fn with_the_redirector_dead_an_offline_node_is_left_to_the_proxy() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        assert!(TcpStream::connect("10.0.3.8:9100").is_err());
        hooked.redirector.kill();
        let _client = eventually("the lease ends", || {
            TcpStream::connect("10.0.3.8:9100").ok()
        });
        let accepted = hooked.proxy.accept();
        assert_eq!(
            hooked.sockets.original_dst(&accepted),
            Some(address("10.0.3.8:9100"))
        );
    });
}

#[test]
fn a_node_that_is_removed_is_no_longer_steered() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let edge = world
            .outside
            .run(|| TcpListener::bind("10.0.3.7:9100"))
            .unwrap();
        hooked.directory.change(Vec::new(), &["edge-1"]);
        eventually("edge-1 is gone", || {
            let _client = TcpStream::connect_timeout(&address("10.0.3.7:9100"), DEADLINE).unwrap();
            hooked.proxy.try_accept().is_none().then_some(())
        });
        edge.accept().unwrap();
    });
}

#[test]
fn an_ipv6_destination_is_refused_on_a_host_without_ipv6() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let flags = [
            "--node-ip",
            NODE4,
            "--mechanism",
            "ebpf",
            "--dns-listen",
            "none",
        ];
        let _redirector = Redirector::start(world, &flags);
        let error = TcpStream::connect("[fd00::7]:9100").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno_of_refusals()));
    });
}

#[test]
fn bpftool_shows_named_fields() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        hooked.accepts("10.0.3.7:9100");
        let dump = |map| {
            sh(&format!(
                "bpftool -j map dump pinned {}/culvert/v1/maps/{map}",
                hooked.world.bpffs().display()
            ))
        };
        for (map, fields) in [
            (
                "cv_config",
                &["offline_lease_ns", "port_count", "intercept4", "vip6"][..],
            ),
            ("cv_destinations", &["addr", "bytes", "port", "flags"]),
            ("cv_counters", &["key", "values"]),
        ] {
            let text = dump(map);
            for field in fields {
                assert!(
                    text.contains(&format!("\"{field}\":")),
                    "{map} has no {field}: {text}"
                );
            }
        }
    });
}

#[test]
fn destinations_that_somebody_takes_from_the_hooks_or_adds_are_put_right() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let map = format!(
            "pinned {}/culvert/v1/maps/cv_destinations",
            world.bpffs().display()
        );
        let key = |last: &str, port: &str| {
            format!("key hex 00 00 00 00 00 00 00 00 00 00 ff ff 0a 00 03 {last} {port} 00 00")
        };
        // Removes port 9100 of 10.0.3.7, and adds one of 10.0.3.9, which no node has.
        sh(&format!("bpftool map delete {map} {}", key("07", "23 8c")));
        sh(&format!(
            "bpftool map update {map} {} value hex 00 00 00 00",
            key("09", "23 8c")
        ));
        eventually("both are put right", || {
            let steered =
                |address| run(world, &["explain", address]).contains("hooks      steered to");
            (steered("10.0.3.7:9100") && !steered("10.0.3.9:9100")).then_some(())
        });
        // Both changes may be noticed at once or one after the other.
        let metric = "culvert_redirector_drift_total{what=\"destinations\",outcome=\"repaired\"} ";
        let counted = |text: &str| {
            ["1", "2"]
                .iter()
                .any(|times| text.contains(&format!("{metric}{times}\n")))
        };
        eventually("it is counted", || {
            get("/metrics").filter(|text| counted(text))
        });
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        hooked.accepts("10.0.3.7:9100");
    });
}

#[test]
fn an_mptcp_client_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let client = socket2::Socket::new(
            socket2::Domain::IPV4,
            socket2::Type::STREAM,
            Some(socket2::Protocol::MPTCP),
        );
        if !Path::new("/proc/sys/net/mptcp").exists() {
            assert_eq!(client.unwrap_err().raw_os_error(), Some(EPROTONOSUPPORT));
            eprintln!("does not apply: this kernel has no MPTCP");
            return;
        }
        client
            .unwrap()
            .connect(&address("10.0.3.7:9100").into())
            .unwrap();
        hooked.accepts("10.0.3.7:9100");
    });
}
