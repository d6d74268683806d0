//! What is measured, in order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_lab::process::{KernelResources, bound};
use culvert_lab::progress::Step;
use culvert_lab::{interrupt, progress, wait, workspace};

use crate::config::Config;
use crate::folder::Folder;
use crate::network::Wire;
use crate::node_name;
use crate::programs::Programs;
use crate::proxies::{Proxies, ensure_released};
use crate::report::{Report, Restart, Steady};
use crate::swarm::{Arrival, Swarm};
use crate::watchers::Watchers;

/// For all tunnels to come up: far more than the aim, so that a miss has a number.
const PATIENCE: Duration = Duration::from_secs(600);
/// For the proxies to notice that all agents are gone.
const GONE_TIME: Duration = Duration::from_secs(60);
/// Changes of the directory, and tunnels that come up; the slowest counts.
const CHANGES: u32 = 5;

/// Measures all of it. Everything that it starts ends with it.
pub(crate) fn all(config: &Config, programs: &Programs) -> Result<Report> {
    let folder = Folder::make()?;
    make_authority(&folder, programs)?;
    let step = Step::start(format!(
        "start {} proxies with {} nodes",
        config.proxies, config.agents
    ));
    let mut proxies = Proxies::start(config, &folder, programs)?;
    step.done();
    let measured = with_agents(config, &folder, programs, &mut proxies);
    if measured.is_err() {
        proxies.show_logs();
    }
    measured
}

fn make_authority(folder: &Folder, programs: &Programs) -> Result<()> {
    let mut command = bound(&programs.worker());
    command.arg("authority").arg(folder.path());
    workspace::output(&mut command).map(drop)
}

fn with_agents(
    config: &Config,
    folder: &Folder,
    programs: &Programs,
    proxies: &mut Proxies<'_>,
) -> Result<Report> {
    let empty = proxies.usage()?;
    let resources = proxies.resources()?;
    let step = Step::start(format!("make {} agents' certificates", config.agents));
    let mut swarm = Swarm::start(config, folder, programs, proxies)?;
    let agents_empty = swarm.resident()?;
    step.done();

    let step = Step::start(format!("all {} tunnels at first", config.all_tunnels()));
    let started = Instant::now();
    swarm.dial()?;
    let arrival = swarm.wait_all_up("at first", started, PATIENCE, &BTreeMap::new())?;
    step.done();
    wait_registered(config, proxies)?;

    let watchers = Watchers::start(programs, proxies)?;
    let steady = steady(config, proxies, &mut swarm, agents_empty)?;
    let changes = changes(config, proxies, &watchers)?;
    let spread = spread(config, (folder, programs), proxies, &watchers)?;
    drop(watchers);
    let before = proxies.usage()?;
    let restart = restart(config, proxies, &mut swarm)?;
    ensure_all_leave(proxies, swarm, &resources)?;
    Ok(Report {
        config: config.clone(),
        empty,
        arrival,
        steady,
        changes,
        spread,
        before,
        restart,
    })
}

/// Waits until the proxies count the same tunnels as the agents do.
fn wait_registered(config: &Config, proxies: &Proxies<'_>) -> Result<Vec<u32>> {
    wait::until("the proxies have all tunnels", GONE_TIME, || {
        let tunnels = proxies.tunnels()?;
        let all: u32 = tunnels.iter().sum();
        ensure!(all == config.all_tunnels(), "they have {tunnels:?}");
        Ok(tunnels)
    })
}

