//! Death, restart, reboot, and the end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fake_directory::{FakeDirectory, node, usual_nodes};
use crate::proxy::{Proxy, Sockets, so_original_dst};
use crate::redirector::{
    Redirector, daemon, get, installed, link_ids, mechanism, run, run_to_the_end, saved_directory,
};
use crate::world::{Cgroup, DEADLINE, NODE4, World, eventually, in_a_world, sh, within};

const EBPF: [&str; 4] = ["--mechanism", "ebpf", "--dns-listen", "none"];
const BOTH: [&str; 4] = ["--mechanism", "both", "--dns-listen", "none"];

/// A subcommand with another state directory than the world's.
fn elsewhere(world: &World, subcommand: &str) -> Command {
    let mut command = Command::new(daemon(world, &[]).get_program());
    command
        .arg(subcommand)
        .arg("--bpffs")
        .arg(world.bpffs())
        .args(["--state-dir", "/nonexistent"]);
    command
}

#[test]
fn a_killed_redirector_leaves_the_hooks_and_its_successor_takes_over_the_links() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &EBPF);
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        let before = link_ids();
        redirector.kill();
        let dial = || {
            let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
            assert_eq!(
                sockets.original_dst(&proxy.accept()),
                Some("10.0.3.7:9100".parse().unwrap())
            );
        };
        dial();
        let _successor = Redirector::start(world, &EBPF);
        assert_eq!(link_ids(), before);
        dial();
    });
}

#[test]
fn no_connect_escapes_or_fails_while_redirectors_come_and_go() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        // Who gets past the hooks meets this.
        let edge = world
            .outside
            .run(|| TcpListener::bind("10.0.3.7:9100"))
            .unwrap();
        edge.set_nonblocking(true).unwrap();
        let mut redirector = Redirector::start(world, &EBPF);
        let (proxy, sockets, done) = (
            Proxy::listen(),
            Sockets::open(world),
            AtomicBool::new(false),
        );
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut connects = 0;
                while !done.load(Ordering::Relaxed) {
                    let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
                    assert_eq!(
                        sockets.original_dst(&proxy.accept()),
                        Some("10.0.3.7:9100".parse().unwrap())
                    );
                    connects += 1;
                }
                connects
            });
            for _ in 0..3 {
                redirector.kill();
                redirector = Redirector::start(world, &EBPF);
            }
            done.store(true, Ordering::Relaxed);
            assert!(client.join().unwrap() > 100, "there was something to lose");
        });
        assert_eq!(
            edge.accept().unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
    });
}

#[test]
fn a_vip_never_leaves_a_host_or_reaches_its_services_when_nothing_steers_any_more() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        // Who would take the packets if they left.
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
        // Nor does it reach what listens on all of this host's addresses.
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
fn the_saved_directory_is_installed_without_the_proxy() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &BOTH).kill();
        drop(directory);
        // A reboot: nothing is installed, and the file is all there is.
        let saved = std::fs::read(saved_directory(world)).unwrap();
        run(world, &["uninstall"]);
        std::fs::create_dir_all(world.state_dir()).unwrap();
        std::fs::write(saved_directory(world), saved).unwrap();
        let _redirector = Redirector::start_unready(world, &BOTH);
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        // edge-2 was offline; nobody knows whether it still is.
        for destination in ["10.0.3.7:9100", "10.0.3.8:9100", "198.18.0.2:80"] {
            let _client = TcpStream::connect(destination).unwrap();
            assert_eq!(
                sockets.original_dst(&proxy.accept()),
                Some(destination.parse().unwrap())
            );
        }
        assert!(
            get("/readyz").unwrap().contains("directory: "),
            "and /readyz says what is missing"
        );
    });
}

#[test]
fn a_broken_saved_directory_is_ignored() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let file = saved_directory(world);
        std::fs::create_dir_all(world.state_dir()).unwrap();
        std::fs::write(&file, "{").unwrap();
        let _redirector = Redirector::start(world, &EBPF);
        eventually("a whole one is saved", || {
            (std::fs::read(&file).unwrap() != b"{").then_some(())
        });
        assert!(
            run(world, &["explain", "10.0.3.7:9100"])
                .contains("hooks      steered to 10.9.0.1:741")
        );
    });
}

