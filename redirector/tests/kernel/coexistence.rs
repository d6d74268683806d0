//! Tests beside other programs' connect hooks, other tables, other cgroup hierarchies, and other
//! uses of the range of VIPs.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use nix::libc::EPERM;

use crate::clients::Client;
use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::foreign::{Family, Foreign, Rule};
use crate::proxy::{Proxy, Sockets, so_original_dst};
use crate::redirector::{BOTH, EBPF, Redirector, daemon, run, run_to_the_end};
use crate::world::{Cgroup, NODE4, NODE6, World, address, eventually, in_a_world, sh};

/// The position of another program relative to ours. The kernel runs programs of the socket's own
/// cgroup first, then those of its parents; in one cgroup, in the order in which they were
/// attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Below,
    Before,
    Behind,
    Above,
}

const POSITIONS: [Position; 4] = [
    Position::Below,
    Position::Before,
    Position::Behind,
    Position::Above,
];

/// Three nested cgroups. Ours is the middle one; this process is in the innermost.
struct Nest<'a> {
    world: &'a World,
    inner: Cgroup,
    ours: Cgroup,
}

impl<'a> Nest<'a> {
    fn new(world: &'a World) -> Self {
        let name = |cgroup: &Path| cgroup.file_name().unwrap().to_str().unwrap().to_owned();
        let ours = Cgroup::enter(&format!("{}/ours", name(world.cgroup())));
        let inner = Cgroup::enter(&format!(
            "{}/{}/inner",
            name(world.cgroup()),
            name(ours.path())
        ));
        Self { world, inner, ours }
    }

    fn cgroup(&self, place: Position) -> &Path {
        match place {
            Position::Below => self.inner.path(),
            Position::Before | Position::Behind => self.ours.path(),
            Position::Above => self.world.cgroup(),
        }
    }

