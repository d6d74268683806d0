//! A hostile agent that answers dials with arbitrary bytes.

use std::io::Read;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};
use culvert_tunnel::proto::tunnel::DialCode;

use super::agent::{HostileAgent, PLACE, data, opened, response};
use super::wire::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, frame, headers, rough_grpc,
};
use super::{Before, Bystanders};
use crate::connect;
use crate::world::{self, ECHO, World};

/// Limit of the proxy's growth over all cases.
const MEMORY: u64 = 96 << 20;
/// Longer than any text of an agent that is passed on to clients.
const ANSWER_MAX: usize = 2 << 10;
/// Consecutive interim responses.
const INTERIM: usize = 1_000_000;

/// The statuses of failed dials for clients of CONNECT.
const BAD: &str = "502 ";
const LATE: &str = "504 ";
const ESTABLISHED: &str = "200 ";

/// An agent's answer, and the status that the client must get.
struct Case {
    what: &'static str,
    status: &'static str,
    answer: fn(u32) -> Vec<u8>,
}

const CASES: &[Case] = &[
    Case {
        what: "nothing",
        status: LATE,
        answer: |_| Vec::new(),
    },
    Case {
        what: "headers and nothing else",
        status: LATE,
        answer: response,
    },
    Case {
        what: "interim answers for ever",
        status: LATE,
        answer: interim,
    },
    Case {
        what: "an end",
        status: BAD,
        answer: |stream| [response(stream), frame(DATA, END_STREAM, stream, &[])].concat(),
    },
    Case {
        what: "a reset",
        status: BAD,
        answer: |stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
    },
    Case {
        what: "a farewell",
        status: BAD,
        answer: |_| frame(GOAWAY, 0, 0, &[0; 8]),
    },
    Case {
        what: "another status",
        status: BAD,
        answer: |stream| status(stream, "500"),
    },
    Case {
        what: "a status that is none",
        status: BAD,
        answer: |stream| status(stream, "abc"),
    },
    Case {
        what: "rubbish",
        status: BAD,
        answer: |stream| message(stream, &rough_grpc(&[0xff; 300])),
    },
    Case {
        what: "a compressed message",
        status: BAD,
        answer: |stream| message(stream, &[1, 0, 0, 0, 0]),
    },
    Case {
        what: "4 GiB to come",
        status: BAD,
        answer: |stream| message(stream, &[0, 255, 255, 255, 255]),
    },
    Case {
        what: "data before the answer",
        status: BAD,
        answer: |stream| message(stream, &data(b"early")),
    },
    Case {
        what: "an unknown code",
        status: BAD,
        answer: |stream| message(stream, &opened(99, "?")),
    },
    Case {
        what: "a reason of 100,000 letters",
        status: BAD,
        answer: |stream| refused(stream, &"x".repeat(100_000)),
    },
    Case {
        what: "a reason with headers in it",
        status: BAD,
        answer: |stream| refused(stream, "\r\nX-Forged: 1\r\n\r\n"),
    },
    Case {
        what: "rubbish after all is well",
        status: ESTABLISHED,
        answer: |stream| then(stream, &rough_grpc(&[0xff; 300])),
    },
    Case {
        what: "two answers",
        status: ESTABLISHED,
        answer: |stream| then(stream, &opened(ok(), "")),
    },
    Case {
        what: "a message without its end",
        status: ESTABLISHED,
        answer: cut_message,
    },
    Case {
        what: "more than the window",
        status: ESTABLISHED,
        answer: |stream| flooded(stream, 8 << 20),
    },
];

#[test]
fn an_agent_that_answers_dials_with_rubbish_fails_its_own_clients_in_time_and_nobody_elses() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        HostileAgent::join(world)?;
        let before = Before::of("the proxy", &world.culvert.proxy)?;
        for case in CASES {
            case.run(world).with_context(|| case.what)?;
            bystanders
                .check(world, "edge-1")
                .with_context(|| case.what)?;
            before.check_memory(&mut world.culvert.proxy, MEMORY, case.what)?;
        }
        before.wait_restored(&world.culvert.proxy)
    });
}

impl Case {
    fn run(&self, world: &World<'_>) -> Result<()> {
        let mut agent = HostileAgent::registered(world)?;
        let client = connect::open(world, &format!("{}:{ECHO}", PLACE.name()))?;
        let stream = agent.call()?;
        // The proxy may end the stream in the middle of it.
        let _sent = agent.wire.send(&(self.answer)(stream));
        let answer = whole(client)?;
        let shown: String = answer.chars().take(300).collect();
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {}", self.status)),
            "the client got {shown:?}"
        );
        if self.status != ESTABLISHED {
            let (head, _) = answer.split_once("\r\n\r\n").context("no head")?;
            ensure!(
                !head.contains("\nX-Forged"),
                "the agent has written the head: {shown:?}"
            );
            ensure!(
                answer.len() <= ANSWER_MAX,
                "{} bytes of answer",
                answer.len()
            );
        }
        drop(agent);
        wait::until("the tunnel is gone", PATIENCE, || {
            ensure!(world.culvert.tunnels(PLACE.name())? == 0, "it is there");
            Ok(())
        })
    }
}

/// Everything that a client receives, until the end or a reset.
fn whole(mut client: UnixStream) -> Result<String> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut answer = Vec::new();
    if let Err(error) = client.read_to_end(&mut answer) {
        ensure!(
            error.kind() == std::io::ErrorKind::ConnectionReset,
            "{error}"
        );
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn status(stream: u32, status: &str) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        &headers(&[(":status", status)]),
    )
}

fn interim(stream: u32) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS,
        stream,
        &headers(&[(":status", "103"), ("link", "</x>")]),
    )
    .repeat(INTERIM)
}

fn message(stream: u32, message: &[u8]) -> Vec<u8> {
    let pieces = message
        .chunks(16 << 10)
        .map(|piece| frame(DATA, 0, stream, piece));
    std::iter::once(response(stream))
        .chain(pieces)
        .collect::<Vec<_>>()
        .concat()
}

fn ok() -> i32 {
    DialCode::Ok.into()
}

fn refused(stream: u32, reason: &str) -> Vec<u8> {
    message(stream, &opened(DialCode::Refused.into(), reason))
}

/// A successful answer, followed by these bytes.
fn then(stream: u32, bytes: &[u8]) -> Vec<u8> {
    message(stream, &[opened(ok(), ""), bytes.to_vec()].concat())
}

fn cut_message(stream: u32) -> Vec<u8> {
    let trailers = frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        &headers(&[("grpc-status", "0")]),
    );
    [then(stream, &data(b"whole")[..7]), trailers].concat()
}

/// More bytes than the window of the client, which reads nothing.
fn flooded(stream: u32, bytes: usize) -> Vec<u8> {
    let piece = data(&vec![7; 16_000]);
    let frames = (0..bytes / piece.len()).map(|_| frame(DATA, 0, stream, &piece));
    std::iter::once(then(stream, &[]))
        .chain(frames)
        .collect::<Vec<_>>()
        .concat()
}
