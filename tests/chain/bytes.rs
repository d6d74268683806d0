//! Tests of bytes: all arrive, in order, in both directions, and no stream blocks another.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::cut::Cut;
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::wait::{self, PATIENCE};

use crate::world::{
    self, ECHO, GIB, HASTY, HASTY_ANSWER, SINK, SMALL, SMALL_SOURCE, SOURCE, World,
};

const EDGE: &[Host] = &[Host::Edge1];

#[test]
fn a_client_that_shuts_its_direction_still_reads_all() {
    world::with(EDGE, Options::default(), |world| {
        let answer = world.talk(&format!("edge-1:{SINK}"), "twelve bytes")?;
        ensure!(answer.starts_with("12 "), "the sink said {answer:?}");
        Ok(())
    });
}

#[test]
fn a_gibibyte_arrives_whole_each_way() {
    world::with(EDGE, Options::default(), |world| {
        let uploaded = world.client(&Client::upload(format!("edge-1:{SINK}"), GIB))?;
        let Report::Uploaded { sent, answer } = uploaded else {
            bail!("{uploaded:?}")
        };
        ensure!(
            sent.to_string() == answer,
            "up: sent {sent}, received {answer}"
        );
        let down = world.download(&format!("edge-1:{SOURCE}"))?;
        // Source and client generate the same bytes, so both directions have the same digest.
        ensure!(down == sent, "down: {down}, up: {sent}");
        Ok(())
    });
}

#[test]
fn an_upgraded_connection_carries_messages_both_ways_for_long() {
    world::with(EDGE, Options::default(), |world| {
        let answer = world.client(&Client::PingPong {
            target: format!("10.0.3.7:{ECHO}"),
            rounds: 2_000,
        })?;
        ensure!(answer == Report::Exchanged(2_000), "{answer:?}");
        Ok(())
    });
}

#[test]
fn a_server_may_speak_first() {
    world::with(EDGE, Options::default(), |world| {
        let greeting = world.greeting("edge-1")?;
        ensure!(greeting == "hello from edge-1", "{greeting}");
        Ok(())
    });
}

/// Enough that each of the node's tunnels has some. `stalls.rs` uses one tunnel.
const STALLED: usize = 20;

#[test]
fn twenty_stalled_readers_leave_a_neighbour_moving() {
    world::with(EDGE, Options::default(), |world| {
        let mut stalled = world.stall(format!("edge-1:{SMALL_SOURCE}"), STALLED)?;
        wait_for_standstill(world)?;
        neighbour(world)?;
        // The stalled streams lost no data meanwhile.
        stalled.next(&Report::Drained(STALLED as u64 * SMALL))
    });
}

/// The time that another reader needs for three downloads.
fn neighbour(world: &World<'_>) -> Result<()> {
    for _ in 0..3 {
        let neighbour = world.download(&format!("edge-1:{SMALL_SOURCE}"))?;
        ensure!(neighbour.count == SMALL, "{neighbour}");
    }
    Ok(())
}

/// Waits until the stalled streams are under way, with most of their bytes still to come, and none
/// of them moves.
fn wait_for_standstill(world: &World<'_>) -> Result<()> {
    let mut before = Vec::new();
    wait::until(
        "the stalled streams stand still",
        Duration::from_secs(30),
        || {
            let streams = world
                .lab
                .site(Host::Cloud)
                .json(PROXY_ADMIN, "/debug/streams")?;
            let now: Vec<u64> = streams
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|view| view["bytes_to_client"].as_u64())
                .collect();
            let stands = now == before
                && now.len() == STALLED
                && now.iter().all(|bytes| (1..SMALL / 2).contains(bytes));
            before.clone_from(&now);
            ensure!(stands, "bytes so far: {now:?}");
            Ok(())
        },
    )
}

#[test]
fn an_answer_given_before_the_upload_is_over_arrives_whole() {
    world::with(EDGE, Options::default(), |world| {
        for host in ["edge-1", "10.0.3.7"] {
            for round in 0..20 {
                let said = world.client(&Client::Overrun {
                    target: format!("{host}:{HASTY}"),
                    bytes: 8_388_608,
                })?;
                let Report::Received(whole) = &said else {
                    bail!("{said:?}")
                };
                ensure!(
                    whole.count == HASTY_ANSWER,
                    "{host}, round {round}: {whole}"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn a_cut_of_five_seconds_with_a_hundred_clients_giving_up_ends_no_established_stream() {
    world::with(EDGE, Options::default(), |world| {
        let mut established = world.hold(format!("edge-1:{ECHO}"), 20)?;
        let tunnels = world.culvert.tunnels("edge-1")?;
        let cut = Cut::of(world.lab, Host::Edge1)?;
        let started = Instant::now();
        let answered =
            world.count_answered(&format!("edge-1:{ECHO}"), 100, Duration::from_millis(2_000))?;
        ensure!(answered == 0, "the link was not cut: {answered}");
        wait::throughout(
            "the cut lasts",
            Duration::from_secs(5).saturating_sub(started.elapsed()),
            || Ok(()),
        )?;
        drop(cut);
        established.check()?;
        ensure!(
            world.culvert.tunnels("edge-1")? == tunnels,
            "a tunnel was replaced"
        );
        world.wait_greeting("edge-1", PATIENCE)
    });
}
