//! Tests the DNS server over real sockets.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::fake_directory::{FakeDirectory, node, usual_nodes};
use crate::proxy::Proxy;
use crate::redirector::{Redirector, get};
use crate::world::{World, eventually, in_a_world};

const SERVER: &str = "10.9.0.1:53";

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

fn ask_udp(name: &str, kind: RecordType) -> Message {
    ask_udp_with(&question(name, kind))
}

/// Repeats the question if a datagram was lost, as every client does.
fn ask_udp_with(question: &[u8]) -> Message {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut answer = [0; 1500];
    let length = eventually("DNS answers", || {
        socket.send_to(question, SERVER).unwrap();
        socket.recv(&mut answer).ok()
    });
    Message::from_vec(&answer[..length]).unwrap()
}

fn ask_tcp(name: &str, kind: RecordType) -> Message {
    try_tcp(name, kind).unwrap()
}

fn try_tcp(name: &str, kind: RecordType) -> io::Result<Message> {
    let mut stream = TcpStream::connect(SERVER)?;
    let question = question(name, kind);
    stream.write_all(&u16::try_from(question.len()).unwrap().to_be_bytes())?;
    stream.write_all(&question)?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    Ok(Message::from_vec(&answer).unwrap())
}

fn with_dns(world: &World) -> (FakeDirectory, Redirector) {
    let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
    (
        directory,
        Redirector::start(world, &["--mechanism", "none"]),
    )
}

#[test]
fn names_and_vips_are_answered_over_udp_and_tcp() {
    in_a_world(|world| {
        let _running = with_dns(world);
        for ask in [ask_udp, ask_tcp] {
            for name in ["edge-1.edge.internal.", "EDGE-1.Edge.Internal.", "edge-1."] {
                let answer = ask(name, RecordType::A);
                assert!(answer.metadata.authoritative, "{name}");
                assert_eq!(answer.answers.len(), 1, "{name}");
                assert_eq!(answer.answers[0].ttl, 5);
                assert!(
                    matches!(answer.answers[0].data, RData::A(a) if a.0.to_string() == "198.18.0.1")
                );
            }
            let v6 = ask("edge-1.edge.internal.", RecordType::AAAA);
            assert!(
                matches!(v6.answers[0].data, RData::AAAA(a) if a.0.to_string() == "fd12:3456:789a:bcde::1")
            );
            let reverse = ask("1.0.18.198.in-addr.arpa.", RecordType::PTR);
            assert!(
                matches!(&reverse.answers[0].data, RData::PTR(ptr) if ptr.0.to_ascii() == "edge-1.edge.internal.")
            );
        }
    });
}

#[test]
fn what_is_not_there_is_denied_with_an_soa_and_what_is_not_ours_is_refused() {
    in_a_world(|world| {
        let _running = with_dns(world);
        for ask in [ask_udp, ask_tcp] {
            let soa = |answer: &Message| {
                answer
                    .authorities
                    .iter()
                    .any(|record| record.record_type() == RecordType::SOA)
            };
            let nxdomain = ask("edge-77.edge.internal.", RecordType::A);
            assert_eq!(
                (nxdomain.metadata.response_code, soa(&nxdomain)),
                (ResponseCode::NXDomain, true)
            );
            let nodata = ask("edge-1.edge.internal.", RecordType::MX);
            assert_eq!(
                (nodata.metadata.response_code, soa(&nodata)),
                (ResponseCode::NoError, true)
            );
            assert!(nodata.answers.is_empty());
            for foreign in ["example.com.", "edge-77.", "8.8.8.8.in-addr.arpa."] {
                assert_eq!(
                    ask(foreign, RecordType::A).metadata.response_code,
                    ResponseCode::Refused,
                    "{foreign}"
                );
            }
            let transfer = ask("edge.internal.", RecordType::AXFR);
            assert_eq!(
                (transfer.metadata.response_code, transfer.answers.len()),
                (ResponseCode::Refused, 0)
            );
        }
    });
}

#[test]
fn answers_follow_the_directory() {
    in_a_world(|world| {
        let (directory, _redirector) = with_dns(world);
        directory.change(vec![node("edge-5", 5, &["10.0.3.5"], true)], &["edge-1"]);
        eventually("edge-5 has a name", || {
            let found = !ask_udp("edge-5.edge.internal.", RecordType::A)
                .answers
                .is_empty();
            let gone =
                ask_udp("edge-1.", RecordType::A).metadata.response_code == ResponseCode::Refused;
            (found && gone).then_some(())
        });
    });
}

