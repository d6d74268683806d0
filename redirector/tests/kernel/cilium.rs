//! Tests beside Cilium, and beside data planes that bypass nftables.

use std::net::TcpStream;
use std::path::Path;

use crate::clients::can_limit_hooks_to_the_host;
use crate::coexistence::assert_ours_steers;
use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::foreign::{Family, Foreign};
use crate::proxy::{Proxy, Sockets, so_original_dst};
use crate::redirector::{
    BOTH, EBPF, Redirector, daemon, get, installed, mechanism, run, run_to_the_end,
};
use crate::world::{DEADLINE, World, address, eventually, in_a_world, sh, within};

/// Creates pins like those of Cilium's hooks on `cgroup`.
fn pin_cilium(world: &World, cgroup: &Path, names: &[&str]) {
    for name in names {
        let family = if name.contains('4') {
            Family::V4
        } else {
            Family::V6
        };
        let pin = world
            .bpffs()
            .join("cilium/socketlb/links/cgroup")
            .join(name);
        Foreign::load(world, &name[..15], family, &[]).link(cgroup, &pin);
    }
}

/// At the root cgroup, the hooks see every process of this machine. With these flags they ignore
/// processes in other network namespaces.
fn at_the_root(world: &World) -> [&str; 4] {
    [
        "--cgroup",
        world.root_cgroup().to_str().unwrap(),
        "--hooks",
        "host",
    ]
}

#[test]
fn beside_a_cilium_that_does_not_bear_hooks_nftables_alone_steers_unless_told_otherwise() {
    in_a_world(|world| {
        if !can_limit_hooks_to_the_host() {
            return;
        }
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        std::fs::create_dir(world.bpffs().join("cilium")).unwrap();
        let root = at_the_root(world);
        let output = run_to_the_end(&mut daemon(world, &[&EBPF[..], &root[..2]].concat()));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && error.contains("--beside-cilium"),
            "{error}"
        );
        let redirector = Redirector::start(world, &[&BOTH[..], &root].concat());
        let proxy = Proxy::listen();
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        assert_eq!(
            so_original_dst(&proxy.accept()),
            Some(address("10.0.3.7:9100"))
        );
        assert!(!redirector.has_hooks(world));
        assert!(
            installed()["fallback"]
                .as_str()
                .unwrap()
                .contains("none like our cv_connect4"),
            "{}",
            installed()
        );
        redirector.kill();
        let _redirector =
            Redirector::start(world, &[&BOTH[..], &root, &["--beside-cilium"]].concat());
        assert_eq!(mechanism(), "both");
        assert_ours_steers(&proxy, &Sockets::open(world));
    });
}

#[test]
fn hooks_give_way_to_a_cilium_that_comes_later_and_come_back_when_it_has_gone() {
    in_a_world(|world| {
        if !can_limit_hooks_to_the_host() {
            return;
        }
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let root = at_the_root(world);
        let redirector = Redirector::start(world, &[&BOTH[..], &root].concat());
        assert_eq!(mechanism(), "both");
        assert!(redirector.has_hooks(world));
        let cilium = world.bpffs().join("cilium");
        std::fs::create_dir(&cilium).unwrap();
        within(3 * DEADLINE, "hooks go", || {
            (mechanism() == "nftables" && !redirector.has_hooks(world)).then_some(())
        });
        let proxy = Proxy::listen();
        // The kernel detaches a hook a moment after its pin has gone.
        eventually("nftables steers", || {
            let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
            so_original_dst(&proxy.accept()).filter(|to| *to == address("10.0.3.7:9100"))
        });
        let ready = get("/readyz").unwrap();
        assert!(
            ready.contains("\r\n\r\nok\nhooks: nftables alone steers connections: Cilium"),
            "{ready}"
        );
        std::fs::remove_dir(&cilium).unwrap();
        within(3 * DEADLINE, "hooks come back", || {
            (mechanism() == "both").then_some(())
        });
        assert_ours_steers(&proxy, &Sockets::open(world));
    });
}

#[test]
fn a_redirector_that_cannot_see_pods_is_not_ready_unless_told_that_it_need_not() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        pin_cilium(world, world.cgroup(), &["cil_sock4_connect"]);
        let unseen = |flags: &[&str], data_plane: &str| {
            let cause = format!("pods: {data_plane} is on this host");
            let redirector = Redirector::start_unready(world, flags);
            eventually("the cause", || {
                get("/readyz").filter(|answer| answer.contains(&cause))
            });
            assert!(
                installed()["unseen_pods"]
                    .as_str()
                    .unwrap()
                    .contains("--accept-unseen-pods")
            );
            redirector.kill();
            Redirector::start(world, &[flags, &["--accept-unseen-pods"]].concat()).kill();
        };
        let nftables = ["--mechanism", "nftables", "--dns-listen", "none"];
        unseen(&nftables, "Cilium in place of kube-proxy");
        let limits_hooks = can_limit_hooks_to_the_host();
        if limits_hooks {
            unseen(&BOTH, "Cilium in place of kube-proxy");
        }
        // All hooks see pods unless the pods are outside the cgroup.
        let all = [&BOTH[..], &["--hooks", "all"]].concat();
        Redirector::start(world, &all).kill();
        let kubepods = world.root_cgroup().join("kubepods");
        let made = std::fs::create_dir(&kubepods);
        unseen(&all, "Cilium in place of kube-proxy");
        if made.is_ok() {
            std::fs::remove_dir(&kubepods).unwrap();
        }
        std::fs::remove_dir_all(world.bpffs().join("cilium")).unwrap();
        sh("ip link add ovn-k8s-mp0 type veth peer name ovn-far");
        if limits_hooks {
            unseen(&BOTH, "OVN-Kubernetes");
        }
    });
}

#[test]
fn a_cilium_is_named_with_its_hooks() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        pin_cilium(
            world,
            world.cgroup(),
            &["cil_sock4_connect", "cil_sock6_connect"],
        );
        let redirector = Redirector::start(world, &EBPF);
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
        assert_ours_steers(&proxy, &sockets);
        let status = run(world, &["status"]);
        let line = "cilium        has hooks of its own: cil_sock4_connect, cil_sock6_connect\n";
        assert!(status.contains(line), "{status}");
        redirector.kill();
        run(world, &["uninstall"]);
        let left = sh(&format!(
            "find {} -type f",
            world.bpffs().join("cilium").display()
        ));
        assert_eq!(left.lines().count(), 2, "its pins stay: {left}");
    });
}
