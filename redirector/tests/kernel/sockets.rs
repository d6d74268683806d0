//! Tests of sockets that do more than dial.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use io_uring::{IoUring, squeue};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::clients::Client;
use crate::foreign::errno_of_refusals;
use crate::steering::{Hooked, tuples};
use crate::world::{DEADLINE, NODE4, address, in_a_world};

/// A port of edge-2.
const OFFLINE: &str = "10.0.3.8:9100";

#[test]
fn a_client_that_does_not_wait_for_its_connection_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let client = Client::new_v4();
        fcntl(&client.0, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let in_progress = client.dial("10.0.3.7:9100").unwrap_err();
        assert_eq!(in_progress.raw_os_error(), Some(Errno::EINPROGRESS as i32));
        let mut writable = [PollFd::new(client.0.as_fd(), PollFlags::POLLOUT)];
        assert_eq!(
            poll(&mut writable, PollTimeout::try_from(DEADLINE).unwrap()),
            Ok(1)
        );
        hooked.accepts("10.0.3.7:9100");
    });
}

/// Whether this kernel has rings and lets every user use them. If not, it says that the test does
/// not apply.
fn ring() -> Option<IoUring> {
    match IoUring::new(4) {
        Ok(ring) => Some(ring),
        Err(error) => {
            eprintln!("does not apply: io_uring: {error}");
            None
        }
    }
}

#[test]
fn a_client_that_dials_by_io_uring_keeps_its_destination_and_sees_what_it_dialled() {
    in_a_world(|world| {
        let Some(mut ring) = ring() else {
            return;
        };
        let hooked = Hooked::new(world);
        // At once, and by a thread of the kernel.
        for flags in [squeue::Flags::empty(), squeue::Flags::ASYNC] {
            for (client, destination) in [
                (Client::new_v4(), "10.0.3.7:9100"),
                (Client::new_v4(), "198.18.0.1:80"),
                (Client::new_v6(), "[fd00::7]:9100"),
            ] {
                client.dial_by_ring(&mut ring, flags, destination).unwrap();
                hooked.accepts(destination);
                assert_eq!(client.stream().peer_addr().unwrap(), address(destination));
            }
        }
        let offline = Client::new_v4().dial_by_ring(&mut ring, squeue::Flags::ASYNC, OFFLINE);
        let offline = offline.unwrap_err().raw_os_error();
        assert_eq!(offline, Some(errno_of_refusals()));
        assert_eq!(tuples(world), "[]");
    });
}

#[test]
fn a_dissolved_connection_leaves_no_destination_for_the_next() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let client = Client::new_v4();
        client.dial("10.0.3.7:9100").unwrap();
        hooked.accepts("10.0.3.7:9100");
        client.dissolve();
        let server = TcpListener::bind((NODE4, 8000)).unwrap();
        client.dial(&format!("{NODE4}:8000")).unwrap();
        server.accept().unwrap();
        assert_eq!(hooked.sockets.stored(&client.0), None);
        client.dissolve();
        client.dial("198.18.0.1:80").unwrap();
        hooked.accepts("198.18.0.1:80");
    });
}

#[test]
fn a_client_that_dials_with_its_first_bytes_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        for destination in ["10.0.3.7:9100", "198.18.0.1:80"] {
            let client = Client::new_v4().dialling_with_its_first_bytes();
            client.dial(destination).unwrap();
            let mut client: TcpStream = client.stream();
            client.write_all(b"first").unwrap();
            let mut accepted = hooked.accepts(destination);
            let mut first = [0; 5];
            accepted.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"first");
        }
    });
}

#[test]
fn a_client_bound_to_an_address_of_the_host_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        for source in ["10.9.0.1:0", "127.0.0.1:0", "10.244.1.1:0"] {
            Client::bound_to(source).dial("10.0.3.7:9100").unwrap();
            hooked.accepts("10.0.3.7:9100");
        }
    });
}

#[test]
fn a_client_bound_to_an_interface_keeps_its_destination() {
    in_a_world(|world| {
        let hooked = Hooked::new(world);
        let dial = |device| {
            let client = Client::new_v4().on_device(device);
            client.dial("10.0.3.7:9100").unwrap();
            client.stream()
        };
        let _on_the_host = dial("up0");
        hooked.accepts("10.0.3.7:9100");
        let _in_a_pod = world.pods[0].run(|| dial("eth0"));
        hooked.accepts("10.0.3.7:9100");
    });
}
