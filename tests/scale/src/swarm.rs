//! The processes that contain the agents.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::process::bound;
use culvert_lab::{LineProcess, interrupt, progress, wait};
use serde::Deserialize;

use crate::config::Config;
use crate::folder::Folder;
use crate::programs::Programs;
use crate::proxies::Proxies;

/// For an answer of a process that is busy with handshakes.
const ANSWER_TIME: Duration = Duration::from_secs(60);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// All agents.
pub(crate) struct Swarm {
    processes: Vec<Agents>,
    tunnels: usize,
}

/// What became of the tunnels since the last question.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Counts {
    pub(crate) up: usize,
    /// Milliseconds that tunnels were missing before they came up.
    pub(crate) back: Vec<u64>,
    /// Failed attempts since the start.
    pub(crate) failed: BTreeMap<String, u64>,
}

/// How all tunnels came up.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Until the last one was there.
    pub(crate) time: Duration,
    /// Sorted milliseconds of each tunnel from its loss.
    pub(crate) back: Vec<u64>,
    /// Failed attempts.
    pub(crate) failed: BTreeMap<String, u64>,
}

impl Swarm {
    /// Starts the processes, which make the agents' certificates.
    pub(crate) fn start(
        config: &Config,
        folder: &Folder,
        programs: &Programs,
        proxies: &Proxies<'_>,
    ) -> Result<Self> {
        let count = config.processes;
        let mut processes = Vec::new();
        for number in 0..count {
            let first = config.agents * number / count;
            let next = config.agents * (number + 1) / count;
            let mut command = agents(folder, programs, &proxies.addresses());
            for (flag, value) in [
                ("--first", first),
                ("--count", next - first),
                ("--tunnels", config.tunnels),
            ] {
                command.args([flag, &value.to_string()]);
            }
            if config.site < config.agents {
                command.args(["--site", &config.site.to_string()]);
            }
            processes.push(Agents::start(&mut command)?);
        }
        processes.iter().try_for_each(Agents::wait_ready)?;
        Ok(Self {
            processes,
            tunnels: config.all_tunnels() as usize,
        })
    }

    /// Starts one more agent, which will have one tunnel, to `proxy`.
    pub(crate) fn start_one(
        number: u32,
        proxy: SocketAddr,
        folder: &Folder,
        programs: &Programs,
    ) -> Result<Self> {
        let mut command = agents(folder, programs, &[proxy]);
        let number = number.to_string();
        command.args(["--first", &number, "--count", "1", "--tunnels", "1"]);
        let agent = Agents::start(&mut command)?;
        agent.wait_ready()?;
        Ok(Self {
            processes: vec![agent],
            tunnels: 1,
        })
    }

    /// Lets the agents dial.
    pub(crate) fn dial(&mut self) -> Result<()> {
        self.ask("go").map(drop)
    }

    pub(crate) fn counts(&mut self) -> Result<Counts> {
        self.ask("report")
    }

    fn ask(&mut self, what: &str) -> Result<Counts> {
        for process in &mut self.processes {
            process.0.send(what).context("ask the agents")?;
        }
        let mut all = Counts::default();
        for process in &self.processes {
            let counts: Counts = serde_json::from_str(&process.line()?)?;
            all.up += counts.up;
            all.back.extend(counts.back);
            for (failure, count) in counts.failed {
                *all.failed.entry(failure).or_default() += count;
            }
        }
        Ok(all)
    }

    /// Waits until each tunnel came up once more since the last question. `started` is when the
    /// reason for that was.
    pub(crate) fn wait_all_up(
        &mut self,
        what: &str,
        started: Instant,
        patience: Duration,
        failed_before: &BTreeMap<String, u64>,
    ) -> Result<Arrival> {
        let mut back = Vec::new();
        let mut said = Instant::now();
        loop {
            interrupt::check()?;
            let counts = self.counts()?;
            back.extend(counts.back);
            let up = counts.up.min(back.len());
            if up >= self.tunnels {
                back.sort_unstable();
                return Ok(Arrival {
                    time: started.elapsed(),
                    back,
                    failed: difference(&counts.failed, failed_before),
                });
            }
            let waited = started.elapsed();
            let all = self.tunnels;
            if waited >= patience {
                bail!(
                    "{what}: {up} of {all} tunnels after {waited:?}: {:?}",
                    counts.failed
                );
            }
            if said.elapsed() >= PROGRESS_EVERY {
                said = Instant::now();
                progress::say(&format!(
                    "    {} s: {up} of {all} tunnels",
                    waited.as_secs()
                ));
            }
            wait::pause();
        }
    }

    /// Resident memory of all processes.
    pub(crate) fn resident(&self) -> Result<u64> {
        self.processes.iter().map(Agents::resident).sum()
    }
}

/// The command line of a process with agents of these proxies.
fn agents(folder: &Folder, programs: &Programs, proxies: &[SocketAddr]) -> Command {
    let mut command = bound(&programs.worker());
    command.arg("agents").arg("--authority").arg(folder.path());
    for proxy in proxies {
        command.args(["--proxy", &proxy.to_string()]);
    }
    command
}

fn difference(
    now: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let mut difference = BTreeMap::new();
    for (name, count) in now {
        let more = count - before.get(name).unwrap_or(&0);
        if more > 0 {
            difference.insert(name.clone(), more);
        }
    }
    difference
}

/// A process with agents. Dropping it ends it.
struct Agents(LineProcess);

impl Agents {
    fn start(command: &mut Command) -> Result<Self> {
        LineProcess::start(command).map(Self)
    }

    fn wait_ready(&self) -> Result<()> {
        let line = self.line()?;
        ensure!(line == "ready", "the agents said {line:?}");
        Ok(())
    }

    fn line(&self) -> Result<String> {
        self.0
            .line(ANSWER_TIME)
            .context("the agents did not answer")
    }

    fn resident(&self) -> Result<u64> {
        let path = format!("/proc/{}/statm", self.0.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let pages: u64 = text
            .split_whitespace()
            .nth(1)
            .context("no resident pages")?
            .parse()?;
        Ok(pages * 4096)
    }
}
