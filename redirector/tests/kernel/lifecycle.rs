//! Tests of death, restart, reboot and uninstall.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use culvert_api::proto::directory::DaemonSetStatus;

use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::proxy::{Proxy, Sockets, check_hooks_steer};
use crate::redirector::{
    BOTH, EBPF, Redirector, daemon, elsewhere, get, link_ids, run, run_to_the_end, saved_directory,
};
use crate::world::{DEADLINE, World, eventually, in_a_world, sh};

#[test]
fn a_killed_redirector_leaves_the_hooks_and_its_successor_takes_over_the_links() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &EBPF);
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
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
        // A connection that bypasses the hooks reaches this listener.
        let edge = world
            .outside
            .run(|| TcpListener::bind("10.0.3.7:9100"))
            .unwrap();
        edge.set_nonblocking(true).unwrap();
        let mut redirector = Redirector::start(world, &EBPF);
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
        let done = AtomicBool::new(false);
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
fn what_is_installed_goes_with_the_daemon_set_and_stays_when_only_the_pod_goes() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let flags = [&BOTH[..], &["--uninstall-with-daemon-set"]].concat();
        let says = |deleted| directory.set_daemon_set(DaemonSetStatus { deleted });
        for (deleted, is_installed) in [(false, true), (true, false), (false, true)] {
            says(deleted);
            assert!(Redirector::start(world, &flags).terminate().success());
            assert_eq!(is_left(world), [is_installed; 3], "deleted: {deleted}");
        }
        // Without the flag, as on a machine, the word of the proxy does nothing.
        says(true);
        assert!(Redirector::start(world, &BOTH).terminate().success());
        assert_eq!(is_left(world), [true; 3]);
    });
}

#[test]
fn a_proxy_that_ends_with_the_daemon_set_has_said_so_before() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        directory.set_daemon_set(DaemonSetStatus { deleted: true });
        fs::create_dir_all(world.state_dir()).unwrap();
        let log = world.state_dir().join("log");
        let flags = [&BOTH[..], &["--uninstall-with-daemon-set"]].concat();
        let stderr = File::create(&log).unwrap();
        let redirector = Redirector::spawn(daemon(world, &flags).stderr(stderr));
        redirector.until_ready();
        eventually("it has heard of the deletion", || {
            let lines = fs::read_to_string(&log).unwrap();
            lines.contains("Deleted").then_some(())
        });
        drop(directory);
        assert!(redirector.terminate().success());
        assert_eq!(is_left(world), [false; 3]);
    });
}

/// Whether pins, the table and the saved directory are there.
fn is_left(world: &World) -> [bool; 3] {
    [
        world.bpffs().join("culvert").exists(),
        sh("nft list ruleset").contains("culvert"),
        saved_directory(world).exists(),
    ]
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
        // With the saved directory, everything would be installed before the test could look.
        std::fs::remove_file(saved_directory(world)).unwrap();
        let slow = tempfile::tempdir().unwrap();
        let nft = slow.path().join("nft");
        let path = std::env::var("PATH").unwrap();
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
            "nodes: 2",
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
            "hooks      steered to ",
            "steered by the set of VIPs",
        ] {
            assert!(explained.contains(part), "no {part:?} in {explained}");
        }
    });
}

/// A command line of [`daemon`] with the capabilities of the units and the manifests.
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
        // Asks another program what this kernel supports.
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
        let proxy = Proxy::listen();
        check_hooks_steer(world, &proxy);
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
