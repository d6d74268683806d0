//! One watcher of each proxy's directory, as a redirector is.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use culvert_lab::LineProcess;
use culvert_lab::process::bound;

use crate::programs::Programs;
use crate::proxies::Proxies;

/// A change is there after seconds, or never.
const PATIENCE: Duration = Duration::from_secs(60);

/// All watchers.
pub(crate) struct Watchers(Vec<Watcher>);

struct Watcher(LineProcess);

impl Watchers {
    /// Starts them, and waits for their snapshots.
    pub(crate) fn start(programs: &Programs, proxies: &Proxies<'_>) -> Result<Self> {
        let mut watchers = Vec::new();
        for number in 0..proxies.count() {
            let mut command = bound(&programs.worker());
            command.arg("watch").arg(proxies.directory_socket(number));
            watchers.push(Watcher(LineProcess::start(&mut command)?));
        }
        for watcher in &watchers {
            watcher.wait("ready")?;
        }
        Ok(Self(watchers))
    }

    /// Waits until all have seen a node, `online` or not. Returns when the first and the last one
    /// saw it.
    pub(crate) fn wait(&self, node: &str) -> Result<[Instant; 2]> {
        let seen: Vec<_> = self
            .0
            .iter()
            .map(|one| one.wait(node))
            .collect::<Result<_>>()?;
        let first = seen.iter().min();
        let last = seen.iter().max();
        let (first, last) = first.zip(last).context("no watchers")?;
        Ok([*first, *last])
    }
}

impl Watcher {
    fn wait(&self, wanted: &str) -> Result<Instant> {
        let started = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(started.elapsed());
            match self.0.timed_line(left) {
                Ok((at, line)) if line == wanted => return Ok(at),
                Ok(_) => {}
                Err(_) => bail!("a watcher of the directory does not see {wanted}"),
            }
        }
    }
}