#[test]
fn packets_that_are_no_questions_do_not_hurt() {
    in_a_world(|world| {
        let _running = with_dns(world);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut pseudo_random = 1_u32;
        for length in 0..512_usize {
            let mut packet = vec![0; length];
            for byte in &mut packet {
                pseudo_random = pseudo_random
                    .wrapping_mul(1_664_525)
                    .wrapping_add(1_013_904_223);
                *byte = (pseudo_random >> 24) as u8;
            }
            socket.send_to(&packet, SERVER).unwrap();
        }
        assert_eq!(ask_udp("edge-1.", RecordType::A).answers.len(), 1);
    });
}

#[test]
fn more_tcp_connections_than_anybody_needs_leave_the_server_answering() {
    in_a_world(|world| {
        let _running = with_dns(world);
        let idle: Vec<_> = (0..300)
            .map(|_| TcpStream::connect(SERVER).unwrap())
            .collect();
        assert!(try_tcp("edge-1.", RecordType::A).is_err());
        assert_eq!(ask_udp("edge-1.", RecordType::A).answers.len(), 1);
        drop(idle);
        eventually("TCP is free again", || {
            try_tcp("edge-1.", RecordType::A).ok()
        });
    });
}

#[test]
fn a_client_that_holds_its_share_of_tcp_connections_leaves_room_for_others() {
    in_a_world(|world| {
        let _running = with_dns(world);
        let _idle: Vec<_> = (0..300)
            .map(|_| TcpStream::connect(SERVER).unwrap())
            .collect();
        assert!(try_tcp("edge-1.", RecordType::A).is_err());
        let answer = world.pods[0].run(|| ask_tcp("edge-1.", RecordType::A));
        assert_eq!(answer.answers.len(), 1);
    });
}

#[test]
fn a_version_of_edns_that_there_is_not_is_answered_with_the_one_that_there_is() {
    in_a_world(|world| {
        let _running = with_dns(world);
        let ask = |version| {
            let mut question = Message::from_vec(&question("edge-1.", RecordType::A)).unwrap();
            question.edns = Some(Edns::new());
            question.edns.as_mut().unwrap().set_version(version);
            ask_udp_with(&question.to_vec().unwrap())
        };
        let answer = ask(1);
        // The code has 12 bits: four are in the header, eight beside the version.
        let edns = answer.edns.unwrap();
        assert_eq!((edns.rcode_high(), edns.version()), (1, 0));
        assert_eq!(
            (
                u16::from(answer.metadata.response_code) & 0xf,
                answer.answers.len()
            ),
            (0, 0)
        );
        let answer = ask(0);
        assert_eq!(
            (answer.edns.unwrap().rcode_high(), answer.answers.len()),
            (0, 1)
        );
    });
}

#[test]
fn a_client_that_may_not_ask_is_refused() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(
            world,
            &["--mechanism", "none", "--dns-client", "192.0.2.0/24"],
        );
        let own = ask_udp("edge-1.", RecordType::A);
        assert_eq!(
            (own.metadata.response_code, own.answers.len()),
            (ResponseCode::NoError, 1),
            "this host may always ask"
        );
        let other = world.outside.run(|| ask_udp("edge-1.", RecordType::A));
        assert_eq!(
            (other.metadata.response_code, other.answers.len()),
            (ResponseCode::Refused, 0)
        );
    });
}

#[test]
fn a_taken_address_leaves_steering_alone_and_is_tried_again() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let taken = UdpSocket::bind(SERVER).unwrap();
        let redirector = Redirector::start_unready(world, &["--mechanism", "nftables"]);
        let cause = eventually("the cause", || {
            get("/readyz").filter(|text| text.contains("dns: "))
        });
        assert!(
            cause.contains("answer DNS on 10.9.0.1:53") && cause.contains("--dns-listen"),
            "{cause}"
        );
        let proxy = Proxy::listen();
        eventually("connections are steered", || {
            let client = TcpStream::connect_timeout(
                &"10.0.3.7:9100".parse().unwrap(),
                Duration::from_secs(1),
            )
            .ok()?;
            proxy.try_accept().map(|accepted| drop((client, accepted)))
        });
        drop(taken);
        redirector.until_ready();
        assert_eq!(ask_udp("edge-1.", RecordType::A).answers.len(), 1);
    });
}

