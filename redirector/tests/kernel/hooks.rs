//! Tests of the connect hooks: their cgroup, their version, and whose connections they see.

use crate::clients::can_limit_hooks_to_the_host;
use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::proxy::{Proxy, Sockets, check_hooks_steer, so_original_dst};
use crate::redirector::{
    BOTH, EBPF, Redirector, contained, daemon, elsewhere, get, installed, mechanism, run,
    run_to_the_end,
};
use crate::world::{Cgroup, DEADLINE, World, eventually, in_a_world, sh, within};
use std::net::TcpStream;

#[test]
fn another_cgroup_gets_the_hooks_and_the_first_loses_them() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &EBPF).kill();
        let other = Cgroup::enter("cvr-other");
        let flags = [&EBPF[..], &["--cgroup", other.path().to_str().unwrap()]].concat();
        let _redirector = Redirector::start(world, &flags);
        let proxy = Proxy::listen();
        check_hooks_steer(world, &proxy);
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
            let ready = get("/readyz").unwrap();
            let installed = installed();
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
            hooks_come_and_steer(world, &proxy);
            assert!(get("/readyz").unwrap().ends_with("\r\n\r\nok\n"));
            // A redirector locked the directory that was there before.
            let uninstall = run_to_the_end(&mut elsewhere(world, "uninstall"));
            assert!(!uninstall.status.success(), "the redirector still runs");
        });
    }
}

/// Waits for hooks where nftables has steered alone, and dials once.
fn hooks_come_and_steer(world: &World, proxy: &Proxy) {
    within(3 * DEADLINE, "hooks come", || {
        (mechanism() == "both").then_some(())
    });
    check_hooks_steer(world, proxy);
}

/// The kernel routes what hooks steer to 127.64.0.0/10 like any other packet: out of the host, if it
/// has not all of 127.0.0.0/8.
#[test]
fn where_loopback_addresses_are_not_the_hosts_own_nftables_steers_until_they_are() {
    if !can_limit_hooks_to_the_host() {
        return;
    }
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        sh("ip addr del 127.0.0.1/8 dev lo && ip addr add 127.0.0.1/32 dev lo");
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        assert_eq!(
            so_original_dst(&proxy.accept()),
            Some("10.0.3.7:9100".parse().unwrap())
        );
        let installed = installed();
        let reason = installed["fallback"].as_str().unwrap();
        assert!(reason.contains("127.64.0.0/10"), "{reason}");
        sh("ip addr add 127.0.0.1/8 dev lo");
        hooks_come_and_steer(world, &proxy);
    });
}

#[test]
fn hooks_of_another_version_go_when_ours_come() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let pins = world.bpffs().join("culvert/v1");
        let other = world.bpffs().join("culvert/v2");
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
        let proxy = Proxy::listen();
        check_hooks_steer(world, &proxy);
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
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
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
        if !can_limit_hooks_to_the_host() {
            return;
        }
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        assert_eq!(
            (mechanism(), installed()["hooks_see"].as_str()),
            ("both".to_owned(), Some("host"))
        );
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
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
        let pin = maps.join("cv_sockets");
        sh(&format!(
            "bpftool map create {} type hash key 4 value 4 entries 1 name cv_sockets",
            pin.display()
        ));
        let output = run_to_the_end(&mut daemon(world, &EBPF));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(
            error.contains("cv_sockets is of another layout") && error.contains("uninstall"),
            "{error}"
        );
    });
}

#[test]
fn a_pinned_map_of_handshakes_of_another_layout_is_replaced() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let maps = world.bpffs().join("culvert/v1/maps");
        std::fs::create_dir_all(&maps).unwrap();
        sh(&format!(
            "bpftool map create {}/cv_tuples type lru_hash key 36 value 20 entries 65536 name \
             cv_tuples",
            maps.display()
        ));
        let _redirector = Redirector::start(world, &EBPF);
        let proxy = Proxy::listen();
        check_hooks_steer(world, &proxy);
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
fn a_hierarchy_of_the_first_version_is_refused_with_the_one_of_the_second() {
    in_a_world(|world| {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        // On a host without cgroup v1, any other directory will do.
        let first = mounts
            .lines()
            .find(|line| line.contains(" - cgroup "))
            .and_then(|line| line.split(' ').nth(4));
        let output = run_to_the_end(&mut daemon(
            world,
            &[&BOTH[..], &["--cgroup", first.unwrap_or("/")]].concat(),
        ));
        let error = String::from_utf8(output.stderr).unwrap();
        let second = world.cgroup().parent().unwrap();
        let named = format!(
            "of a cgroup2 file system; this host's is {}, which",
            second.display()
        );
        assert!(
            !output.status.success() && error.contains(&named),
            "{error}"
        );
    });
}

#[test]
fn a_container_s_own_cgroups_are_not_taken_for_the_hosts() {
    in_a_world(|world| {
        let mut contained = contained(&daemon(world, &EBPF));
        contained.env_remove("CULVERT_CGROUP");
        let output = run_to_the_end(&mut contained);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(
            error.contains("are roots of containers") && error.contains("by --cgroup"),
            "{error}"
        );
    });
}
