//! Rolling restarts of the DaemonSets while logs are followed and a file is downloaded.

use anyhow::{Context, Result};

use super::forward::{self, Forward};
use super::logs::Follower;
use super::world::{CULVERT, World};

/// Seconds that a download takes which must outlast the restart of the redirector: several times what one takes on two busy cores.
const LONG_DOWNLOAD: usize = 100;
/// Shorter than the time that a proxy lets streams end in.
const DRAINED_DOWNLOAD: usize = 15;

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    let node = "edge-1";
    let digest = forward::make_file(world, node)?;
    world.claim("the redirector's rolling restart: logs -f and a download of 200 MB go on through it", |world| {
        let mut follower = Follower::start(world, "follow-redirector", node)?;
        let forward = Forward::open(world, "forward-redirector", node)?;
        let mut download = forward.download(world, "download-redirector", LONG_DOWNLOAD)?;
        restart(world, "culvert-redirector")?;
        download.check().context("the download must outlast the restart")?;
        follower.goes_on()?;
        forward::finish_download(download, &digest)?;
        follower.goes_on()
    })?;
    world.claim("the proxy's rolling restart: a download under way ends whole while the proxy drains", |world| {
        let forward = Forward::open(world, "forward-proxy", node)?;
        let download = forward.download(world, "download-proxy", DRAINED_DOWNLOAD)?;
        restart(world, "culvert-proxy")?;
        forward::finish_download(download, &digest)
    })?;
    super::install::wait_for_tunnels(world)?;
    super::logs::prove(world, node)?;
    world.claim("the agents' rolling restart: all nodes are back", |world| {
        restart(world, "culvert-agent")?;
        super::install::all_online(world)
    })?;
    super::logs::prove(world, node)
}

fn restart(world: &World, daemon_set: &str) -> Result<()> {
    world.cluster.ask(&["--namespace", CULVERT, "rollout", "restart", &format!("daemonset/{daemon_set}")])?;
    world.wait_for_rollout(daemon_set)
}
