//! Tests of source ports: each edge destination has all of them, as if it were dialled directly.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use nix::libc::EADDRNOTAVAIL;

use crate::clients::{Client, can_limit_hooks_to_the_host};
use crate::fake_directory::{FakeDirectory, usual_nodes};
use crate::proxy::{Proxy, Sockets, canonical, so_original_dst};
use crate::redirector::{BOTH, Redirector};
use crate::world::{NODE4, NODE6, World, address, in_a_world, sh};

/// Destinations that are dialled by turns.
const DESTINATIONS: u8 = 8;

/// What clients of the host dial.
struct Servers<'a> {
    destinations: Vec<SocketAddr>,
    accept: Box<dyn Fn() -> TcpStream + 'a>,
}

/// A host with the usual mechanisms.
struct Host {
    _directory: FakeDirectory,
    _redirector: Redirector,
    proxy: Proxy,
    sockets: Sockets,
}

impl Host {
    fn new(world: &World) -> Self {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Self {
            _redirector: Redirector::start(world, &BOTH),
            _directory: directory,
            proxy: Proxy::listen(),
            sockets: Sockets::open(world),
        }
    }

    /// VIPs, which are steered whether or not a node has them.
    fn edges(&self) -> Servers<'_> {
        Servers {
            destinations: numbered([198, 19, 200]),
            accept: Box::new(|| self.proxy.accept()),
        }
    }

    /// The proxy's next connection, which must be for `destination`.
    #[track_caller]
    fn accepts(&self, destination: &str) -> TcpStream {
        let accepted = self.proxy.accept();
        let by_hooks = self.sockets.original_dst(&accepted);
        let found = by_hooks.or_else(|| so_original_dst(&accepted));
        assert_eq!(found, Some(address(destination)));
        accepted
    }
}

/// As many addresses of another host, which are dialled directly.
fn direct(world: &World) -> Servers<'_> {
    let destinations = numbered([10, 0, 4]);
    let listener = world.outside.run(|| {
        for destination in &destinations {
            sh(&format!("ip addr add {}/32 dev lo", destination.ip()));
        }
        TcpListener::bind("0.0.0.0:9100").unwrap()
    });
    Servers {
        destinations,
        accept: Box::new(move || listener.accept().unwrap().0),
    }
}

fn numbered([a, b, c]: [u8; 3]) -> Vec<SocketAddr> {
    let mut destinations = Vec::new();
    for last in 1..=DESTINATIONS {
        destinations.push(SocketAddr::from(([a, b, c, last], 9100)));
    }
    destinations
}

/// Limits the ports that the kernel gives to clients of the host.
fn limit_source_ports(count: u16) {
    let range = format!("20000 {}", 20_000 + count - 1);
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
}

/// Dials; `None` if the kernel has no source port left.
fn dial(destination: SocketAddr) -> Option<TcpStream> {
    match TcpStream::connect(destination) {
        Ok(client) => Some(client),
        Err(error) if error.raw_os_error() == Some(EADDRNOTAVAIL) => None,
        Err(error) => panic!("{destination}: {error}"),
    }
}

/// How many connections to all destinations can be open at once.
fn open_at_once(servers: &Servers<'_>) -> usize {
    let mut open = Vec::new();
    for destination in &servers.destinations {
        while let Some(client) = dial(*destination) {
            open.push((client, (servers.accept)()));
        }
    }
    open.len()
}

/// How many of `count` short connections find no source port. Their clients close first and keep
/// their ports for another minute (TIME_WAIT).
fn lost_of_short_ones(servers: &Servers<'_>, count: usize) -> usize {
    let mut lost = 0;
    for destination in servers.destinations.iter().cycle().take(count) {
        match dial(*destination) {
            Some(client) => {
                let accepted = (servers.accept)();
                drop(client);
                drop(accepted);
            }
            None => lost += 1,
        }
    }
    lost
}

/// Dials `destination` from one port of the host. It is bound as a server's is, so that several
/// sockets can have it.
fn dial_from_one_port(destination: &str) -> io::Result<Client> {
    let client = Client::bound_to("0.0.0.0:40123");
    client.dial(destination).map(|()| client)
}