/// A server that knows all names. `big.` has more addresses than fit into a datagram, `none.` does
/// not exist, and all others have one address.
struct Upstream {
    asked: Arc<AtomicUsize>,
}

impl Upstream {
    fn serve(address: &str) -> Self {
        let asked = Arc::new(AtomicUsize::new(0));
        let udp = UdpSocket::bind(address).unwrap();
        let tcp = TcpListener::bind(address).unwrap();
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut question = [0; 1500];
            while let Ok((length, client)) = udp.recv_from(&mut question) {
                count.fetch_add(1, Ordering::Relaxed);
                let mut answer = answer(&question[..length]);
                if answer.to_vec().unwrap().len() > 512 {
                    answer.answers.clear();
                    answer.metadata.truncation = true;
                }
                udp.send_to(&answer.to_vec().unwrap(), client).unwrap();
            }
        });
        std::thread::spawn(move || {
            while let Ok((mut stream, _client)) = tcp.accept() {
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut question = vec![0; u16::from_be_bytes(length).into()];
                stream.read_exact(&mut question).unwrap();
                let answer = answer(&question).to_vec().unwrap();
                stream
                    .write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes())
                    .unwrap();
                stream.write_all(&answer).unwrap();
            }
        });
        Self { asked }
    }
}

fn answer(question: &[u8]) -> Message {
    let mut message = Message::from_vec(question).unwrap();
    message.metadata.message_type = MessageType::Response;
    message.metadata.recursion_available = true;
    let name = message.queries[0].name().clone();
    let addresses = match name.to_ascii().as_str() {
        "big." => 100,
        "none." => 0,
        _ => 1,
    };
    if addresses == 0 {
        message.metadata.response_code = ResponseCode::NXDomain;
    }
    message.answers = (0..addresses)
        .map(|last| Record::from_rdata(name.clone(), 60, RData::A(A::new(192, 0, 2, last))))
        .collect();
    message
}

#[test]
fn foreign_names_are_forwarded_and_our_own_are_not() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let upstream = Upstream::serve("127.0.0.1:5353");
        // The first server does not answer and the second refuses; the next one is asked.
        let _silent = UdpSocket::bind("127.0.0.2:5353").unwrap();
        let servers = "127.0.0.2:5353,127.0.0.3:5353,127.0.0.1:5353";
        let _redirector = Redirector::start(world, &["--mechanism", "none", "--forward", servers]);
        for number in 0..1_000 {
            let found = ask_udp(&format!("name-{number}.example.com."), RecordType::A);
            assert_eq!(
                (found.metadata.response_code, found.answers.len()),
                (ResponseCode::NoError, 1),
                "{number}"
            );
            assert!(found.metadata.recursion_available && !found.metadata.authoritative);
        }
        assert_eq!(
            ask_udp("none.", RecordType::A).metadata.response_code,
            ResponseCode::NXDomain
        );
        let cut = ask_udp("big.", RecordType::A);
        assert!(cut.metadata.truncation && cut.answers.is_empty());
        assert_eq!(ask_tcp("big.", RecordType::A).answers.len(), 100);
        let before = upstream.asked.load(Ordering::Relaxed);
        for ours in [
            "edge-1.",
            "edge-1.edge.internal.",
            "edge-77.edge.internal.",
            "9.9.18.198.in-addr.arpa.",
        ] {
            assert_ne!(
                ask_udp(ours, RecordType::A).metadata.response_code,
                ResponseCode::Refused,
                "{ours}"
            );
        }
        assert_eq!(
            ask_udp("example.com.", RecordType::AXFR)
                .metadata
                .response_code,
            ResponseCode::Refused
        );
        assert_eq!(upstream.asked.load(Ordering::Relaxed), before);
    });
}

#[test]
fn names_that_no_server_answers_are_a_failure_and_our_own_are_answered_meanwhile() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let silent = UdpSocket::bind("127.0.0.1:5353").unwrap();
        let _redirector = Redirector::start(
            world,
            &["--mechanism", "none", "--forward", "127.0.0.1:5353"],
        );
        let flood = UdpSocket::bind("0.0.0.0:0").unwrap();
        for number in 0..2_000 {
            flood
                .send_to(
                    &question(&format!("name-{number}.example.com."), RecordType::A),
                    SERVER,
                )
                .unwrap();
        }
        assert_eq!(ask_udp("edge-1.", RecordType::A).answers.len(), 1);
        let failed = ask_udp("example.com.", RecordType::A);
        assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
        drop(silent);
    });
}
