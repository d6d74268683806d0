//! `kubectl logs` and `kubectl logs -f`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::Running;
use crate::pods;
use crate::world::World;

/// Longer than every time-out and idle limit on the way that is not of minutes.
const FOLLOWED: Duration = Duration::from_secs(70);
/// A pod that says something each second may be late on two busy cores.
const LATE: Duration = Duration::from_secs(15);

/// The step: logs, and the beginning of a `logs -f` that goes on beside other steps.
pub(super) fn run(world: &mut World) -> Result<()> {
    prove(world, "edge-1")?;
    world.follower = Some(Follower::start(world, "follow", "edge-1")?);
    Ok(())
}

/// The step: the end of that `logs -f`.
pub(super) fn finish(world: &mut World) -> Result<()> {
    let mut follower = match world.follower.take() {
        Some(follower) => follower,
        None => Follower::start(world, "follow", "edge-1")?,
    };
    let seconds = FOLLOWED.as_secs();
    world.claim(
        &format!("kubectl logs -f tells every second of a pod on edge-1 for {seconds} s and more"),
        |_| follower.last_for(FOLLOWED),
    )
}

/// Logs of the pod on a node.
pub(super) fn prove(world: &mut World, node: &str) -> Result<()> {
    world.claim(&format!("kubectl logs of a pod on {node}"), |world| {
        let said = world.shop(&["logs", &pods::name(node)])?;
        ensure!(
            said.starts_with(&format!("hello from {node}\n")),
            "it says {said:.200}"
        );
        Ok(())
    })
}

/// A `kubectl logs -f` of the pod on a node, going on beside other steps.
pub(super) struct Follower {
    running: Running,
    since: Instant,
}

impl Follower {
    /// Starts it.
    pub(super) fn start(world: &World, what: &str, node: &str) -> Result<Self> {
        let mut running = world.start_shop(
            what,
            &["logs", "--follow", "--tail", "1", &pods::name(node)],
        )?;
        running.wait_for("tick ", LATE)?;
        Ok(Self {
            running,
            since: Instant::now(),
        })
    }

    /// Fails unless it goes on: a next second is told, and none was left out.
    pub(super) fn goes_on(&mut self) -> Result<()> {
        let last = last_tick(&self.running.said())?;
        self.running.check()?;
        self.running.wait_until("the next seconds", LATE, |said| {
            ensure!(last_tick(said)? > last + 1, "tick {last} was the last");
            Ok(())
        })
    }

    /// Waits until it has gone on for this long.
    fn last_for(&mut self, duration: Duration) -> Result<()> {
        let rest = duration.saturating_sub(self.since.elapsed());
        culvert_lab::wait::throughout("kubectl logs -f", rest, || self.running.check())?;
        self.goes_on()
    }
}

/// The last number told, if none before it is missing.
fn last_tick(said: &str) -> Result<u64> {
    let mut last = None;
    // The last line may be half written.
    let (whole, _) = said.rsplit_once('\n').context("nothing yet")?;
    for line in whole.lines().filter(|line| !line.starts_with("hello")) {
        let number: u64 = line
            .strip_prefix("tick ")
            .and_then(|number| number.parse().ok())
            .with_context(|| format!("{line:?}"))?;
        match last {
            Some(before) if number != before + 1 => bail!("after tick {before} came tick {number}"),
            _ => last = Some(number),
        }
    }
    last.context("no tick yet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_that_is_left_out_is_found() {
        assert_eq!(
            last_tick("hello from a\ntick 1\ntick 2\ntick 3\nti").unwrap(),
            3
        );
        assert!(
            last_tick("tick 1\ntick 3\n")
                .unwrap_err()
                .to_string()
                .contains("after tick 1")
        );
        assert!(last_tick("tick 1\nerror: broken\n").is_err());
    }
}
