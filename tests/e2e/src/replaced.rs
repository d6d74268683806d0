//! The rolling update of the proxies of all cloud nodes, while clients come and go on each of them.
//!
//! A proxy serves its clients for its grace period at most, then cuts them. Until the next pod is
//! there, the redirector of the host keeps the sockets of clients.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, wait};

use crate::cluster::{EDGES, MASTER};

use crate::forward::{self, Forward};
use crate::reacher::{self, Reacher};
use crate::world::{CULVERT, Pod, World};
use crate::{culvert, logs};

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
    let holders = culvert::holders(world, &EDGES)?;
    for (edge, holders) in EDGES.into_iter().zip(holders) {
        if holders.contains(&MASTER) {
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
    let mut reachers = Vec::new();
    for host in &world.clouds {
        reachers.push(Reacher::start(world, host, PATIENCE, &[TARGET])?);
    }
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
    let mut follower = None;
    if let Some(edge) = followed {
        follower = Some(logs::follow(world, "follow-proxies", edge)?);
    }
    let before = world.pods(PROXY)?;
    world.start_rollout(PROXY)?;
    let mut broken = None;
    wait::until("every proxy is replaced", REPLACED, || {
        let now = world.pods(PROXY)?;
        if now.get(MASTER).map(|pod| &pod.name) == before.get(MASTER).map(|pod| &pod.name)
            && let Some(follower) = &mut follower
            && let Err(error) = follower.goes_on()
        {
            broken.get_or_insert(error);
        }
        all_new(world, &now, &before)
    })?;
    world.wait_for_rollout(PROXY)?;
    match broken {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Fails unless each cloud node has a new pod.
fn all_new(
    world: &World,
    now: &BTreeMap<String, Pod>,
    before: &BTreeMap<String, Pod>,
) -> Result<()> {
    for node in &world.clouds {
        let now = now.get(*node);
        let before = before.get(*node);
        ensure!(is_new(now, before), "{node} has {now:?}, before {before:?}");
    }
    Ok(())
}

/// Whether a node has a pod that is ready and is not the one of before.
fn is_new(now: Option<&Pod>, before: Option<&Pod>) -> bool {
    let Some(now) = now else { return false };
    let is_other = match before {
        Some(before) => before.name != now.name,
        None => true,
    };
    now.is_ready && is_other
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
