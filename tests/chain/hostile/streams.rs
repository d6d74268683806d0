//! Streams that hold as much as possible: maximal windows, ends that read nothing, more streams
//! than allowed.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_tunnel::DEFAULT_MAX_STREAMS;
use culvert_tunnel::proto::tunnel::{DescribeResponse, DialCode, Open};

use super::agent::{HostileAgent, PLACE, data, opened, response};
use super::proxy::{self, HostileTunnel};
use super::wire::{
    DATA, RST_STREAM, WINDOW_DEFAULT, WINDOW_MAX, WINDOW_UPDATE, frame, initial_window, rough_grpc,
};
use super::{Before, Bystanders};
use crate::connect;
use crate::world::{self, ECHO, SMALL_SOURCE};

const UPLOADS: usize = 16;
const DOWNLOADS: usize = 64;
/// Streams whose windows amount to 120 MiB.
const STALLED: usize = 24;
/// Limit of the memory of a proxy with a budget of 16 MiB, including what it reads ahead and what
/// its sockets hold.
const MEMORY_OF_BUDGET: u64 = 48 << 20;
/// Limit of unsent data in a stream whose other end reads nothing, including overhead.
const MEMORY_PER_STREAM: u64 = 1 << 20;
/// An upload that makes no progress for this long is stalled.
const STILL: Duration = Duration::from_millis(300);

#[test]
fn an_agent_that_claims_every_window_and_reads_nothing_holds_a_little_for_each_stream() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        HostileAgent::join(world)?;
        let before = Before::of("the proxy", &world.culvert.proxy)?;
        let settings = initial_window(WINDOW_MAX);
        let mut agent = HostileAgent::described(world, &settings, &DescribeResponse::default())?;
        let wide = (WINDOW_MAX - WINDOW_DEFAULT).to_be_bytes();
        agent.wire.send(&frame(WINDOW_UPDATE, 0, 0, &wide))?;
        let mut uploads = Vec::new();
        for _ in 0..UPLOADS {
            let client = connect::open(world, &format!("{}:{ECHO}", PLACE.name()))?;
            let stream = agent.call()?;
            agent.wire.send(
                &[
                    response(stream),
                    frame(DATA, 0, stream, &opened(DialCode::Ok.into(), "")),
                ]
                .concat(),
            )?;
            uploads.push(client);
        }
        let taken = bystanders.during(world, "edge-1", || {
            uploads.iter_mut().map(pour).sum::<Result<u64>>()
        })??;
        let limit = UPLOADS as u64 * MEMORY_PER_STREAM;
        before.check_memory(&mut world.culvert.proxy, limit, "every window claimed")?;
        // Sockets hold data too, in addition to the proxy: the clients' and the tunnel's.
        ensure!(
            taken <= 2 * limit,
            "{taken} bytes were taken from the clients"
        );
        drop((agent, uploads));
        bystanders.check(world, "edge-1")?;
        before.wait_restored(&world.culvert.proxy)
    });
}

/// Writes until the proxy accepts no more; returns how much it accepted.
fn pour(client: &mut UnixStream) -> Result<u64> {
    client.set_write_timeout(Some(STILL))?;
    let piece = vec![7; 64 << 10];
    let mut taken = 0;
    loop {
        match client.write(&piece) {
            Ok(count) => taken += count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
            Err(error) => return Err(error).context("an upload broke"),
        }
        ensure!(taken < 64 << 20, "the upload goes on and on");
    }
}

#[test]
fn an_agent_whose_framing_outweighs_its_payload_has_the_proxy_hold_no_more_than_its_budget() {
    world::with(
        &[Host::Edge1],
        world::proxy_options(["--buffer-budget", "16MiB"]),
        |world| {
            let mut bystanders = Bystanders::of(world, "edge-1")?;
            HostileAgent::join(world)?;
            let before = Before::of("the proxy", &world.culvert.proxy)?;
            let mut agent = HostileAgent::registered(world)?;
            let mut stalled = Vec::new();
            for _ in 0..STALLED {
                let client = connect::open(world, &format!("{}:{ECHO}", PLACE.name()))?;
                let stream = agent.call()?;
                agent.wire.send(
                    &[
                        response(stream),
                        frame(DATA, 0, stream, &opened(DialCode::Ok.into(), "")),
                    ]
                    .concat(),
                )?;
                stalled.push((client, stream));
            }
            let payload = data(&[7; 60 << 10]);
            let framing = [
                &[(9_u8 << 3) | 2, 0x80, 0xd8, 0x03][..],
                &[0; 59 << 10],
                &[(3 << 3) | 2, 0x80, 0x20],
                &[7; 4 << 10],
            ];
            let framing = rough_grpc(&framing.concat());
            let harm = || -> Result<()> {
                for (_, stream) in &stalled {
                    // Enough to stall the backend's socket, then as much as the window allows.
                    for piece in
                        std::iter::repeat_n(&payload, 4).chain(std::iter::repeat_n(&framing, 74))
                    {
                        agent.wire.send(&frame(DATA, 0, *stream, piece))?;
                    }
                }
                Ok(())
            };
            bystanders.during(world, "edge-1", harm)??;
            before.check_memory(
                &mut world.culvert.proxy,
                MEMORY_OF_BUDGET,
                "framing that outweighs payload",
            )?;
            drop((agent, stalled));
            bystanders.check(world, "edge-1")?;
            before.wait_restored(&world.culvert.proxy)
        },
    );
}