#[test]
fn a_directory_that_could_not_be_saved_is_saved_later_and_not_for_every_tunnel() {
    in_a_world(|world| {
        let file = saved_directory(world);
        std::fs::create_dir_all(file.join("in the way")).unwrap();
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &EBPF);
        std::fs::remove_dir_all(&file).unwrap();
        let saved = eventually("the directory is saved", || std::fs::metadata(&file).ok()).ino();
        directory.change(vec![node("edge-2", 2, &["10.0.3.8"], true)], &[]);
        eventually("edge-2 is online", || {
            run(world, &["status"]).contains("offline: 0").then_some(())
        });
        assert_eq!(std::fs::metadata(&file).unwrap().ino(), saved);
        directory.change(vec![node("edge-2", 2, &["10.0.3.9"], true)], &[]);
        eventually("edge-2 is saved", || {
            (std::fs::metadata(&file).unwrap().ino() != saved).then_some(())
        });
    });
}

#[test]
fn another_cgroup_gets_the_hooks_and_the_first_loses_them() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &EBPF).kill();
        let other = Cgroup::enter("cvr-other");
        let flags = [&EBPF[..], &["--cgroup", other.path().to_str().unwrap()]].concat();
        let _redirector = Redirector::start(world, &flags);
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        assert_eq!(
            sockets.original_dst(&proxy.accept()),
            Some("10.0.3.7:9100".parse().unwrap())
        );
        let attached = sh(&format!("bpftool cgroup show {}", world.cgroup().display()));
        assert!(
            !attached.contains("cv_"),
            "the first cgroup has none: {attached}"
        );
    });
}

#[test]
fn hooks_come_without_a_restart_once_the_bpf_file_system_allows_them() {
    let ways = [
        ("umount", "mount -t bpf bpf"),
        ("mount -o remount,ro", "mount -o remount,rw"),
    ];
    for (hinder, allow) in ways {
        in_a_world(|world| {
            let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
            sh(&format!("{hinder} {}", world.bpffs().display()));
            let _redirector = Redirector::start(world, &BOTH);
            let proxy = Proxy::listen();
            let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
            assert_eq!(
                so_original_dst(&proxy.accept()),
                Some("10.0.3.7:9100".parse().unwrap())
            );
            assert_eq!(mechanism(), "nftables");
            let (ready, installed) = (get("/readyz").unwrap(), installed());
            assert!(
                ready.contains("\nhooks: nftables alone steers connections: "),
                "{ready}"
            );
            let reason = installed["fallback"].as_str().unwrap();
            assert!(
                ready.contains(reason) && reason.contains(world.bpffs().to_str().unwrap()),
                "{installed}"
            );
            assert_eq!(installed["in_force"], "nftables");
            sh(&format!("{allow} {}", world.bpffs().display()));
            within(3 * DEADLINE, "hooks come", || {
                (mechanism() == "both").then_some(())
            });
            let sockets = Sockets::open(world);
            let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
            assert_eq!(
                sockets.original_dst(&proxy.accept()),
                Some("10.0.3.7:9100".parse().unwrap())
            );
            assert!(get("/readyz").unwrap().ends_with("\r\n\r\nok\n"));
            // Whose lock was on what was there before.
            let uninstall = run_to_the_end(&mut elsewhere(world, "uninstall"));
            assert!(!uninstall.status.success(), "the redirector still runs");
        });
    }
}

#[test]
fn hooks_of_another_version_go_when_ours_come() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let (pins, other) = (
            world.bpffs().join("culvert/v1"),
            world.bpffs().join("culvert/v2"),
        );
        let leave_another = || {
            Redirector::start(world, &EBPF).kill();
            sh(&format!(
                "mkdir -p {0} && mv {1}/maps {1}/links {0}",
                other.display(),
                pins.display()
            ));
        };
        leave_another();
        let status = run(world, &["status"]);
        assert!(
            status.contains(&format!(
                "other version {}/links/cv_connect4 steers too",
                other.display()
            )),
            "{status}"
        );
        let _redirector = Redirector::start(world, &EBPF);
        assert!(!other.exists());
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        assert_eq!(
            sockets.original_dst(&proxy.accept()),
            Some("10.0.3.7:9100".parse().unwrap())
        );
        let attached = sh(&format!("bpftool cgroup show {}", world.cgroup().display()));
        assert_eq!(
            attached
                .lines()
                .filter(|line| line.contains("connect4"))
                .count(),
            1,
            "{attached}"
        );
        drop(_redirector);
        leave_another();
        let removed = run(world, &["uninstall"]);
        assert!(
            removed.contains("v2/links/cv_connect4") && !world.bpffs().join("culvert").exists(),
            "{removed}"
        );
        assert!(
            !sh(&format!("bpftool cgroup show {}", world.cgroup().display())).contains("connect")
        );
    });
}

