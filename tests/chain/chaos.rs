//! Chaos: whatever program is killed, no client reaches a wrong node or waits for ever, and
//! everything recovers soon afterwards.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Report};
use culvert_lab::random::Random;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{progress, workspace};

use crate::swarm::{self, Load, Steered};
use crate::world::{self, HeldClient, World};

/// How long every request must succeed after the last restart.
const CALM: Duration = Duration::from_secs(2);
/// A storm and the calm after it take about 24 seconds.
const STORMS: u32 = 4;
/// Storms of the long form: some 20 minutes.
const LONG_STORMS: u32 = 55;
/// Kills in a storm.
const KILLS: u32 = 6;
/// Longest time that a killed program is away, and longest time between a restart and the next
/// kill.
const AWAY_MS: u64 = 1500;
const PAUSE_MS: u64 = 2500;

/// Agents in the order of their starts.
const EDGES: [Host; 3] = Host::EDGES;

/// The program that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Proxy,
    Redirector,
    Agent(usize),
}

/// The proxy is listed twice, because everything passes through it.
const VICTIMS: [Victim; 6] = [
    Victim::Proxy,
    Victim::Proxy,
    Victim::Redirector,
    Victim::Agent(0),
    Victim::Agent(1),
    Victim::Agent(2),
];

#[test]
fn whatever_is_killed_nobody_is_misled_or_hangs_and_all_is_well_soon_after() {
    world::with(&EDGES, Options::default(), |world| {
        let mut random = swarm::chance()?;
        let mut loads = loads(world, &mut random)?;
        let storms = if swarm::is_long() {
            LONG_STORMS
        } else {
            STORMS
        };
        for number in 1..=storms {
            let held = EDGES
                .into_iter()
                .map(|node| swarm::held_by_both(world, node));
            let mut held = held.collect::<Result<Vec<_>>>()?;
            storm(world, &mut random)?;
            calm(&mut loads, number, storms)?;
            held.as_flattened_mut().iter_mut().try_for_each(not_hung)?;
        }
        drop(loads);
        uninstalled(world)
    });
}

fn loads(world: &World<'_>, random: &mut Random) -> Result<[Load; 2]> {
    let mut by_packets = swarm::by_address(world, &EDGES)?;
    // Two nodes have this address, so no node may answer, even if only one is up.
    by_packets.push(format!("{}=nobody", Host::Edge2.address()));
    let mut by_hooks = by_packets.clone();
    by_hooks.extend(EDGES.map(|host| format!("{0}={0}", host.name())));
    by_hooks.extend(swarm::by_connect(
        &world.culvert.socket("connect.sock"),
        &EDGES,
    ));
    Ok([
        Load::start(world, Steered::ByHooks, random.number(), by_hooks)?,
        Load::start(world, Steered::ByPackets, random.number(), by_packets)?,
    ])
}

/// Fails if a connection from before a storm hangs: it must work or have failed.
fn not_hung(held: &mut HeldClient) -> Result<()> {
    held.ask()?;
    let said = held
        .report(PATIENCE)
        .context("a connection from before the storm hangs")?;
    ensure!(
        !matches!(&said, Report::Broken { first, .. } if first.cause == Cause::TimedOut),
        "a connection from before the storm: {said:?}"
    );
    Ok(())
}

/// Kills one or two programs, starts them again after a pause, and repeats this.
fn storm(world: &mut World<'_>, random: &mut Random) -> Result<()> {
    for _ in 0..KILLS {
        let mut victims = vec![*random.one_of(&VICTIMS)];
        let second = *random.one_of(&VICTIMS);
        if random.below(3) == 0 && !victims.contains(&second) {
            victims.push(second);
        }
        for victim in &victims {
            victim
                .kill(world)
                .with_context(|| format!("{victim:?} did not live until it was killed"))?;
        }
        let away = Duration::from_millis(random.below(AWAY_MS));
        progress::say(&format!("    kill -9 {victims:?}, away for {away:?}"));
        wait::throughout("killed programs are away", away, || Ok(()))?;
        for victim in victims {
            victim.restart(world)?;
        }
        let pause = Duration::from_millis(random.below(PAUSE_MS));
        wait::throughout("restarted programs run", pause, || Ok(()))?;
    }
    // The recovery after this last restart is measured.
    let last = *random.one_of(&VICTIMS);
    last.kill(world)?;
    last.restart(world)?;
    progress::say(&format!("    last restart: {last:?}"));
    Ok(())
}

impl Victim {
    fn kill(self, world: &mut World<'_>) -> Result<()> {
        let process = match self {
            Self::Proxy => &mut world.culvert.proxy,
            Self::Redirector => &mut world.culvert.redirector,
            Self::Agent(nth) => world.culvert.agent(nth),
        };
        process.check()?;
        process.kill()
    }

    fn restart(self, world: &mut World<'_>) -> Result<()> {
        match self {
            Self::Proxy => world.culvert.restart_proxy(),
            Self::Redirector => world.culvert.restart_redirector(),
            Self::Agent(nth) => world.culvert.restart_agent(nth, EDGES[nth]),
        }
    }
}

/// Requests may fail for a short time after the last restart; then every request must be answered.
fn calm(loads: &mut [Load; 2], number: u32, storms: u32) -> Result<()> {
    for load in loads.iter_mut() {
        let storm = load.report()?;
        progress::say(&format!(
            "    storm {number} of {storms}: {} answered, {} failed, the slowest in {} ms; {}",
            storm.answered(),
            storm.failed(),
            storm.slowest_ms(),
            storm.errors()
        ));
    }
    wait::until("every request is answered", PATIENCE, || {
        for load in loads.iter_mut() {
            let recovery = load.report()?;
            if let Some(last) = recovery.last_failure() {
                progress::say(&format!("    last failure {last:?}; {}", recovery.errors()));
            }
        }
        wait::throughout("the calm lasts", CALM, || Ok(()))?;
        for load in loads.iter_mut() {
            load.report_all_answered()?;
        }
        Ok(())
    })
}

/// Uninstalls everything, and looks for remains.
fn uninstalled(world: &mut World<'_>) -> Result<()> {
    world.culvert.redirector.kill()?;
    let cloud = world.lab.site(Host::Cloud);
    let state = cloud.file("redirector");
    let uninstall = [
        workspace::binary("culvert-redirector"),
        "uninstall".into(),
        "--state-dir".into(),
        state,
    ];
    cloud.output("env", uninstall)?;
    let look = |program: &str, args: &[&str]| cloud.output(program, args);
    let cgroup = cloud.cgroup().display().to_string();
    for (what, left) in [
        // The kernel itself creates two files of this name in every bpffs.
        (
            "pins",
            look(
                "find",
                &["/sys/fs/bpf", "-mindepth", "1", "-not", "-name", "*.debug"],
            )?,
        ),
        (
            "routes",
            look("ip", &["route", "show", "table", "all", "proto", "77"])?,
        ),
        (
            "IPv6 routes",
            look(
                "ip",
                &["-6", "route", "show", "table", "all", "proto", "77"],
            )?,
        ),
        ("tables", look("nft", &["list", "tables"])?),
    ] {
        ensure!(left.trim().is_empty(), "{what} that are left: {left}");
    }
    let programs = look("bpftool", &["cgroup", "show", &cgroup])?;
    ensure!(
        !programs.contains("cgroup_"),
        "programs that are left: {programs}"
    );
    Ok(())
}
