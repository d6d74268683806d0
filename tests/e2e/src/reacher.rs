//! A program on a cloud node that connects to kubelets again and again, and records when each
//! answered.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use culvert_lab::progress;

use crate::command::Running;
use crate::world::World;

/// Connects and completes a TLS handshake with each target, and prints the results.
const PROGRAM: &str = include_str!("reacher.py");
/// The target that stands for the readiness of the proxy on the same host.
pub(super) const READYZ: &str = "http://127.0.0.1:7409/readyz";
/// The time in which the first attempts end, on two busy cores.
const FIRST: Duration = Duration::from_secs(30);

/// The running program.
pub(super) struct Reacher {
    pub(super) host: &'static str,
    running: Running,
}

/// An attempt to reach a target. Times are in seconds since the epoch.
#[derive(Clone, Debug, PartialEq)]
struct Attempt {
    started: f64,
    ended: f64,
    target: String,
    /// `ok`, or why it failed.
    result: String,
}

/// A time without an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outage {
    from: f64,
    to: f64,
    reason: String,
}

impl Outage {
    pub(super) fn seconds(&self) -> f64 {
        self.to - self.from
    }
}

impl Reacher {
    /// Starts it on a cloud node, and waits until it has reached all targets. Each attempt may take
    /// `patience` seconds.
    pub(super) fn start(
        world: &World,
        host: &'static str,
        patience: u32,
        targets: &[&str],
    ) -> Result<Self> {
        let script = world.file("reacher.py");
        std::fs::write(&script, PROGRAM).with_context(|| format!("write {}", script.display()))?;
        let mut python = world.cluster.enter(host, "python3");
        python.arg(&script).arg(patience.to_string()).args(targets);
        let what = format!("reacher-{host}");
        let mut running = Running::start(world.folder(), &what, &mut python)?;
        running.wait_until("every target", FIRST, |said| {
            let attempts = attempts(said);
            targets
                .iter()
                .try_for_each(|target| reached_since(&attempts, target, 0.0))
        })?;
        Ok(Self { host, running })
    }

    /// All attempts so far. Fails if the program has ended.
    fn attempts(&mut self) -> Result<Vec<Attempt>> {
        self.running.check()?;
        Ok(attempts(&self.running.said()))
    }

    /// Fails unless the last attempt to reach a target began after `since` and succeeded.
    pub(super) fn reached(&mut self, target: &str, since: f64) -> Result<()> {
        reached_since(&self.attempts()?, target, since)
            .with_context(|| format!("from {}", self.host))
    }

    /// Prints how often and for how long each target was out of reach, for people.
    pub(super) fn report(&mut self, targets: &[&str], since: f64) -> Result<()> {
        for target in targets {
            let outages = self.outages(target, since)?;
            let lengths = outages.iter().map(Outage::seconds);
            let lengths: Vec<_> = lengths.map(|length| format!("{length:.1} s")).collect();
            progress::say(&format!(
                "             {} could not reach {target} for: [{}]",
                self.host,
                lengths.join(", ")
            ));
        }
        Ok(())
    }

    /// The times without an answer of a target, among attempts that began after `since`.
    pub(super) fn outages(&mut self, target: &str, since: f64) -> Result<Vec<Outage>> {
        Ok(outages(&self.attempts()?, target, since))
    }
}

/// Now, as the attempts have it.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

fn reached_since(attempts: &[Attempt], target: &str, since: f64) -> Result<()> {
    let last = attempts.iter().rfind(|attempt| attempt.target == target);
    let last = last.with_context(|| format!("{target}: no attempt has ended yet"))?;
    ensure!(
        last.result == "ok" && last.started >= since,
        "{target}: {}",
        last.result
    );
    Ok(())
}

fn outages(attempts: &[Attempt], target: &str, since: f64) -> Vec<Outage> {
    let mut outages: Vec<Outage> = Vec::new();
    let mut is_out = false;
    for attempt in attempts {
        if attempt.target != target || attempt.started < since {
            continue;
        }
        let failed = attempt.result != "ok";
        if is_out && let Some(outage) = outages.last_mut() {
            outage.to = attempt.ended;
        } else if failed {
            outages.push(Outage {
                from: attempt.started,
                to: attempt.ended,
                reason: attempt.result.clone(),
            });
        }
        is_out = failed;
    }
    outages
}

/// Parses `<started> <ended> <target> <result>`. The last line may be incomplete.
fn attempts(said: &str) -> Vec<Attempt> {
    match said.rsplit_once('\n') {
        Some((whole, _)) => whole.lines().filter_map(attempt).collect(),
        None => Vec::new(),
    }
}

fn attempt(line: &str) -> Option<Attempt> {
    let mut words = line.splitn(4, ' ');
    Some(Attempt {
        started: words.next()?.parse().ok()?,
        ended: words.next()?.parse().ok()?,
        target: words.next()?.to_owned(),
        result: words.next()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_ends_with_the_next_answer() {
        let said = "1.0 1.1 a ok\n1.0 1.2 b refused\n2.0 2.1 a timed out\n3.0 3.1 a reset\n4.0 \
            4.5 a ok\n5.0 5.1 a ok\n6.0 6.";
        let attempts = attempts(said);
        assert_eq!(attempts.len(), 6);
        let outage = Outage {
            from: 2.0,
            to: 4.5,
            reason: "timed out".to_owned(),
        };
        assert_eq!(outages(&attempts, "a", 0.0), [outage]);
        assert_eq!(outages(&attempts, "a", 3.5), []);
    }

    #[test]
    fn an_answer_counts_if_the_last_attempt_began_late_enough() {
        let attempts = attempts("1.0 1.1 a ok\n2.0 2.1 a ok\n2.0 2.1 b reset\n");
        assert!(reached_since(&attempts, "a", 2.0).is_ok());
        assert!(reached_since(&attempts, "a", 2.5).is_err());
        assert!(reached_since(&attempts, "b", 0.0).is_err());
    }
}