#[test]
fn a_proxy_outside_the_cgroup_whose_processes_are_steered_learns_what_they_dialled() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let clients = world.cgroup().join("clients");
        std::fs::create_dir(&clients).unwrap();
        let _redirector = Redirector::start(
            world,
            &[&EBPF[..], &["--cgroup", clients.to_str().unwrap()]].concat(),
        );
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        let dial = format!(
            "echo $$ > {}/cgroup.procs && exec 3<>/dev/tcp/10.0.3.7/9100",
            clients.display()
        );
        sh(&dial);
        let dialled = sockets.original_dst(&proxy.accept());
        std::fs::remove_dir(&clients).unwrap();
        assert_eq!(dialled, Some("10.0.3.7:9100".parse().unwrap()));
    });
}

#[test]
fn hooks_of_the_host_alone_leave_pods_to_nftables() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &[&BOTH[..], &["--hooks", "host"]].concat());
        assert_eq!(
            (mechanism(), installed()["hooks_see"].as_str()),
            ("both".to_owned(), Some("host"))
        );
        let (proxy, sockets) = (Proxy::listen(), Sockets::open(world));
        let dialled = Some("10.0.3.7:9100".parse().unwrap());
        let _on_the_host = TcpStream::connect("10.0.3.7:9100").unwrap();
        assert_eq!(sockets.original_dst(&proxy.accept()), dialled);
        let in_a_pod = world.pods[0].run(|| TcpStream::connect("10.0.3.7:9100").unwrap());
        let accepted = proxy.accept();
        assert_eq!(
            (sockets.original_dst(&accepted), so_original_dst(&accepted)),
            (None, dialled)
        );
        assert_eq!(
            sockets.stored(&in_a_pod),
            None,
            "as a mesh in the pod wants it"
        );
    });
}

#[test]
fn systemd_hears_that_the_kernel_steers_without_the_proxy() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &BOTH).kill();
        drop(directory);
        let path = world.bpffs().with_file_name("notify");
        let systemd = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        systemd.set_read_timeout(Some(DEADLINE)).unwrap();
        let redirector = Redirector::spawn(daemon(world, &BOTH).env("NOTIFY_SOCKET", &path));
        let next = || {
            let mut message = [0; 512];
            let length = systemd.recv(&mut message).unwrap();
            String::from_utf8(message[..length].into()).unwrap()
        };
        assert_eq!(next(), "READY=1");
        let proxy = Proxy::listen();
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        proxy.accept();
        let status = next();
        assert!(
            status.starts_with("STATUS=not ready: directory: "),
            "{status}"
        );
        assert!(redirector.terminate().success());
    });
}

#[test]
fn links_of_a_cgroup_that_is_gone_are_replaced() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let gone = Cgroup::enter("cvr-gone");
        let flags = [&EBPF[..], &["--cgroup", gone.path().to_str().unwrap()]].concat();
        Redirector::start(world, &flags).kill();
        drop(gone);
        std::fs::write(
            world.cgroup().join("cgroup.procs"),
            std::process::id().to_string(),
        )
        .unwrap();
        let _redirector = Redirector::start(world, &EBPF);
        let proxy = Proxy::listen();
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        proxy.accept();
    });
}

#[test]
fn a_pinned_map_of_another_layout_is_refused_by_name() {
    in_a_world(|world| {
        let maps = world.bpffs().join("culvert/v1/maps");
        std::fs::create_dir_all(&maps).unwrap();
        let pin = maps.join("cv_tuples");
        sh(&format!(
            "bpftool map create {} type hash key 4 value 4 entries 1 name cv_tuples",
            pin.display()
        ));
        let output = run_to_the_end(&mut daemon(world, &EBPF));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(
            error.contains("cv_tuples is of another layout") && error.contains("uninstall"),
            "{error}"
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
fn a_host_without_ipv6_steers_ipv4() {
    in_a_world(|world| {
        sh("for conf in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 > $conf; done");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &[&["--node-ip", NODE4], &BOTH[..]].concat());
        let proxy = std::net::TcpListener::bind((NODE4, 7410)).unwrap();
        let _other = std::net::TcpListener::bind((NODE4, 7411)).unwrap();
        let _client = TcpStream::connect("198.18.0.1:80").unwrap();
        drop(proxy);
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
    });
}

#[test]
fn no_arp_request_for_a_vip_is_answered() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &EBPF);
        world.outside.run(|| {
            sh("ip route add 198.18.0.0/15 dev eth0 && echo > /dev/udp/198.18.0.77/9");
            // The node's own address shows that requests are answered.
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
fn a_link_that_somebody_detached_is_attached_again() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &EBPF);
        sh(&format!(
            "bpftool link detach pinned {}/culvert/v1/links/cv_connect4",
            world.bpffs().display()
        ));
        let attached = || sh(&format!("bpftool cgroup show {}", world.cgroup().display()));
        eventually("the link is back", || {
            attached().contains("cv_connect4").then_some(())
        });
    });
}

