//! Agents that stop reading while their connections stay up. The proxy can detect this only by
//! their silence.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Phase, Report};
use culvert_lab::progress;
use culvert_lab::wait::{self, PATIENCE};
use nix::sys::signal::Signal;

use crate::life::wait_within;
use crate::world::{self, ECHO, GIB, HeldClient, SINK, World};

const UPLOADS: usize = 8;
/// Limit of what the proxy may buffer for uploads whose agent reads nothing: unsent data in each
/// stream, and some for reads.
const MAX_BUFFERED: u64 = UPLOADS as u64 * (1 << 20);

#[test]
fn agents_that_stop_reading_fail_their_own_clients_in_time_and_nobody_elses() {
    world::with(&Host::EDGES, Options::default(), |world| {
        // The first connection opens files that later ones share.
        world.check_greeting("edge-3", "edge-3")?;
        let before = world.culvert.proxy.kernel_resources()?;
        let mut idle = hold_echoes(world, "edge-1")?;
        let mut neighbour = hold_echoes(world, "edge-3")?;
        let uploads = uploads(world, "edge-2")?;
        let resident = world.culvert.proxy.resident()?;
        // edge-1 stops without any stream, edge-2 with a closed window.
        for stopped in [0, 1] {
            world.culvert.agent(stopped).signal(Signal::SIGSTOP)?;
        }
        let started = Instant::now();
        wait_for_closed_window(world)?;
        neighbour.check()?;
        let refused = world.failing_client(&Client::talk(format!("edge-1:{ECHO}"), "x"))?;
        progress::say(&format!(
            "    a new client was told after {:?}: {refused}",
            started.elapsed()
        ));
        ensure!(refused.cause == Cause::Reset, "{refused}");
        world.check_greeting("edge-3", "edge-3")?;
        let grown = world.culvert.proxy.resident()?.saturating_sub(resident);
        ensure!(grown <= MAX_BUFFERED, "the proxy took in {grown} bytes");

        for host in [Host::Edge1, Host::Edge2] {
            world.culvert.wait_offline(host, PATIENCE)?;
        }
        idle.ask()?;
        let failed = idle.report(PATIENCE)?;
        ensure!(
            matches!(failed, Report::Broken { count: 20, .. }),
            "the clients of a stopped agent: {failed:?}"
        );
        for upload in &uploads {
            let failed = upload.report(PATIENCE)?;
            ensure!(
                matches!(&failed, Report::Failed(failure) if failure.phase == Phase::Write),
                "an upload to a stopped agent: {failed:?}"
            );
        }
        neighbour.check()?;

        for stopped in [0, 1] {
            world.culvert.agent(stopped).signal(Signal::SIGCONT)?;
        }
        for node in ["edge-1", "edge-2"] {
            world.wait_greeting(node, PATIENCE)?;
        }
        drop((idle, neighbour, uploads));
        wait_within("the proxy", &world.culvert.proxy, before)
    });
}

fn hold_echoes(world: &World<'_>, node: &str) -> Result<HeldClient> {
    world.hold(format!("{node}:{ECHO}"), 20)
}

/// Uploads whose first bytes have arrived.
fn uploads(world: &World<'_>, node: &str) -> Result<Vec<HeldClient>> {
    let target = format!("{node}:{SINK}");
    let upload = || world.held_client(&Client::upload(&target, 8 * GIB));
    let uploads = (0..UPLOADS).map(|_| upload()).collect::<Result<Vec<_>>>()?;
    wait::until("all uploads move", PATIENCE, || {
        let streams = world
            .lab
            .site(Host::Cloud)
            .json(PROXY_ADMIN, "/debug/streams")?;
        let of_node = streams
            .as_array()
            .into_iter()
            .flatten()
            .filter(|view| view["node"] == node);
        let moving = of_node
            .filter(|view| view["bytes_to_backend"].as_u64() > Some(4 << 20))
            .count();
        ensure!(moving == UPLOADS, "{moving} of {UPLOADS}");
        Ok(())
    })?;
    Ok(uploads)
}

/// Waits until a tunnel's kernel socket only probes the closed window.
fn wait_for_closed_window(world: &World<'_>) -> Result<()> {
    wait::until("a tunnel's window is closed", PATIENCE, || {
        let sockets = world
            .lab
            .site(Host::Cloud)
            .output("ss", ["-tnoH", "sport = :7400"])?;
        sockets
            .contains("persist")
            .then_some(())
            .with_context(|| sockets)
    })
}
