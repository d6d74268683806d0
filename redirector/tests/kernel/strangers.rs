//! Programs in network namespaces of their own that have the host's address. Every user may make
//! such a namespace: no right on the host is needed.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::clients::{Client, can_limit_hooks_to_the_host, reset};
use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::proxy::{Proxy, Sockets, so_original_dst};
use crate::redirector::{BOTH, EBPF, Redirector, counted};
use crate::world::{NODE4, Netns, World, eventually, in_a_world, sh};

/// The source port of the victim, which the stranger uses too.
const PORT: u16 = 40_000;

/// How the stranger gets the port of its victim.
#[derive(Clone, Copy, Debug)]
enum SourcePort {
    /// It asks for the port with `bind()`.
    Bound,
    /// The kernel chooses it at `connect()`.
    Chosen,
}

/// What becomes of the stranger's connection.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It waits, with its destination in the victim's place.
    Waits,
    /// It is refused, and its destination removed.
    Refused,
}

/// Dials a VIP as uid nobody, in a user and network namespace of its own with the host's address.
fn stranger(port: SourcePort, fate: Fate) -> Child {
    let (range, bound) = match port {
        SourcePort::Bound => ("32768 60999".to_owned(), format!("--local-port {PORT}")),
        SourcePort::Chosen => (format!("{PORT} {PORT}"), String::new()),
    };
    let drop = match fate {
        Fate::Waits => {
            "nft 'add table ip x; add chain ip x in { type filter hook input priority 0; policy \
             drop; }'"
        }
        Fate::Refused => "true",
    };
    // A steered connection leads to the address of the host, which is on lo here.
    let script = format!(
        "set -e; ip link set lo up; ip addr add {NODE4}/32 dev lo; \
         echo {range} > /proc/sys/net/ipv4/ip_local_port_range; {drop}; \
         exec curl --silent --max-time 60 {bound} http://198.18.0.4:80/"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--net", "bash", "-c"]);
    unshare
        .arg(script)
        .uid(65_534)
        .gid(65_534)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A host's client whose handshake has begun when a stranger dials from its address and port.
fn attack(world: &World, proxy: &Proxy, sockets: &Sockets, port: SourcePort, fate: Fate) {
    sh(
        "nft 'add table ip hold; add chain ip hold in { type filter hook input priority 0; }; \
         add rule ip hold in tcp dport { 7410, 7411 } drop'",
    );
    let victim = Client::bound_to(&format!("{NODE4}:{PORT}"));
    fcntl(&victim.0, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    victim.dial("198.18.0.1:80").unwrap_err();
    let before = counted("steered");
    let mut stranger = stranger(port, fate);
    let ended = eventually("the stranger has dialled", || {
        let ended = stranger.try_wait().unwrap();
        let waits = matches!(fate, Fate::Waits) && counted("steered") > before;
        (ended.is_some() || waits).then_some(ended)
    });
    if let Some(status) = ended {
        // 7 is curl's status for "could not connect". A user who may not make a namespace does not
        // come so far.
        assert_eq!(status.code(), Some(7), "{port:?}, {fate:?}");
    }
    sh("nft delete table ip hold");
    let accepted = proxy.accept();
    let by_hooks = sockets.original_dst(&accepted);
    assert_eq!(
        by_hooks.or_else(|| so_original_dst(&accepted)),
        Some("198.18.0.1:80".parse().unwrap()),
        "{port:?}, {fate:?}, in {}",
        world.cgroup().display()
    );
    // It may have ended.
    let _gone = stranger.kill();
    stranger.wait().unwrap();
    reset(victim.stream());
    reset(accepted);
}

/// With nftables, that steers the victim: it is bound to a port. Without, the hooks do.
fn attack_in_every_way(flags: &[&str]) {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        for mechanism in [EBPF, BOTH] {
            let redirector = Redirector::start(world, &[&mechanism[..], flags].concat());
            let proxy = Proxy::listen();
            let sockets = Sockets::open(world);
            for port in [SourcePort::Bound, SourcePort::Chosen] {
                for fate in [Fate::Waits, Fate::Refused] {
                    attack(world, &proxy, &sockets, port, fate);
                }
            }
            redirector.kill();
        }
    });
}

#[test]
fn a_stranger_with_the_hosts_address_moves_and_resets_no_connection_of_the_host() {
    attack_in_every_way(&[]);
}

#[test]
fn with_hooks_for_all_a_stranger_with_the_hosts_address_moves_and_resets_no_connection() {
    attack_in_every_way(&["--hooks", "all"]);
}

#[test]
fn a_container_with_the_hosts_address_dials_as_its_own_network_wants_it() {
    in_a_world(|world| {
        if !can_limit_hooks_to_the_host() {
            return;
        }
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &BOTH);
        let proxy = Proxy::listen();
        // As pasta makes one for Podman: it has the host's address, and what it dials leaves by a
        // process on the host. Here a server on its loopback stands for that process.
        let container = Netns::new();
        container.run(|| {
            sh(&format!(
                "ip addr add {NODE4}/32 dev lo; ip addr add 10.0.3.7/32 dev lo"
            ));
            let outlet = TcpListener::bind("10.0.3.7:9100").unwrap();
            let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
            outlet.accept().unwrap();
        });
        assert!(proxy.try_accept().is_none());
    });
}
