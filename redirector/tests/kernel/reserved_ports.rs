//! While the proxy is dead, nobody else may answer on its ports.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};

use culvert_redirector_common::names::{BIND4, BIND6};

use crate::clients::{as_user, can_limit_hooks_to_the_host};
use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::foreign::{Family, Foreign};
use crate::proxy::{Proxy, Sockets};
use crate::redirector::{EBPF, Redirector, contained, counted, daemon, installed, link_ids, run};
use crate::world::{DEADLINE, Netns, World, eventually, in_a_world, within};

const ROOT: u32 = 0;
const NOBODY: u32 = 65_534;
/// Of the proxy's sockets.
const OWNER: u32 = 990;

/// Listening addresses of all kinds, each on another intercept port.
const INTERCEPT: [&str; 5] = [
    "127.70.1.2:7410",
    "0.0.0.0:7411",
    "[::]:7412",
    "10.9.0.1:7413",
    "[::ffff:127.0.0.1]:7410",
];

/// Starts a redirector with the ports of [`INTERCEPT`].
fn start(world: &World) -> Redirector {
    Redirector::start(world, &flags())
}

fn flags() -> Vec<&'static str> {
    [&EBPF[..], &["--intercept-port", "7410,7411,7412,7413"]].concat()
}

/// Runs `action` where the ports are reserved: before Linux 5.14 that is the initial network
/// namespace, whatever the redirector's.
fn beside_the_proxy<T: Send>(action: impl FnOnce() -> T + Send) -> T {
    if can_limit_hooks_to_the_host() {
        return action();
    }
    Netns::of_init().run(action)
}

/// Whether a process of this user may listen there.
fn may_listen(user: u32, address: &str) -> bool {
    let listened = as_user(user, || TcpListener::bind(address));
    match listened.map_err(|error| error.kind()) {
        // The initial network namespace may have no such address.
        Ok(_) | Err(ErrorKind::AddrNotAvailable) => true,
        Err(ErrorKind::PermissionDenied) => false,
        Err(other) => panic!("{user} at {address}: {other}"),
    }
}

/// The addresses of [`INTERCEPT`] where this user may listen.
fn where_listening(user: u32) -> Vec<&'static str> {
    beside_the_proxy(|| {
        let mut addresses = INTERCEPT.to_vec();
        addresses.retain(|address| may_listen(user, address));
        addresses
    })
}

#[test]
fn while_the_proxy_is_dead_only_root_may_listen_on_its_ports() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = start(world);
        drop(Proxy::listen());
        drop(directory);
        assert_eq!(where_listening(NOBODY), [""; 0]);
        assert_eq!(counted("bind_refused"), 5);
        redirector.kill();
        assert_eq!(where_listening(NOBODY), [""; 0], "without a redirector too");
        assert_eq!(where_listening(ROOT), INTERCEPT);
        let status = run(world, &["status"]);
        let reserved = "reserved      ports 7410, 7411, 7412, 7413 for root\n";
        assert!(
            status.contains(reserved) && status.contains("bind_refused 10"),
            "{status}"
        );
        // Another proxy serves.
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = start(world);
        let proxy = Proxy::listen();
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        assert_eq!(
            Sockets::open(world).original_dst(&proxy.accept()),
            Some("10.0.3.7:9100".parse().unwrap())
        );
        drop(proxy);
        redirector.kill();
        run(world, &["uninstall"]);
        // The kernel detaches a hook a moment after its pin has gone.
        eventually("every user may listen", || {
            (where_listening(NOBODY) == INTERCEPT).then_some(())
        });
    });
}

#[test]
fn other_ports_protocols_and_network_namespaces_are_every_users() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = start(world);
        beside_the_proxy(|| {
            assert!(!may_listen(NOBODY, "0.0.0.0:7410"));
            for address in ["0.0.0.0:7409", "[::]:7414", "127.0.0.1:0"] {
                assert!(may_listen(NOBODY, address), "{address}");
            }
            as_user(NOBODY, || UdpSocket::bind("0.0.0.0:7410")).unwrap();
        });
        world.pods[0].run(|| {
            for address in ["0.0.0.0:7410", "[::]:7411"] {
                assert!(may_listen(NOBODY, address), "{address}");
            }
        });
    });
}