#[test]
fn one_source_port_reaches_eight_edge_destinations() {
    in_a_world(|world| {
        if !can_limit_hooks_to_the_host() {
            return;
        }
        let host = Host::new(world);
        let mut open = Vec::new();
        for destination in host.edges().destinations {
            let destination = destination.to_string();
            let client = dial_from_one_port(&destination).unwrap();
            open.push((client, host.accepts(&destination)));
        }
        for (client, accepted) in open {
            let peer = canonical(accepted.peer_addr().unwrap());
            assert_eq!(peer, client.stream().local_addr().unwrap());
        }
    });
}

#[test]
fn one_source_port_of_an_address_of_the_host_reaches_eight_edge_destinations() {
    in_a_world(|world| {
        let host = Host::new(world);
        for (source, prefix) in [
            (format!("{NODE4}:40123"), "198.19.200."),
            (format!("[{NODE6}]:40123"), "fd12:3456:789a:bcde::c8:"),
        ] {
            let mut open = Vec::new();
            for last in 1..=DESTINATIONS {
                let destination = if prefix.ends_with(':') {
                    format!("[{prefix}{last}]:9100")
                } else {
                    format!("{prefix}{last}:9100")
                };
                let client = Client::bound_to(&source);
                client
                    .dial(&destination)
                    .unwrap_or_else(|error| panic!("{source} to {destination}: {error}"));
                let accepted = host.proxy.accept();
                assert_eq!(so_original_dst(&accepted), Some(address(&destination)));
                open.push((client, accepted));
            }
        }
    });
}

#[test]
fn as_many_connections_are_open_at_once_to_edge_nodes_as_to_other_hosts() {
    in_a_world(|world| {
        if !can_limit_hooks_to_the_host() {
            return;
        }
        let host = Host::new(world);
        let direct = direct(world);
        limit_source_ports(40);
        assert_eq!(open_at_once(&direct), 40 * usize::from(DESTINATIONS));
        assert_eq!(open_at_once(&host.edges()), 40 * usize::from(DESTINATIONS));
    });
}

#[test]
fn short_connections_to_edge_nodes_find_a_source_port_as_often_as_direct_ones() {
    in_a_world(|world| {
        if !can_limit_hooks_to_the_host() {
            return;
        }
        let host = Host::new(world);
        let direct = direct(world);
        limit_source_ports(2_000);
        let count = 14_000;
        let lost_directly = lost_of_short_ones(&direct, count);
        let lost = lost_of_short_ones(&host.edges(), count);
        println!("of {count} lost: {lost}, directly {lost_directly}");
        assert!(lost <= lost_directly, "{lost}, directly {lost_directly}");
    });
}

/// kubelet and kube-proxy drop packets to loopback addresses that come from others (KUBE-FIREWALL).
#[test]
fn a_kubelets_rule_about_loopback_addresses_drops_no_steered_connection() {
    in_a_world(|world| {
        const RULE: &str = "ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 \
                            ct state != { established, related } ct status != dnat drop";
        let host = Host::new(world);
        sh(&format!(
            "nft 'add table ip kubelet; \
             add chain ip kubelet in {{ type filter hook input priority 0; }}; \
             add chain ip kubelet out {{ type filter hook output priority 0; }}; \
             add rule ip kubelet in {RULE}; add rule ip kubelet out {RULE}'"
        ));
        let clients = [
            Client::new_v4(),
            Client::bound_to("0.0.0.0:40123"),
            Client::bound_to("127.0.0.1:0"),
            Client::bound_to("10.9.0.1:0"),
            Client::bound_to("10.244.1.1:0"),
            Client::new_v4().on_device("up0"),
        ];
        // The node's own address cannot be reached by this interface.
        let on_loopback = can_limit_hooks_to_the_host().then(|| Client::new_v4().on_device("lo"));
        for client in clients.into_iter().chain(on_loopback) {
            client.dial("10.0.3.7:9100").unwrap();
            host.accepts("10.0.3.7:9100");
            assert_eq!(
                client.stream().peer_addr().unwrap(),
                address("10.0.3.7:9100")
            );
        }
        let client = Client::new_v6();
        client.dial("[::ffff:10.0.3.7]:9100").unwrap();
        host.accepts("10.0.3.7:9100");
    });
}