#[test]
fn a_mechanism_that_is_switched_off_goes() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &BOTH).kill();
        Redirector::start(world, &EBPF).kill();
        assert_eq!(sh("nft list ruleset"), "");
        Redirector::start(world, &["--mechanism", "nftables", "--dns-listen", "none"]).kill();
        assert!(!world.bpffs().join("culvert").exists());
        Redirector::start(world, &["--mechanism", "none"]).kill();
        assert_eq!(sh("nft list ruleset"), "");
        assert_eq!(sh("ip route show table local proto 77"), "");
    });
}

#[test]
fn a_redirector_is_ready_only_when_what_is_switched_off_has_gone() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &BOTH).kill();
        // With it all would be done before anybody could ask.
        std::fs::remove_file(saved_directory(world)).unwrap();
        let slow = tempfile::tempdir().unwrap();
        let (nft, path) = (slow.path().join("nft"), std::env::var("PATH").unwrap());
        std::fs::write(
            &nft,
            format!("#!/bin/sh\nsleep 1\nPATH={path} exec nft \"$@\"\n"),
        )
        .unwrap();
        sh(&format!("chmod +x {}", nft.display()));
        let path = format!("{}:{path}", slow.path().display());
        let redirector = Redirector::spawn(daemon(world, &EBPF).env("PATH", path));
        redirector.until_ready();
        assert_eq!(sh("nft list ruleset"), "");
    });
}

#[test]
fn while_one_redirector_runs_there_is_no_second_one_and_no_uninstall() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &EBPF);
        let second = run_to_the_end(&mut daemon(world, &EBPF));
        assert!(!second.status.success());
        let uninstall = run_to_the_end(&mut daemon(world, &["uninstall"]));
        let error = String::from_utf8(uninstall.stderr).unwrap();
        assert!(
            !uninstall.status.success() && error.contains("stop it first"),
            "{error}"
        );
        // Nor with another state directory, which that redirector has not locked.
        let error =
            String::from_utf8(run_to_the_end(&mut elsewhere(world, "uninstall")).stderr).unwrap();
        assert!(
            error.contains(&format!("is running with {}", world.bpffs().display())),
            "{error}"
        );
        assert!(run(world, &["status"]).contains("cv_connect4   link"));
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
        // As keepalived wants it.
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

#[test]
fn a_cgroup_of_the_first_version_is_refused_even_where_nftables_could_do() {
    in_a_world(|world| {
        let fake = world.state_dir();
        std::fs::create_dir_all(&fake).unwrap();
        std::fs::write(fake.join("cgroup.procs"), "").unwrap();
        let output = run_to_the_end(&mut daemon(
            world,
            &[&BOTH[..], &["--cgroup", fake.to_str().unwrap()]].concat(),
        ));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && error.contains("of a cgroup2 file system"),
            "{error}"
        );
    });
}

#[test]
fn without_a_proxy_readyz_says_what_is_missing() {
    in_a_world(|world| {
        let _redirector = Redirector::start_unready(world, &EBPF);
        eventually("the cause", || {
            get("/readyz").filter(|answer| answer.contains("directory: connect to the proxy"))
        });
    });
}

