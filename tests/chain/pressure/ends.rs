//! Slow ends: clients that send very little, backends that never close, servers that end first.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::process::Process;
use culvert_lab::progress;
use culvert_lab::wait::{self, PATIENCE};

use super::{OWN, start_ready, wait_gauge};
use crate::world::{self, ECHO, World, xtask};

const EDGE: &[Host] = &[Host::Edge1];
const STREAMS: &str = "culvert_proxy_active_streams";

/// Longer than every time limit of a dial, a handshake or a silent peer, and than the one minute
/// that other proxies allow.
const SILENCE: Duration = Duration::from_secs(61);

const SLOW_CLIENTS: usize = 500;
/// The memory that a slow client may take in each program: half of the buffer of one bulk read.
const MEMORY_PER_CLIENT: u64 = 32 << 10;

#[test]
#[ignore = "a minute: `cargo xtask test --long`"]
fn clients_that_send_a_byte_now_and_then_are_kept_and_cost_no_buffers() {
    world::with(EDGE, Options::default(), |world| {
        // One run before the measurement fills pools.
        drop(slow_clients(world, 100, Duration::from_millis(1))?);
        world.wait_for_no_streams()?;
        let before = (
            world.culvert.proxy.resident()?,
            world.culvert.agent(0).resident()?,
        );
        let slow = slow_clients(world, SLOW_CLIENTS, SILENCE)?;
        progress::say(&format!(
            "    {SLOW_CLIENTS} clients are silent for {SILENCE:?}"
        ));
        wait_gauge(world.lab, STREAMS, SLOW_CLIENTS, PATIENCE)?;
        slow.expect(&Report::AllServed)?;
        let now = (
            world.culvert.proxy.resident()?,
            world.culvert.agent(0).resident()?,
        );
        let grown = [
            now.0.saturating_sub(before.0),
            now.1.saturating_sub(before.1),
        ];
        progress::say(&format!("    proxy and agent grew by {grown:?} bytes"));
        ensure!(
            grown
                .iter()
                .all(|grown| *grown <= SLOW_CLIENTS as u64 * MEMORY_PER_CLIENT),
            "they grew by {grown:?}"
        );
        Ok(())
    });
}

/// Clients whose first byte was echoed.
fn slow_clients(world: &World<'_>, count: usize, pause: Duration) -> Result<world::HeldClient> {
    let client = world.held_client(&Client::Drip {
        target: format!("edge-1:{ECHO}"),
        count,
        pause,
        rounds: 1,
    })?;
    client.expect(&Report::Held)?;
    Ok(client)
}

#[test]
fn a_backend_that_never_closes_may_answer_for_ever_and_holds_nothing_once_its_client_is_gone() {
    world::with(EDGE, own_port(), |world| {
        let _backend = backend(world, "endless")?;
        let client = half_closed(world, 20)?;
        for _ in 0..20 {
            client.expect(&Report::Answer("still here".to_owned()))?;
        }
        wait_gauge(world.lab, STREAMS, 1, PATIENCE)?;
        drop(client);
        world.wait_for_no_streams()
    });
}

#[test]
fn a_backend_that_neither_answers_nor_closes_holds_nothing_for_long_once_its_client_is_gone() {
    let shorten = |lab: &culvert_lab::Lab| {
        // A closed client looks like one that has ended its direction, until its kernel forgets the
        // connection.
        lab.site(Host::Cloud)
            .output("sysctl", ["-qw", "net.ipv4.tcp_fin_timeout=2"])?;
        Ok(own_port())
    };
    world::prepared(EDGE, shorten, |world| {
        let _backend = backend(world, "silent")?;
        let client = half_closed(world, 1)?;
        wait::throughout("its client waits", Duration::from_secs(2), || {
            wait_gauge(world.lab, STREAMS, 1, Duration::ZERO)
        })?;
        drop(client);
        progress::say("    the client has gone; keep-alive has to notice");
        wait_gauge(world.lab, STREAMS, 0, Duration::from_secs(60))?;
        world.wait_for_no_streams()
    });
}

#[test]
fn a_server_may_end_its_direction_first_and_the_client_goes_on_sending() {
    world::with(EDGE, own_port(), |world| {
        let backend = backend(world, "farewell")?;
        for host in ["edge-1", "10.0.3.7"] {
            let said = world.client(&Client::OutLive {
                target: format!("{host}:{OWN}"),
                bytes: 8_388_608,
            })?;
            let Report::OutLived { answer, sent } = said else {
                bail!("{said:?}")
            };
            ensure!(answer == "good-bye", "{answer}");
            wait::until("the backend has read all of it", PATIENCE, || {
                let log = backend.log();
                log.contains(&format!("read {sent}"))
                    .then_some(())
                    .context(log)
            })?;
        }
        Ok(())
    });
}

fn own_port() -> Options {
    Options {
        ports: vec![OWN],
        ..Options::default()
    }
}

fn backend(world: &World<'_>, behaviour: &str) -> Result<Process> {
    let mut command = world.lab.site(Host::Edge1).command(xtask());
    command.args(["probe", "serve", &format!("{OWN}={behaviour}")]);
    start_ready(world.lab, Host::Edge1, "own-backend", &mut command)
}

/// A client that has ended its direction.
fn half_closed(world: &World<'_>, lines: usize) -> Result<world::HeldClient> {
    let client = world.held_client(&Client::HalfClose {
        target: format!("edge-1:{OWN}"),
        lines,
    })?;
    client.expect(&Report::HalfClosed)?;
    Ok(client)
}
