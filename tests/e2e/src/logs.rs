//! `kubectl logs` and `kubectl logs -f`.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::follower::Follower;
use crate::pods;
use crate::world::{World, WrongData};

/// Longer than every timeout and idle limit on the way, except those of minutes.
const FOLLOWED: Duration = Duration::from_secs(70);

/// The step that proves logs, and starts a `logs -f` that runs during other steps.
pub(super) fn run(world: &mut World) -> Result<()> {
    prove(world, "edge-1")?;
    world.follower = Some(follow(world, "follow", "edge-1")?);
    Ok(())
}

/// The step that ends this `logs -f`.
pub(super) fn finish(world: &mut World) -> Result<()> {
    let mut follower = match world.follower.take() {
        Some(follower) => follower,
        None => follow(world, "follow", "edge-1")?,
    };
    let seconds = FOLLOWED.as_secs();
    world.claim_once(
        &format!("kubectl logs -f tells every second of a pod on edge-1 for {seconds} s and more"),
        |_| follower.last_for(FOLLOWED),
    )
}

/// Proves logs of the pod on a node.
pub(super) fn prove(world: &mut World, node: &str) -> Result<()> {
    world.claim(&format!("kubectl logs of a pod on {node}"), |world| {
        let said = world.shop(&["logs", &pods::name(node)])?;
        let is_of_node = said.starts_with(&format!("hello from {node}\n"));
        ensure!(is_of_node, WrongData(format!("it says {said:.200}")));
        Ok(())
    })
}

/// Starts a `kubectl logs -f` of the pod on a node.
pub(super) fn follow(world: &World, what: &str, node: &str) -> Result<Follower> {
    Follower::new(world.start_shop(
        what,
        &["logs", "--follow", "--tail", "1", &pods::name(node)],
    )?)
}
