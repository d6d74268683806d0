//! The node's way to the API server leads somewhere else: to another cluster, and to its own one as of
//! an earlier day.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::wait;

use super::containers::{Container, running};
use super::node::{HUB, KUBELET, Node};
use super::pods::{APP, CONFIG, CREATED, DELETED, MAIN};
use super::renewal::{self, Files};
use super::twin::{self, Copy, Twin};
use super::workload::Workload;
use super::{FOLLOWED, NODE, NOTICED, STARTED, node, ready, says};
use crate::world::{Cuts, World};

/// How long another cluster answers.
const ANSWERS: Duration = Duration::from_mins(1);

/// What etcd has now, for later, if there is time for that.
pub(super) fn copy(world: &World) -> Result<Option<Copy>> {
    match world.cuts {
        Cuts::Short => Ok(None),
        Cuts::Long => twin::copy(world).map(Some),
    }
}

/// Both. Kubelet and the hub do not run before and after it.
pub(super) fn run(
    world: &mut World,
    node: &Node,
    workload: &Workload,
    copy: Option<Copy>,
    files: &Files,
) -> Result<()> {
    let Some(copy) = copy else {
        return Ok(());
    };
    node.start(world, HUB)?;
    node.start(world, KUBELET)?;
    wait::until("the link", STARTED, || says(world, "link: up"))?;
    wait::until("ready", STARTED, || ready(world, "True"))?;
    another_cluster(world, workload)?;
    restored(world, workload, &copy, files)?;
    node.kill(world, KUBELET)?;
    node.kill(world, HUB)
}

fn another_cluster(world: &mut World, workload: &Workload) -> Result<()> {
    let other = Twin::start(world, None, None)?;
    world.claim_once(
        "an empty cluster answers at the API server's address: the hub does not believe it and \
         says so, and every pod runs on",
        |world| {
            let app = running(world, APP, MAIN)?;
            let all = workload.running(world)?;
            lead(world, twin::lead_there)?;
            wait::until("the hub says so", STARTED, || is_another(world, "1"))?;
            wait::throughout("the containers", ANSWERS, || {
                all.values().chain([&app]).try_for_each(Container::check)
            })?;
            says(world, "link: down")?;
            workload.same(world, &all)
        },
    )?;
    other.stop(world)?;
    world.claim_once(
        "the own cluster answers again: the Node is ready, and every container is the same",
        |world| {
            let app = running(world, APP, MAIN)?;
            let all = workload.running(world)?;
            lead(world, twin::lead_back)?;
            wait::until("the link", STARTED, || says(world, "link: up"))?;
            wait::until("ready", STARTED, || ready(world, "True"))?;
            is_another(world, "0")?;
            ensure!(running(world, APP, MAIN)? == app, "it was restarted");
            workload.same(world, &all)
        },
    )
}

fn restored(world: &mut World, workload: &Workload, copy: &Copy, files: &Files) -> Result<()> {
    cut(world)?;
    let renewed = files.renew(world)?;
    let serving = files.add_authority(world)?;
    let restored = Twin::start(world, Some(copy), Some(&serving))?;
    twin::lead_there(world)?;
    world.claim_once(
        "etcd is restored from a copy, and the API server's certificate is of an authority that was \
         added during a cut: the pod that was deleted since the copy runs again, the created one \
         ends, the ConfigMap is the old one, and every other container is the same",
        |world| {
            let app = running(world, APP, MAIN)?;
            let all = workload.running(world)?;
            node::repair(world)?;
            wait::until("the link", FOLLOWED, || says(world, "link: up"))?;
            wait::until("the earlier state", FOLLOWED, || {
                running(world, DELETED, MAIN)?;
                ensure!(running(world, CREATED, MAIN).is_err(), "{CREATED} runs");
                ensure!(app.read(CONFIG)? == "blue", "the ConfigMap is the new one");
                let log = std::fs::read_to_string(&restored.audit_log)?;
                renewal::is_used(&log, &renewed)
            })?;
            ensure!(running(world, APP, MAIN)? == app, "it was restarted");
            workload.same(world, &all)
        },
    )?;
    restored.stop(world)?;
    newer_again(world)
}

fn newer_again(world: &mut World) -> Result<()> {
    world.claim_once(
        "the newer state is back: the node follows it again",
        |world| {
            let app = running(world, APP, MAIN)?;
            lead(world, twin::lead_back)?;
            wait::until("the newer state", FOLLOWED + STARTED, || {
                ensure!(running(world, DELETED, MAIN).is_err(), "{DELETED} runs");
                running(world, CREATED, MAIN)?;
                ensure!(app.read(CONFIG)? == "red", "the ConfigMap is the old one");
                Ok(())
            })?;
            wait::until("ready", STARTED, || ready(world, "True"))
        },
    )
}

/// Leads the node there, over a cut: connections that are open lead where they led.
fn lead(world: &World, there: impl FnOnce(&World) -> Result<()>) -> Result<()> {
    cut(world)?;
    there(world)?;
    node::repair(world)
}

fn cut(world: &World) -> Result<()> {
    node::cut(world)?;
    wait::until("the link is down", NOTICED, || says(world, "link: down"))
}

fn is_another(world: &World, expected: &str) -> Result<()> {
    let page = "http://127.0.0.1:7439/metrics";
    let metrics = world.cluster.on(NODE, &["curl", "-sS", "--fail", page])?;
    let wanted = format!("\nculvert_hub_other_cluster {expected}\n");
    ensure!(
        metrics.contains(&wanted),
        "culvert_hub_other_cluster is not {expected}"
    );
    Ok(())
}