    /// Attaches one program per position, with its rules; `start` starts our hooks in between.
    fn around<T>(&self, rules: impl Fn(Position) -> Vec<Rule>, start: impl FnOnce(&str) -> T) -> T {
        let attach = |place: Position| {
            for (family, suffix) in [(Family::V4, "4"), (Family::V6, "6")] {
                let name = format!("other_{place:?}{suffix}").to_lowercase();
                Foreign::load(self.world, &name, family, &rules(place))
                    .attach(self.cgroup(place), "multi");
            }
        };
        [Position::Below, Position::Before, Position::Above]
            .into_iter()
            .for_each(attach);
        let started = start(self.ours.path().to_str().unwrap());
        attach(Position::Behind);
        started
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An address of each family that only this position's program uses.
fn own(place: Position, what: u8) -> [IpAddr; 2] {
    let number = what + place as u8;
    [
        ip(&format!("192.0.2.{number}")),
        ip(&format!("2001:db8::{number}")),
    ]
}

const DENIED: u8 = 10;

const REWRITTEN: u8 = 20;

#[track_caller]
pub(crate) fn assert_ours_steers(proxy: &Proxy, sockets: &Sockets) {
    for destination in [
        "10.0.3.7:9100",
        "[fd00::7]:9100",
        "[::ffff:10.0.3.7]:10250",
        "198.18.0.1:1",
    ] {
        let client = TcpStream::connect(destination).unwrap();
        let dialled = crate::proxy::canonical(address(destination));
        assert_eq!(sockets.original_dst(&proxy.accept()), Some(dialled));
        assert_eq!(
            crate::proxy::canonical(client.peer_addr().unwrap()),
            dialled
        );
    }
}

#[track_caller]
fn assert_theirs_work(server: &TcpListener) {
    for place in POSITIONS {
        for denied in own(place, DENIED) {
            let error = TcpStream::connect((denied, 80)).unwrap_err();
            assert_eq!(
                error.raw_os_error(),
                Some(EPERM),
                "{place:?} refuses {denied}"
            );
        }
        for rewritten in own(place, REWRITTEN) {
            let client = TcpStream::connect((rewritten, 80)).unwrap();
            let (_accepted, from) = server.accept().unwrap();
            assert_eq!(
                crate::proxy::canonical(from),
                client.local_addr().unwrap(),
                "{place:?} rewrites {rewritten}"
            );
        }
    }
}

#[test]
fn connect_hooks_below_before_behind_and_above_ours_do_their_work_and_ours_does_its() {
    in_a_world(|world| {
        let nest = Nest::new(world);
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let rules = |place| {
            let to = [
                SocketAddr::new(ip(NODE4), 8000),
                SocketAddr::new(ip(NODE6), 8000),
            ];
            let rewrites = own(place, REWRITTEN)
                .into_iter()
                .zip(to)
                .map(|(from, to)| Rule::Rewrite(from, to));
            own(place, DENIED)
                .into_iter()
                .map(Rule::Deny)
                .chain(rewrites)
                .collect()
        };
        let start =
            |ours: &str| Redirector::start(world, &[&EBPF[..], &["--cgroup", ours]].concat());
        let redirector = nest.around(rules, start);
        let server = TcpListener::bind("[::]:8000").unwrap();
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
        assert_ours_steers(&proxy, &sockets);
        assert_theirs_work(&server);
        // First another redirector replaces it, then none.
        redirector.kill();
        let redirector = start(nest.ours.path().to_str().unwrap());
        assert_ours_steers(&proxy, &sockets);
        assert_theirs_work(&server);
        let status = run(world, &["status"]);
        assert!(status.contains("; before it runs program "), "{status}");
        assert_eq!(followers(world), Vec::<String>::new());
        redirector.kill();
        run(world, &["uninstall"]);
        assert_theirs_work(&server);
    });
}

#[test]
fn what_another_program_refuses_is_refused_and_leaves_nothing() {
    in_a_world(|world| {
        let nest = Nest::new(world);
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let rules = |place| {
            if place == Position::Before {
                vec![Rule::Deny(ip("10.0.3.7"))]
            } else {
                Vec::new()
            }
        };
        let _redirector = nest.around(rules, |ours| {
            Redirector::start(world, &[&EBPF[..], &["--cgroup", ours]].concat())
        });
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
        let client = Client::new_v4();
        assert_eq!(
            client.dial("10.0.3.7:9100").unwrap_err().raw_os_error(),
            Some(EPERM)
        );
        client.dial(&format!("{NODE4}:7410")).unwrap();
        assert_eq!(
            sockets.original_dst(&proxy.accept()),
            None,
            "the refused destination is not handed over"
        );
        assert!(proxy.try_accept().is_none());
    });
}

#[test]
fn an_address_that_another_program_makes_an_edge_address_is_steered() {
    in_a_world(|world| {
        let nest = Nest::new(world);
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        // As a Service's address is rewritten to one of its endpoints.
        let rules = |place| {
            vec![Rule::Rewrite(
                own(place, REWRITTEN)[0],
                address("10.0.3.7:9100"),
            )]
        };
        let _redirector = nest.around(rules, |ours| {
            Redirector::start(world, &[&BOTH[..], &["--cgroup", ours]].concat())
        });
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
        eventually("ours goes behind who came later", || {
            followers(world).is_empty().then_some(())
        });
        for place in POSITIONS {
            let _client = TcpStream::connect((own(place, REWRITTEN)[0], 80)).unwrap();
            let accepted = proxy.accept();
            // If the other program is above our hook, nftables sees the connection.
            let seen_by = if place == Position::Above {
                so_original_dst(&accepted)
            } else {
                sockets.original_dst(&accepted)
            };
            assert_eq!(seen_by, Some(address("10.0.3.7:9100")), "{place:?}");
        }
    });
}

#[test]
fn a_program_that_tolerates_none_beside_it_leaves_the_work_to_nftables() {
    in_a_world(|world| {
        let nest = Nest::new(world);
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        for place in [Position::Before, Position::Above] {
            let other = Foreign::load(
                world,
                &format!("exclusive_{}", place as u8),
                Family::V4,
                &[],
            );
            other.attach(nest.cgroup(place), "");
            let flags = ["--cgroup", nest.ours.path().to_str().unwrap()];
            let output = run_to_the_end(&mut daemon(world, &[&EBPF[..], &flags].concat()));
            let error = String::from_utf8(output.stderr).unwrap();
            for part in [
                "attach cv_connect4",
                "tolerates none beside it",
                "--mechanism nftables",
            ] {
                assert!(error.contains(part), "{place:?}: no {part:?} in {error}");
            }
            let _redirector = Redirector::start(world, &[&BOTH[..], &flags].concat());
            let proxy = Proxy::listen();
            let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
            assert_eq!(
                so_original_dst(&proxy.accept()),
                Some(address("10.0.3.7:9100")),
                "{place:?}"
            );
            // The kernel detaches what was attached before the refusal a moment after its last user.
            eventually("nothing is half installed", || {
                let attached = sh(&format!("bpftool cgroup tree {}", world.cgroup().display()));
                (!attached.contains("cv_")).then_some(())
            });
            drop(proxy);
            other.detach(nest.cgroup(place));
        }
    });
}

#[test]
fn of_two_redirectors_one_above_the_other_the_inner_one_keeps_the_destination() {
    in_a_world(|world| {
        let nest = Nest::new(world);
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let start = |cgroup: &Path| {
            Redirector::start(
                world,
                &[&EBPF[..], &["--cgroup", cgroup.to_str().unwrap()]].concat(),
            )
        };
        start(nest.ours.path()).kill();
        // The second redirector's mount hides the first one's pins, which stay.
        sh(&format!("mount -t bpf bpf {}", world.bpffs().display()));
        start(nest.inner.path()).kill();
        let sockets = Sockets::open(world);
        let proxy = Proxy::listen();
        for destination in ["10.0.3.7:9100", "[fd00::7]:9100"] {
            let client = TcpStream::connect(destination).unwrap();
            assert_eq!(
                sockets.original_dst(&proxy.accept()),
                Some(address(destination))
            );
            assert_eq!(client.peer_addr().unwrap(), address(destination));
        }
        sh(&format!("umount {}", world.bpffs().display()));
    });
}

/// The lines of `status` about other programs that see what our connect hooks decided.
fn followers(world: &World) -> Vec<String> {
    let status = run(world, &["status"]);
    let overtaken =
        |line: &&str| line.starts_with("cv_connect") && line.contains("; after it runs program ");
    status
        .lines()
        .filter(overtaken)
        .map(str::to_owned)
        .collect()
}

/// Another program's table: services before and after our chains, and a firewall.
const OTHER_TABLE: &str = "
    table inet other {
        chain early_out { type nat hook output priority -150; policy accept;
            ip daddr 192.0.2.20 tcp dport 80 dnat ip to 10.9.0.1:8000; }
        chain early_pre { type nat hook prerouting priority -150; policy accept;
            ip daddr 192.0.2.20 tcp dport 80 dnat ip to 10.9.0.1:8000; }
        chain late_out { type nat hook output priority -90; policy accept;
            ip daddr { 192.0.2.21, 10.0.3.7, 198.18.0.1 } tcp dport { 80, 9100 } dnat ip to 10.9.0.1:8000; }
        chain late_pre { type nat hook prerouting priority -90; policy accept;
            ip daddr { 192.0.2.21, 10.0.3.7, 198.18.0.1 } tcp dport { 80, 9100 } dnat ip to 10.9.0.1:8000; }
        chain early_in { type filter hook input priority -10; policy drop;
            ct state established,related accept
            tcp dport { 7410, 7411, 8000, 8001 } accept
            iifname lo accept; }
        chain late_in { type filter hook input priority 10; policy accept;
            tcp dport 8001 reject with tcp reset; }
    }";

#[test]
fn another_table_translates_and_refuses_before_and_behind_ours_and_stays_as_it_was() {
    in_a_world(|world| {
        let file = world.bpffs().with_file_name("other.nft");
        std::fs::write(&file, OTHER_TABLE).unwrap();
        sh(&format!("nft -f {}", file.display()));
        let before = sh("nft list table inet other");
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let redirector =
            Redirector::start(world, &["--mechanism", "nftables", "--dns-listen", "none"]);
        let proxy = Proxy::listen();
        let servers = [8000, 8001].map(|port| TcpListener::bind((NODE4, port)).unwrap());
        let check = || {
            for theirs in ["192.0.2.20:80", "192.0.2.21:80"] {
                let _client = TcpStream::connect(theirs).unwrap();
                servers[0].accept().unwrap();
            }
            TcpStream::connect((NODE4, 8001)).unwrap_err();
        };
        for place in [None, Some(&world.pods[0])] {
            let run = |action: &(dyn Fn() + Sync)| place.map_or_else(action, |pod| pod.run(action));
            run(&check);
            for ours in ["10.0.3.7:9100", "198.18.0.1:80"] {
                run(&|| {
                    let _client = TcpStream::connect(ours).unwrap();
                    assert_eq!(
                        so_original_dst(&proxy.accept()),
                        Some(address(ours)),
                        "the first translation wins"
                    );
                });
            }
        }
        redirector.kill();
        run(world, &["uninstall"]);
        check();
        world.pods[0].run(check);
        assert_eq!(sh("nft list table inet other"), before);
        assert_eq!(sh("nft list tables").trim(), "table inet other");
    });
}