#[test]
fn uninstall_leaves_nothing() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &BOTH);
        let routes =
            || sh("ip route show table local proto 77; ip -6 route show table local proto 77");
        assert_eq!(routes().lines().count(), 2);
        redirector.kill();
        let removed = run(world, &["uninstall"]);
        assert!(
            removed.contains("cv_connect4") && removed.contains("table inet culvert"),
            "{removed}"
        );
        assert!(!world.bpffs().join("culvert").exists());
        assert_eq!(sh("nft list ruleset"), "");
        assert_eq!(routes(), "");
        assert!(!sh("ip -o link").contains("culvert0"));
        assert!(!sh(&format!("bpftool cgroup show {}", world.cgroup().display())).contains("cv_"));
        assert_eq!(run(world, &["uninstall"]), "nothing was installed\n");
    });
}

#[test]
fn connections_that_hooks_steered_go_on_after_an_uninstall() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        let mut client = TcpStream::connect("10.0.3.7:9100").unwrap();
        let mut accepted = proxy.accept();
        redirector.kill();
        run(world, &["uninstall"]);
        client.write_all(b"?").unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        accepted.write_all(b"!").unwrap();
        client.read_exact(&mut [0]).unwrap();
    });
}

#[test]
fn without_mechanisms_only_dns_is_left() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &["--mechanism", "none"]);
        assert!(!world.bpffs().join("culvert").exists());
        assert_eq!(sh("nft list ruleset"), "");
        assert!(sh("ss -Hlun 'sport = 53'").contains("10.9.0.1:53"));
    });
}

#[test]
fn status_and_explain_work_without_the_daemon() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &BOTH).kill();
        drop(directory);
        let status = run(world, &["status"]);
        for part in [
            "cv_connect4   link",
            "destinations  10, of which offline: 4",
            "table inet culvert",
            "198.18.0.0/15",
            "2 nodes",
        ] {
            assert!(status.contains(part), "no {part:?} in {status}");
        }
        assert!(run(world, &["explain", "edge-1"]).starts_with("198.18.0.1, any port\n"));
        let bare = run(world, &["explain", "10.0.3.7"]);
        for part in ["10.0.3.7, any port", "address of edge-1", "(9100, 10250)"] {
            assert!(bare.contains(part), "no {part:?} in {bare}");
        }
        assert!(!bare.contains("fix"), "{bare}");
        assert!(
            run(world, &["explain", "10.0.3.7:22"])
                .contains("fix        dial edge-1.edge.internal:22")
        );
        let explained = run(world, &["explain", "edge-1.edge.internal:80"]);
        for part in [
            "198.18.0.1:80",
            "VIP of edge-1",
            "steered to 10.9.0.1:741",
            "steered by the set of VIPs",
        ] {
            assert!(explained.contains(part), "no {part:?} in {explained}");
        }
    });
}

/// A command line of [`daemon`]'s with the capabilities of the units and the manifests.
fn with_three_capabilities(command: &Command) -> Command {
    // 39 is CAP_BPF, which util-linux of Debian 12 does not know by name.
    let needed = "-all,+cap_39,+net_admin,+net_bind_service";
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set", needed, "--inh-caps", needed, "--"]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    limited
}

#[test]
fn a_limit_of_locked_memory_is_named_with_the_fix_where_the_kernel_counts_maps() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let limit = |command: &Command| {
            let mut limited = Command::new("prlimit");
            limited
                .arg("--memlock=65536:65536")
                .arg(command.get_program())
                .args(command.get_args());
            command.get_envs().for_each(|(name, value)| {
                limited.env(name, value.unwrap_or_default());
            });
            with_three_capabilities(&limited)
        };
        // What this kernel does, by another program.
        let mut other = Command::new("bpftool");
        let pin = world.bpffs().join("other");
        other
            .args(["map", "create"])
            .arg(&pin)
            .args("type array key 4 value 4 entries 100000 name other".split(' '));
        let counts = !limit(&other).output().unwrap().status.success();
        let mut command = limit(&daemon(world, &EBPF));
        if counts {
            let error = String::from_utf8(run_to_the_end(&mut command).stderr).unwrap();
            assert!(
                error.contains("64 KiB are allowed here: LimitMEMLOCK=infinity"),
                "{error}"
            );
        } else {
            Redirector::spawn(&mut command).until_ready();
        }
    });
}

#[test]
fn three_capabilities_are_enough() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::spawn(&mut with_three_capabilities(&daemon(world, &BOTH)));
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
fn a_redirector_that_is_told_to_end_ends_well_and_leaves_everything() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &BOTH);
        assert!(redirector.terminate().success());
        let status = run(world, &["status"]);
        assert!(
            status.contains("cv_connect4   link") && status.contains("table inet culvert:"),
            "{status}"
        );
    });
}
