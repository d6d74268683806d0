//! The state before Culvert: what users of edge nodes can do.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::wait;

use crate::cluster::{EDGES, MASTER};
use crate::world::World;
use crate::{pods, top};

/// Long compared with an answer from the master, which takes a fraction of a second.
const SILENCE: Duration = Duration::from_secs(6);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "before: kubectl logs of a pod on the master works",
        |world| {
            let said = world.shop(&["logs", &pods::name(MASTER)])?;
            ensure!(said.contains("hello from master"), "it says {said}");
            Ok(())
        },
    )?;
    world.claim_once(
        "before: neither kubectl logs nor exec reaches a pod on an edge node",
        |world| {
            let mut tries = Vec::new();
            for node in EDGES {
                let pod = pods::name(node);
                tries.push(world.start_shop(&format!("before-logs-{node}"), &["logs", &pod])?);
                tries.push(world.start_shop(
                    &format!("before-exec-{node}"),
                    &["exec", &pod, "--", "echo", "hello"],
                )?);
            }
            wait::throughout("no answer", SILENCE, || {
                let said = tries
                    .iter()
                    .map(super::command::Running::said)
                    .find(|said| said.contains("hello"));
                ensure!(
                    said.is_none(),
                    "an edge is reachable without Culvert: {said:?}"
                );
                Ok(())
            })
        },
    )?;
    top::before(world)
}
