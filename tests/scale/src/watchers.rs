//! One watcher of each proxy's directory, as a redirector is.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use culvert_lab::process::bound;

use crate::programs::Programs;
use crate::proxies::Proxies;

/// A change is there after seconds, or never.
const PATIENCE: Duration = Duration::from_secs(60);

/// All watchers.
pub(crate) struct Watchers(Vec<Watcher>);

struct Watcher {
    child: Child,
    /// Its end ends the process.
    _input: ChildStdin,
    lines: Receiver<(Instant, String)>,
}

impl Watchers {
    /// Starts them, and waits for their snapshots.
    pub(crate) fn start(programs: &Programs, proxies: &Proxies<'_>) -> Result<Self> {
        let mut watchers = Vec::new();
        for number in 0..proxies.count() {
            let mut command = bound(&programs.worker());
            command.arg("watch").arg(proxies.directory_socket(number));
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            watchers.push(Watcher::of(child.context("start a watcher")?)?);
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
    fn of(mut child: Child) -> Result<Self> {
        let input = child.stdin.take().context("stdin")?;
        let output = child.stdout.take().context("stdout")?;
        let (line_tx, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| line_tx.send((Instant::now(), line)))
        });
        Ok(Self {
            child,
            _input: input,
            lines,
        })
    }

    fn wait(&self, wanted: &str) -> Result<Instant> {
        let started = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(started.elapsed());
            match self.lines.recv_timeout(left) {
                Ok((at, line)) if line == wanted => return Ok(at),
                Ok(_) => {}
                Err(_) => bail!("a watcher of the directory does not see {wanted}"),
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
