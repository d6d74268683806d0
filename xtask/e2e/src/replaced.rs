//! The rolling update of the proxies of all cloud nodes, while clients come and go on each of them.
//!
//! A proxy serves its clients for its grace period at most, then cuts them. Until the next pod is
//! there, the redirector of the host keeps the sockets of clients.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, wait};

use crate::cluster::{EDGES, MASTER};
use crate::follower::Follower;
use crate::forward::{self, Forward};
use crate::reacher::{self, Reacher};
use crate::world::{CULVERT, World};
use crate::{install, logs, rolling};

/// Shorter than the time that a proxy lets streams end in.
const DOWNLOAD: usize = 15;
/// What a redirector says that has kept the sockets of clients for 30 s.
const TOO_LATE: &str = "no proxy came for the sockets of clients";
/// Seconds that a client waits: longer than the redirector keeps its socket.
const PATIENCE: u32 = 35;
/// Time for three replacements.
const REPLACED: Duration = Duration::from_secs(300);
const PROXY: &str = "culvert-proxy";
const TARGET: &str = "edge-1:10250";

/// An edge with a tunnel at the master, if there is one.
pub(super) fn edge_at_master(world: &World) -> Result<Option<&'static str>> {
    let list = world.in_pod(PROXY, &["node", "list"])?;
    for edge in EDGES {
        if install::tunnels(&list, edge)? > 0 {
            return Ok(Some(edge));
        }
    }
    progress::say("             no edge has a tunnel at the master");
    Ok(None)
}

/// Proves it with a download from `node`, and with the logs of `followed`, an edge with a tunnel at
/// the master.
pub(super) fn prove(world: &mut World, node: &str, followed: Option<&str>) -> Result<()> {
    let digest = forward::make_file(world, node, forward::STEADY)?;
    let start = |host: &&'static str| Reacher::start(world, host, PATIENCE, &[TARGET]);
    let mut reachers = world.clouds.iter().map(start).collect::<Result<Vec<_>>>()?;
    let begun = reacher::now();
    world.claim_once(
        "the proxies' rolling update: a download under way ends whole; logs -f through a tunnel at \
         the master goes on until the proxy there ends",
        |world| {
            let forward = Forward::open(world, "forward-proxy", node)?;
            let download = forward.download(world, "download-proxy", DOWNLOAD)?;
            update(world, followed)?;
            forward::finish_download(download, &digest)
        },
    )?;
    world.claim("logs -f again", |world| {
        logs::follow(world, "follow-again", node)?.goes_on()
    })?;
    world.claim_once(
        "meanwhile no connection was refused on any cloud node: clients waited for the next proxy",
        |world| nobody_refused(world, &mut reachers, begun),
    )
}

/// Replaces all proxies.
fn update(world: &World, followed: Option<&str>) -> Result<()> {
    let follow = |edge| logs::follow(world, "follow-proxies", edge);
    let mut follower = followed.map(follow).transpose()?;
    let before = world.pods(PROXY)?;
    rolling::begin(world, PROXY)?;
    let mut broken = None;
    wait::until("every proxy is replaced", REPLACED, || {
        let now = world.pods(PROXY)?;
        if now.get(MASTER).map(|pod| &pod.name) == before.get(MASTER).map(|pod| &pod.name) {
            let gone_on = follower.as_mut().map_or(Ok(()), Follower::goes_on);
            broken = broken.take().or(gone_on.err());
        }
        world.clouds.iter().try_for_each(|node| {
            let now = now.get(*node);
            let before = before.get(*node);
            let is_new = now.is_some_and(|pod| {
                pod.is_ready && before.is_none_or(|before| before.name != pod.name)
            });
            ensure!(is_new, "{node} has {now:?}, before {before:?}");
            Ok(())
        })
    })?;
    world.wait_for_rollout(PROXY)?;
    broken.map_or(Ok(()), Err)
}

/// No attempt to connect failed, unless the next pod came too late: then the redirector says so.
fn nobody_refused(world: &World, reachers: &mut [Reacher], since: f64) -> Result<()> {
    let redirectors = world.pods("culvert-redirector")?;
    for reacher in reachers {
        reacher.report(&[TARGET], since)?;
        reacher.reached(TARGET, since).context("after the update")?;
        let outages = reacher.outages(TARGET, since)?;
        if outages.is_empty() {
            continue;
        }
        let redirector = redirectors
            .get(reacher.host)
            .with_context(|| format!("{} has no redirector", reacher.host))?;
        let log = world
            .cluster
            .ask(&["--namespace", CULVERT, "logs", &redirector.name])?;
        ensure!(
            log.contains(TOO_LATE),
            "{} reached nothing, although the next proxy was there in time: {outages:?}",
            reacher.host
        );
        progress::say(&format!(
            "             the next proxy of {} came after more than 30 s",
            reacher.host
        ));
    }
    Ok(())
}
