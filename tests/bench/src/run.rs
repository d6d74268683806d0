//! Runs one job on one path.

use std::net::SocketAddr;

use anyhow::{Result, bail};

use crate::load::Figures;
use crate::plan::{Job, Pace, Path, STALLED, Work};

use crate::world::World;

/// Streams in the row of idle streams: an agent may have 1,024.
const IDLE_STREAMS: usize = 900;
/// After these seconds heavy streams have left the way through another proxy.
const MOVED: &str = " --warm-up 4";
/// Concurrent connections in the row of new connections.
const AT_ONCE: usize = 32;
/// Bytes of an answer in the row of scrapes.
const SCRAPED: usize = 100_000;
/// Concurrent queries.
const QUERIES: usize = 8;
/// MiB of all copies together.
const COPIED: usize = 1024;
/// Number of bare `connect()` calls.
const CONNECTS: usize = 5_000;

/// Runs the job on that path.
pub(super) fn run(world: &mut World<'_>, job: &Job, path: Path, pace: Pace) -> Result<Figures> {
    let seconds = pace.time().as_secs_f64();
    if job.is_by_peer() && matches!(job.work, Work::Ping { .. }) {
        world.wait_for_peer()?;
    }
    if job.is_of_memory() {
        world.start_afresh()?;
    }
    match job.work {
        Work::IdleTunnels => world.idle_tunnels(),
        Work::ConnectCost { destinations } => {
            world.set_destinations(destinations)?;
            let to: SocketAddr = world.not_steered();
            world
                .load(path)
                .run(&format!("connect-cost {to} {CONNECTS}"))
        }
        Work::Far(_) | Work::ScrapeAll => bail!("it needs links of packets"),
        Work::Dns => {
            let server = world.dns();
            world.load(path).run(&format!(
                "dns {server} {} {QUERIES} {seconds}",
                World::DNS_NAME
            ))
        }
        Work::Bulk { .. }
        | Work::Copies { .. }
        | Work::Ping { .. }
        | Work::Scrapes { .. }
        | Work::NewConnections
        | Work::FirstAnswer
        | Work::Neighbour { .. }
        | Work::StalledReaders
        | Work::SmallFrames
        | Work::IdleStreams => {
            let route = world.route(path, job.distance)?;
            let line = command_line(job, pace, &route.endpoint, &route.pids);
            world.load(path).run(&line)
        }
    }
}

/// The command line of the load for a job that has a route.
fn command_line(job: &Job, pace: Pace, endpoint: &str, all_pids: &[u32]) -> String {
    let seconds = pace.time().as_secs_f64();
    let pids = pid_options(all_pids);
    match job.work {
        Work::Bulk { direction, streams } => {
            let warm_up = if job.is_by_peer() { MOVED } else { "" };
            format!(
                "bulk {endpoint} {} {streams} {seconds}{warm_up}{pids}",
                direction.name()
            )
        }
        Work::Copies { direction, streams } => {
            let mebibytes = match pace {
                Pace::Quick => COPIED / 8,
                Pace::Full => COPIED,
            };
            format!(
                "copies {endpoint} {} {streams} {mebibytes}{pids}",
                direction.name()
            )
        }
        Work::Ping { connections, bulk } => {
            format!("ping {endpoint} {connections} {bulk} {seconds}")
        }
        Work::Scrapes { connections } => {
            format!("scrapes {endpoint} {connections} {SCRAPED} {seconds}")
        }
        Work::NewConnections => format!("connects {endpoint} {AT_ONCE} {seconds}"),
        Work::FirstAnswer => format!("connects {endpoint} 1 {seconds}"),
        Work::Neighbour { stalled } => format!("neighbour {endpoint} {stalled} {seconds}"),
        // The first process is the proxy.
        Work::StalledReaders => format!(
            "stalled {endpoint} bulk {STALLED}{}",
            pid_options(&all_pids[..1])
        ),
        Work::SmallFrames => format!(
            "stalled {endpoint} bytes {STALLED}{}",
            pid_options(&all_pids[..1])
        ),
        Work::IdleStreams
        | Work::IdleTunnels
        | Work::ConnectCost { .. }
        | Work::Dns
        | Work::Far(_)
        | Work::ScrapeAll => {
            format!("idle {endpoint} {IDLE_STREAMS}{pids}")
        }
    }
}

fn pid_options(pids: &[u32]) -> String {
    pids.iter().map(|pid| format!(" --pid {pid}")).collect()
}
