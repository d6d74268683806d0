//! Tests of the nftables table: what another program removes or changes comes back, and connections
//! continue meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::guard::{Services, VIPS, send};
use crate::proxy::{Proxy, so_original_dst};
use crate::redirector::{BOTH, NFTABLES, Redirector, daemon, installed, run};
use crate::world::{DEADLINE, eventually, in_a_world, sh};

#[test]
fn a_flushed_table_comes_back_and_a_foreign_one_survives_all() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &BOTH);
        sh("nft flush ruleset && nft add table ip foreign && nft add chain ip foreign mine");
        eventually("the table is back", || {
            sh("nft list tables")
                .contains("table inet culvert\n")
                .then_some(())
        });
        redirector.kill();
        run(world, &["uninstall"]);
        eventually("nothing else is left", || {
            (sh("nft list tables").trim() == "table ip foreign").then_some(())
        });
    });
}

#[test]
fn a_table_that_is_flushed_again_and_again_comes_back_before_anybody_looks() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        let deadline = Instant::now() + DEADLINE;
        // Inspections at intervals would take twice the deadline.
        for _ in 0..8 {
            sh("nft flush ruleset");
            eventually("the table is back", || {
                sh("nft list tables")
                    .contains("table inet culvert\n")
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

/// A byte in each direction.
fn exchange(client: &mut TcpStream, accepted: &mut TcpStream) {
    client.write_all(b"?").unwrap();
    accepted.read_exact(&mut [0]).unwrap();
    accepted.write_all(b"!").unwrap();
    client.read_exact(&mut [0]).unwrap();
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
        exchange(&mut client, &mut accepted);
        redirector.kill();
        // Another table replaces the first.
        Redirector::start(world, &flags("0x4000")).kill();
        exchange(&mut client, &mut accepted);
    });
}

#[test]
fn no_connection_passes_a_table_that_is_being_replaced() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &NFTABLES);
        // Here passes what has not been translated, before our table refuses it.
        sh(
            "nft 'table inet witness { chain out { type filter hook output priority -50; \
             ip daddr 198.18.0.0/15 counter; }; }'",
        );
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        // Nothing listens, so that it is refused at once and leaves no state.
                        let refused = TcpStream::connect("198.18.0.1:1").unwrap_err();
                        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
                    }
                });
            }
            for _ in 0..60 {
                sh("nft add rule inet culvert admitted meta mark 0xc0ffee");
                eventually("the table is replaced", || {
                    let rules = sh("nft list chain inet culvert admitted");
                    (!rules.contains("c0ffee")).then_some(())
                });
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let passed = sh("nft list table inet witness");
        assert!(passed.contains("counter packets 0 "), "{passed}");
    });
}

#[test]
fn connections_of_pods_go_on_while_the_table_is_flushed_and_not_back_yet() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &NFTABLES);
        let proxy = Proxy::listen();
        let mut client = world.pods[0]
            .run(|| TcpStream::connect("10.0.3.7:9100"))
            .unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut accepted = proxy.accept();
        exchange(&mut client, &mut accepted);
        redirector.signal(Signal::SIGSTOP);
        sh("nft flush ruleset");
        assert!(!sh("nft list tables").contains("table inet culvert\n"));
        exchange(&mut client, &mut accepted);
        redirector.signal(Signal::SIGCONT);
        eventually("the table is back", || {
            sh("nft list tables")
                .contains("table inet culvert\n")
                .then_some(())
        });
        exchange(&mut client, &mut accepted);
        // What keeps them ends with the redirector.
        redirector.kill();
        eventually("only the table is left", || {
            (sh("nft list tables") == "table inet culvert\n").then_some(())
        });
    });
}

#[test]
fn an_nft_that_cannot_own_a_table_is_told_and_the_table_works_all_the_same() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = Redirector::start(world, &NFTABLES);
        assert_eq!(installed()["keeper_problem"], serde_json::Value::Null);
        redirector.kill();
        // nftables before 1.0 answers like this.
        let old = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap();
        let nft = old.path().join("nft");
        let script = format!(
            "#!/bin/bash\nexport PATH='{path}'\nif [[ $* == --interactive ]]; then echo 'Error: \
             syntax error, unexpected flags' >&2; exit 1; fi\nexec nft \"$@\"\n"
        );
        std::fs::write(&nft, script).unwrap();
        sh(&format!("chmod +x {}", nft.display()));
        let mut command = daemon(world, &NFTABLES);
        let redirector =
            Redirector::spawn(command.env("PATH", format!("{}:{path}", old.path().display())));
        redirector.until_ready();
        eventually("the keeper's problem is told", || {
            installed()["keeper_problem"].as_str().map(str::to_owned)
        });
        let proxy = Proxy::listen();
        let _pod = world.pods[0]
            .run(|| TcpStream::connect("10.0.3.7:9100"))
            .unwrap();
        proxy.accept();
    });
}

#[test]
fn where_the_kernel_translates_in_no_inet_table_there_is_one_for_each_family() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        // Kernels before 5.2 answer like this.
        let old = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap();
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
        let proxy = Proxy::listen();
        let services = Services::listen(9100);
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
        // On another kernel, the next redirector needs one table.
        let _redirector = Redirector::start(world, &NFTABLES);
        let tables = sh("nft list tables");
        assert!(
            tables.contains("table inet culvert\n") && !tables.contains("table ip"),
            "{tables}"
        );
    });
}