/// A time in which only pings happen.
fn steady(
    config: &Config,
    proxies: &mut Proxies<'_>,
    swarm: &mut Swarm,
    agents_empty: u64,
) -> Result<Steady> {
    let step = Step::start(format!(
        "nothing but pings for {} s",
        config.steady.as_secs()
    ));
    let tunnels = wait_registered(config, proxies)?;
    let lost_before = swarm.counts()?.back.len();
    let began = Instant::now();
    let usage = proxies.usage()?;
    let wire = Wire::now()?;
    wait::throughout("nothing but pings", config.steady, || proxies.check())?;
    let time = began.elapsed();
    let after = proxies.usage()?;
    let wire = Wire::now()?.since(wire);
    let counts = swarm.counts()?;
    ensure!(
        lost_before == 0 && counts.back.is_empty(),
        "{} tunnels were set up again while nothing happened",
        lost_before + counts.back.len()
    );
    let processor = after
        .iter()
        .zip(&usage)
        .map(|(after, before)| after.processor.saturating_sub(before.processor))
        .collect();
    step.done();
    Ok(Steady {
        time,
        processor,
        tunnels,
        usage: after,
        wire,
        agents: swarm.resident()?.saturating_sub(agents_empty),
    })
}

/// How long each change of the directory file takes until all watchers have seen it.
fn changes(
    config: &Config,
    proxies: &mut Proxies<'_>,
    watchers: &Watchers,
) -> Result<Vec<Duration>> {
    let step = Step::start(format!("{CHANGES} changes of the directory file"));
    let mut times = Vec::new();
    for number in 0..CHANGES {
        interrupt::check()?;
        let name = node_name(config.agents + number);
        let changed = Instant::now();
        proxies.add_node(&name)?;
        let [_, seen] = watchers.wait(&name)?;
        times.push(seen.saturating_duration_since(changed));
    }
    step.done();
    Ok(times)
}

/// How long each of the added nodes is online at the proxy where its only tunnel ends before it is
/// at all others.
fn spread(
    config: &Config,
    (folder, programs): (&Folder, &Programs),
    proxies: &Proxies<'_>,
    watchers: &Watchers,
) -> Result<Vec<Duration>> {
    let step = Step::start(format!("{CHANGES} nodes come online"));
    let mut times = Vec::new();
    for (number, proxy) in (config.agents..).zip(proxies.addresses().into_iter().cycle()) {
        if times.len() == CHANGES as usize {
            break;
        }
        interrupt::check()?;
        let mut agent = Swarm::start_one(number, proxy, folder, programs)?;
        agent.dial()?;
        let [first, last] = watchers.wait(&format!("{} online", node_name(number)))?;
        times.push(last.saturating_duration_since(first));
    }
    step.done();
    Ok(times)
}

/// All proxies are killed at once and start again.
fn restart(config: &Config, proxies: &mut Proxies<'_>, swarm: &mut Swarm) -> Result<Restart> {
    let step = Step::start("all proxies are killed and start again");
    let before = swarm.counts()?;
    let started = Instant::now();
    proxies.kill_and_restart()?;
    let ready = started.elapsed();
    progress::say(&format!("    ready after {:.1} s", ready.as_secs_f32()));
    let arrival = swarm.wait_all_up("back again", started, PATIENCE, &before.failed)?;
    wait_registered(config, proxies)?;
    step.done();
    Ok(Restart {
        ready,
        arrival,
        usage: proxies.usage()?,
        busy: proxies.outcomes("busy")?,
        evicted: proxies.outcomes("evicted")?,
        handshakes_failed: proxies.outcomes("handshake_failed")?,
    })
}

/// The agents end. Nothing of their tunnels may be left at the proxies.
fn ensure_all_leave(
    proxies: &mut Proxies<'_>,
    swarm: Swarm,
    before: &[KernelResources],
) -> Result<()> {
    let step = Step::start("all agents end");
    drop(swarm);
    wait::until("the proxies have no tunnels", GONE_TIME, || {
        let tunnels = proxies.tunnels()?;
        ensure!(
            tunnels.iter().all(|count| *count == 0),
            "they have {tunnels:?}"
        );
        ensure_released(before, &proxies.resources()?)
    })
    .context("after all agents ended")?;
    step.done();
    Ok(())
}

impl Arrival {
    /// The time in which that part of the tunnels was back, each counted from its loss.
    pub(crate) fn within(&self, part: f64) -> Duration {
        let last = self.back.len().saturating_sub(1);
        let index = (last as f64 * part).round() as usize;
        Duration::from_millis(self.back.get(index).copied().unwrap_or_default())
    }
}
