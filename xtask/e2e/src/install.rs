//! Installs Culvert as docs/install-kubernetes.md says: labels, images, manifests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{wait, workspace};

use crate::cluster::{EDGES, MASTER};
use crate::world::World;
use crate::{images, logs};

/// Time for programs that start side by side on two busy cores to find each other.
const READY: Duration = Duration::from_secs(60);

/// Culvert's programs.
pub(super) const PROGRAMS: [&str; 3] = ["culvert-proxy", "culvert-redirector", "culvert-agent"];

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim("images are loaded", |world| {
        for program in PROGRAMS {
            world.cluster.load(&workspace::image_archive(program))?;
        }
        images::load(world)
    })?;
    world.claim(
        "nodes are labelled and the manifests applied; every pod becomes ready",
        |world| {
            world.cluster.ask(&[
                "label",
                "node",
                MASTER,
                "--overwrite",
                "node-role.kubernetes.io/control-plane=",
            ])?;
            for edge in EDGES {
                world.cluster.ask(&[
                    "label",
                    "node",
                    edge,
                    "--overwrite",
                    "node-restriction.kubernetes.io/culvert-edge=",
                ])?;
            }
            world.apply_overlay("e2e")?;
            PROGRAMS
                .into_iter()
                .try_for_each(|program| world.wait_for_rollout(program))
        },
    )?;
    wait_for_tunnels(world)?;
    logs::prove(world, "edge-1")?;
    world.claim("culvert-proxy check finds nothing wrong", |world| {
        world
            .in_pod("culvert-proxy", &["check", "--kubernetes"])
            .map(drop)
    })
}

/// States that all nodes are online.
pub(super) fn wait_for_tunnels(world: &mut World) -> Result<()> {
    world.claim("every edge node has its tunnels", all_online)
}

/// Waits until every edge node has a tunnel.
pub(super) fn all_online(world: &World) -> Result<()> {
    wait::until("every edge node is online", READY, || {
        let list = world.in_pod("culvert-proxy", &["node", "list"])?;
        EDGES.into_iter().try_for_each(|node| {
            ensure!(tunnels(&list, node)? > 0, "{node} has no tunnel:\n{list}");
            Ok(())
        })
    })
}

/// Parses the number of a node's tunnels: `edge-1  2  10.0.3.7 ...`.
fn tunnels(list: &str, node: &str) -> Result<usize> {
    let line = list
        .lines()
        .find(|line| line.split_whitespace().next() == Some(node));
    let line = line.with_context(|| format!("the proxy does not know {node}:\n{list}"))?;
    let count = line
        .split_whitespace()
        .nth(1)
        .and_then(|count| count.parse().ok());
    count.with_context(|| format!("no number of tunnels: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_are_counted_by_what_node_list_prints() {
        let list = "NODE    TUNNELS  ADDRESSES\nedge-1  2        10.0.3.7\nedge-2  0        \
            192.168.1.10*\n";
        assert_eq!(
            (
                tunnels(list, "edge-1").unwrap(),
                tunnels(list, "edge-2").unwrap()
            ),
            (2, 0)
        );
        assert!(tunnels(list, "edge-3").is_err());
    }
}
