//! What breaks and heals by itself, and what `explain` says meanwhile.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::world::{EDGE_1_ADDRESS, World};
use super::{install, logs};
use crate::wait;

/// A pod is deleted with grace, replaced by its controller and connects.
const HEALED: Duration = Duration::from_secs(60);

/// The step: the agent's pod of a node is deleted.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim("an agent's pod is deleted: explain says that edge-1 is offline", |world| {
        world.culvert(&[
            "delete",
            "pod",
            "--wait=false",
            "--selector",
            "app.kubernetes.io/name=culvert-agent",
            "--field-selector",
            "spec.nodeName=edge-1",
        ])?;
        wait::until("explain says offline", HEALED, || {
            let said = explain(world)?;
            ensure!(said.contains("offline"), "it says {said}");
            Ok(())
        })
    })?;
    world.claim("an agent's pod is deleted: the node is back by itself", install::all_online)?;
    logs::prove(world, "edge-1")
}

/// kube-apiserver has been restarted: what the proxy knew goes on, and what changes afterwards arrives.
pub(super) fn apiserver(world: &mut World) -> Result<()> {
    world.claim("the API server is restarted: a port that a node is given afterwards is known soon", |world| {
        world.cluster.ask(&["annotate", "node", "edge-1", "--overwrite", "culvert.dev/ports=18999"])?;
        wait::until("explain knows the port", HEALED, || {
            let said = world.in_pod("culvert-proxy", &["explain", &format!("{EDGE_1_ADDRESS}:18999")])?;
            ensure!(said.contains("edge-1") && !said.contains("not steered"), "it says {said}");
            Ok(())
        })
    })
}

fn explain(world: &World) -> Result<String> {
    world.in_pod("culvert-proxy", &["explain", &format!("{EDGE_1_ADDRESS}:10250")])
}
