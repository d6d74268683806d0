//! Installs Culvert as docs/install-kubernetes.md says: labels, images, manifests.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::{wait, workspace};

use crate::cluster::EDGES;
use crate::world::World;
use crate::{balancer, culvert, dns, images, logs};

/// Time for programs that start side by side on two busy cores to find each other.
const READY: Duration = Duration::from_mins(4);

/// Culvert's programs.
pub(super) const PROGRAMS: [&str; 3] = ["culvert-proxy", "culvert-redirector", "culvert-agent"];

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    load_images(world)?;
    world.claim(
        "nodes are labelled and the manifests applied; every pod becomes ready",
        |world| {
            prepare_nodes(world)?;
            world.apply_overlay("e2e")?;
            wait_for_rollouts(world)
        },
    )?;
    wait_for_tunnels(world)?;
    logs::prove(world, "edge-1")?;
    dns::prove(world)?;
    check(world)
}

/// Labels the nodes, and makes what the overlay `e2e` expects of them.
pub(super) fn prepare_nodes(world: &World) -> Result<()> {
    label(
        world,
        &world.clouds,
        "node-role.kubernetes.io/control-plane=",
    )?;
    label(
        world,
        &EDGES,
        "node-restriction.kubernetes.io/culvert-edge=",
    )?;
    for node in &world.clouds {
        name_cgroup(world, node)?;
    }
    balancer::start(world)
}

/// Waits until all pods of Culvert are ready.
pub(super) fn wait_for_rollouts(world: &World) -> Result<()> {
    PROGRAMS
        .into_iter()
        .try_for_each(|program| world.wait_for_rollout(program))
}

/// States that the cluster has no fault that `check` knows.
pub(super) fn check(world: &mut World) -> Result<()> {
    world.claim(
        "culvert check finds nothing wrong on any cloud node",
        |world| {
            let found = culvert::found(world)?;
            ensure!(!found.contains("failure "), "{found}");
            Ok(())
        },
    )
}

/// Loads the images, unless an earlier step has.
pub(super) fn load_images(world: &mut World) -> Result<()> {
    if world.has_images {
        return Ok(());
    }
    world.claim("images are loaded", |world| {
        for program in PROGRAMS {
            world.cluster.load(&workspace::image_archive(program))?;
        }
        images::load(world)
    })?;
    world.has_images = true;
    Ok(())
}

/// Sets a label of nodes, or removes it if the label ends with `-`.
pub(super) fn label(world: &World, nodes: &[&str], label: &str) -> Result<()> {
    let args = [&["label", "node"], nodes, &["--overwrite", label]].concat();
    world.cluster.ask(&args).map(drop)
}

/// Mounts the cgroup of a cloud node's processes at a path that is the same on all of them: the
/// redirectors of all share their arguments.
pub(super) fn name_cgroup(world: &World, node: &str) -> Result<()> {
    let cgroup = world.cluster.variable_of(node, "CGROUP")?;
    let script = "mkdir -p $0 && { mountpoint -q $0 || mount --bind \"$1\" $0; }";
    let line = ["sh", "-c", script, "/var/lib/culvert/e2e-cgroup", cgroup];
    world.cluster.on(node, &line).map(drop)
}

/// States that all nodes are online.
pub(super) fn wait_for_tunnels(world: &mut World) -> Result<()> {
    world.claim("every edge node has its tunnels", all_online)
}

/// Waits until every edge node has a tunnel.
pub(super) fn all_online(world: &World) -> Result<()> {
    wait::until("every edge node is online", READY, || {
        let holders = culvert::holders(world, &EDGES)?;
        ensure!(
            holders.iter().all(|proxies| !proxies.is_empty()),
            "tunnels of {EDGES:?} are at {holders:?}"
        );
        Ok(())
    })
}