#[test]
fn whose_the_folder_of_the_proxys_sockets_is_may_listen_too() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let folder = world.directory_socket().with_file_name("");
        let redirector = start(world);
        assert_eq!(where_listening(OWNER), [""; 0]);
        // Its proxy cannot have started yet.
        drop(directory);
        std::os::unix::fs::chown(&folder, Some(OWNER), None).unwrap();
        eventually("the owner may listen", || {
            (where_listening(OWNER) == INTERCEPT).then_some(())
        });
        assert_eq!(where_listening(NOBODY), [""; 0]);
        assert_eq!(installed()["reserved_for"], OWNER);
        redirector.kill();
        assert_eq!(where_listening(OWNER), INTERCEPT);
    });
}

#[test]
fn hooks_of_a_version_that_reserved_no_ports_are_taken_over_and_ports_reserved() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector = start(world);
        let before = link_ids();
        redirector.kill();
        let pins = world.bpffs().join("culvert/v1");
        for name in [BIND4, BIND6] {
            std::fs::remove_file(pins.join("links").join(name)).unwrap();
        }
        std::fs::remove_file(pins.join("maps/cv_reserved")).unwrap();
        eventually("the former version reserves nothing", || {
            (where_listening(NOBODY) == INTERCEPT).then_some(())
        });
        let _redirector = start(world);
        assert_eq!(where_listening(NOBODY), [""; 0]);
        assert_eq!(link_ids()[..5], before[..5]);
    });
}

#[test]
fn bind_hooks_that_somebody_removed_come_back() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = start(world);
        let pin = world.bpffs().join("culvert/v1/links").join(BIND6);
        std::fs::remove_file(&pin).unwrap();
        within(3 * DEADLINE, "it is back", || pin.exists().then_some(()));
        assert_eq!(where_listening(NOBODY), [""; 0]);
    });
}

/// It sees no cgroup above the world's, so nothing of other tests is concerned.
#[test]
fn bind_hooks_that_a_program_of_others_kept_away_come_when_it_has_gone() {
    in_a_world(|world| {
        let exclusive = Foreign::load(world, "exclusive", Family::Bind4, &[]);
        exclusive.attach(world.cgroup(), "");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let mut daemon = contained(&daemon(world, &flags()));
        let redirector = Redirector::spawn(daemon.env("CULVERT_CGROUP", "/sys/fs/cgroup"));
        redirector.until_ready();
        let reason = eventually("the reason", || {
            installed()["unreserved"].as_str().map(str::to_owned)
        });
        assert!(reason.contains("tolerates none beside it"), "{reason}");
        assert_eq!(where_listening(NOBODY), INTERCEPT);
        exclusive.detach(world.cgroup());
        within(2 * DEADLINE, "the ports are reserved", || {
            where_listening(NOBODY).is_empty().then_some(())
        });
        eventually("nothing is wrong", || {
            installed()["unreserved"].is_null().then_some(())
        });
    });
}

#[test]
fn attempts_are_counted_for_the_check() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = start(world);
        eventually("the attempt is counted", || {
            beside_the_proxy(|| may_listen(NOBODY, "0.0.0.0:7410"));
            (installed()["refused_binds"].as_u64() > Some(0)).then_some(())
        });
    });
}

#[test]
fn beside_a_cilium_without_bind_hooks_ours_are_away_and_the_others_steer() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = start(world);
        let cilium = world.bpffs().join("cilium");
        std::fs::create_dir(&cilium).unwrap();
        within(3 * DEADLINE, "ours go", || {
            (where_listening(NOBODY) == INTERCEPT).then_some(())
        });
        let reason = within(3 * DEADLINE, "the reason", || {
            installed()["unreserved"].as_str().map(str::to_owned)
        });
        assert!(reason.contains("--beside-cilium"), "{reason}");
        let proxy = Proxy::listen();
        let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
        proxy.accept();
        drop(proxy);
        std::fs::remove_dir(&cilium).unwrap();
        within(3 * DEADLINE, "ours come back", || {
            where_listening(NOBODY).is_empty().then_some(())
        });
    });
}