#[test]
fn a_proxy_that_claims_every_window_and_reads_nothing_makes_the_agent_hold_a_little_for_each_stream()
 {
    proxy::with_hostile_proxy(|world, hostile| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        let before = Before::of("the agent", world.culvert.agent(0))?;
        let mut tunnel = hostile.tunnel_with(&initial_window(WINDOW_MAX))?;
        let wide = (WINDOW_MAX - WINDOW_DEFAULT).to_be_bytes();
        tunnel.wire.send(&frame(WINDOW_UPDATE, 0, 0, &wide))?;
        for _ in 0..DOWNLOADS {
            tunnel.open(&Open {
                port: SMALL_SOURCE.into(),
                ..Open::default()
            })?;
        }
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(5) {
            bystanders.check(world, "edge-1")?;
        }
        let limit = DOWNLOADS as u64 * MEMORY_PER_STREAM;
        before.check_memory(world.culvert.agent(0), limit, "every window claimed")?;
        drop(tunnel);
        let _tunnel = hostile.tunnel()?;
        before.wait_restored(world.culvert.agent(0))
    });
}

#[test]
fn a_proxy_gets_no_more_streams_of_an_agent_than_there_may_be() {
    proxy::with_hostile_proxy(|world, hostile| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        let before = Before::of("the agent", world.culvert.agent(0))?;
        let mut tunnel = hostile.tunnel()?;
        let most = DEFAULT_MAX_STREAMS;
        let mut refused = 0;
        for number in 0..most + 100 {
            let stream = tunnel.open(&Open {
                port: ECHO.into(),
                ..Open::default()
            })?;
            match tunnel.dialled(stream)? {
                Some(answer) if answer.code() == DialCode::Ok => {
                    ensure!(number < most, "{number} streams are open")
                }
                Some(answer) if answer.code() == DialCode::TooManyStreams => refused += 1,
                // More streams than the HTTP/2 settings allow.
                None => refused += 1,
                Some(answer) => bail!("stream {number}: {answer:?}"),
            }
        }
        ensure!(refused == 100, "{refused} streams were refused");
        let held = world.culvert.agent(0).kernel_resources()?.files - before.resources.files;
        ensure!(
            held <= most as usize + 10,
            "the agent holds {held} more files"
        );
        bystanders.check(world, "edge-1")?;
        drop(tunnel);
        let _tunnel = hostile.tunnel()?;
        before.wait_restored(world.culvert.agent(0))
    });
}

#[test]
fn calls_that_a_proxy_begins_and_never_makes_are_given_up() {
    proxy::with_hostile_proxy(|world, hostile| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        let mut tunnel = hostile.tunnel()?;
        let begun: Vec<u32> = (0..100)
            .map(|number| start_call(&mut tunnel, number))
            .collect::<Result<_>>()?;
        let mut reset = Vec::new();
        while reset.len() < begun.len() {
            let received = tunnel.wire.next()?;
            if received.kind == RST_STREAM {
                reset.push(received.stream);
            }
        }
        reset.sort_unstable();
        ensure!(reset == begun, "{reset:?}, begun {begun:?}");
        let stream = tunnel.open(&Open {
            port: ECHO.into(),
            ..Open::default()
        })?;
        let answer = tunnel.dialled(stream)?.context("no answer")?;
        ensure!(answer.code() == DialCode::Ok, "the next call: {answer:?}");
        bystanders.check(world, "edge-1")
    });
}

/// Every second call sends only the length of its first message.
fn start_call(tunnel: &mut HostileTunnel, number: u32) -> Result<u32> {
    let stream = tunnel.send_headers()?;
    if number % 2 == 1 {
        tunnel
            .wire
            .send(&frame(DATA, 0, stream, &[0, 0, 0, 1, 0, 0x0a]))?;
    }
    Ok(stream)
}
