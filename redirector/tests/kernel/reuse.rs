//! Tests of reused source ports and sockets, and of many at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::clients::{Client, can_limit_hooks_to_the_host, reset};
use crate::proxy::Proxy;
use crate::redirector::counted;
use crate::steering::{Hooked, PROOF, tuples};
use crate::world::{NODE4, Netns, address, in_a_world, sh};

#[test]
fn ten_thousand_clients_that_write_and_close_at_once_keep_their_destinations() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let dialled =
            |number: u32| SocketAddr::from(([198, 19, (number >> 8) as u8, number as u8], 9100));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..10_000_u32 {
                    let mut client = TcpStream::connect(dialled(number)).unwrap();
                    client.write_all(&number.to_be_bytes()).unwrap();
                }
            });
            for _ in 0..10_000 {
                let mut accepted = hooked.proxy.accept();
                let original_dst = hooked.sockets.original_dst(&accepted);
                let mut number = [0; 4];
                accepted.read_exact(&mut number).unwrap();
                assert_eq!(original_dst, Some(dialled(u32::from_be_bytes(number))));
            }
        });
        assert_eq!(
            (counted("steered"), counted("accepted"), counted("unknown")),
            (PROOF + 10_000, 10_000, 0)
        );
        assert_eq!(tuples(world), "[]", "no handshake leaves anything behind");
    });
}

#[test]
fn a_source_port_used_again_does_not_inherit_a_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let dial = |source: &str, destination: &str| {
            let client = Client::bound_to(source);
            client.dial(destination).unwrap();
            client.stream()
        };
        // The same source port in two pods at once, steered to one intercept port.
        let first = world.pods[0].run(|| dial("10.244.1.2:40000", "198.18.0.1:80"));
        hooked.accepts("198.18.0.1:80");
        let second = world.pods[1].run(|| dial("10.244.2.2:40000", "198.18.0.4:80"));
        hooked.accepts("198.18.0.4:80");
        // Again in one pod, a moment later, to another destination.
        reset(first);
        reset(second);
        let _third = world.pods[0].run(|| dial("10.244.1.2:40000", "198.18.0.3:80"));
        hooked.accepts("198.18.0.3:80");
    });
}

#[test]
fn another_host_of_this_kernel_with_the_same_addresses_takes_no_destination() {
    in_a_world(|world| {
        const CLIENT: &str = "10.9.0.1:40000";
        let hooked = Hooked::new(world);
        sh(
            "nft 'add table ip hold; add chain ip hold in { type filter hook input priority 0; }; \
            add rule ip hold in tcp dport { 7410, 7411 } drop'",
        );
        let client = Client::bound_to(CLIENT);
        fcntl(&client.0, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        client.dial("198.18.0.1:80").unwrap_err();
        assert_ne!(tuples(world), "[]", "the handshake is pending");
        let twin = Netns::new();
        twin.run(|| {
            sh(&format!("ip addr add {NODE4}/32 dev lo"));
            for port in [7410, 7411] {
                let server = TcpListener::bind((NODE4, port)).unwrap();
                let client = Client::bound_to(CLIENT);
                client.dial(&format!("{NODE4}:{port}")).unwrap();
                let (accepted, _) = server.accept().unwrap();
                reset(client.stream());
                drop(accepted);
            }
        });
        sh("nft delete table ip hold");
        hooked.accepts("198.18.0.1:80");
    });
}

#[test]
fn connections_accepted_by_another_host_of_this_kernel_are_not_counted() {
    if !can_limit_hooks_to_the_host() {
        eprintln!("does not apply: the kernel shows no program its network namespace");
        return;
    }
    in_a_world(|world| {
        let _hooked = Hooked::new(world);
        let loopback = "127.64.0.1";
        Netns::new().run(|| {
            sh(&format!("ip addr add {NODE4}/32 dev lo"));
            for host in [NODE4, loopback] {
                for port in [7410, 7411, 7412] {
                    let server = TcpListener::bind((host, port)).unwrap();
                    let _client = TcpStream::connect((host, port)).unwrap();
                    server.accept().unwrap();
                }
            }
        });
        assert_eq!((counted("accepted"), counted("unknown")), (0, 0));
    });
}

#[test]
fn a_refused_connect_leaves_nothing_for_the_next_one_from_its_port() {
    in_a_world(|world| {
        let Hooked {
            proxy,
            sockets,
            redirector: _redirector,
            ..
        } = Hooked::new(world);
        drop(proxy);
        let dial = |destination: &str| {
            let client = Client::bound_to("10.9.0.1:40000");
            client.dial(destination).map(|()| client.stream())
        };
        assert_eq!(
            dial("198.18.0.1:80").unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        assert_eq!(tuples(world), "[]");
        let proxy = Proxy::listen();
        for port in [7410, 7411] {
            reset(dial(&format!("{NODE4}:{port}")).unwrap());
            assert_eq!(sockets.original_dst(&proxy.accept()), None);
        }
    });
}

#[test]
fn a_socket_used_again_forgets_its_first_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        drop(hooked.proxy);
        let client = Client::new_v4();
        assert_eq!(
            client.dial("10.0.3.7:9100").unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        assert!(hooked.sockets.stored(&client.0).is_some());
        let _server = TcpListener::bind((NODE4, 8000)).unwrap();
        client.dial(&format!("{NODE4}:8000")).unwrap();
        assert_eq!(hooked.sockets.stored(&client.0), None);
        assert_eq!(
            client.stream().peer_addr().unwrap(),
            address("10.9.0.1:8000")
        );
    });
}
