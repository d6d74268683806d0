//! A `kubectl logs -f` that runs during other steps.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::Running;

/// How late a pod that prints each second may be on two busy cores.
const LATE: Duration = Duration::from_secs(15);

/// The `kubectl logs -f` of a pod that counts seconds.
pub(super) struct Follower {
    running: Running,
    since: Instant,
}

impl Follower {
    /// Waits for the first line of a started command.
    pub(super) fn new(mut running: Running) -> Result<Self> {
        running.wait_for("tick ", LATE)?;
        Ok(Self {
            running,
            since: Instant::now(),
        })
    }

    /// Fails unless a next number arrives and no number is missing.
    pub(super) fn goes_on(&mut self) -> Result<()> {
        let last = last_tick(&self.running.said())?;
        self.running.check()?;
        self.running.wait_until("the next seconds", LATE, |said| {
            ensure!(last_tick(said)? > last + 1, "tick {last} was the last");
            Ok(())
        })
    }

    /// Waits until it has run for this long.
    pub(super) fn last_for(&mut self, duration: Duration) -> Result<()> {
        let rest = duration.saturating_sub(self.since.elapsed());
        culvert_lab::wait::throughout("kubectl logs -f", rest, || self.running.check())?;
        self.goes_on()
    }
}

/// The number in `tick N`.
fn tick(line: &str) -> Option<u64> {
    line.strip_prefix("tick ")?.parse().ok()
}

/// The last number in the output; fails if an earlier one is missing.
fn last_tick(said: &str) -> Result<u64> {
    let mut last = None;
    // The last line may be incomplete.
    let (whole, _) = said.rsplit_once('\n').context("nothing yet")?;
    for line in whole.lines() {
        if line.starts_with("hello") {
            continue;
        }
        let number = tick(line).with_context(|| format!("{line:?}"))?;
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
