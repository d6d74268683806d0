//! Tests of upgrades: a redirector is replaced under load without any effect on clients; a proxy
//! cuts the streams that outlast its grace period.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Report};
use culvert_lab::progress;
use culvert_lab::wait::{self, PATIENCE};
use nix::sys::signal::Signal;

use crate::swarm::{self, Load, Steered};
use crate::world::{self, HeldClient, World};

const EDGE: &[Host] = &[Host::Edge1];

/// Short, to keep the test short.
const GRACE: Duration = Duration::from_secs(3);

#[test]
fn a_redirector_replaced_under_load_loses_no_connection_and_misses_none() {
    world::with(&Host::EDGES, Options::default(), |world| {
        let seed = swarm::chance()?.number();
        let addresses = swarm::by_address(world, &Host::EDGES)?;
        let mut held = swarm::held_by_both(world, Host::Edge1)?;
        let mut loads = Load::by_both(world, seed, addresses)?;
        for end in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGTERM] {
            let programs = programs(world)?;
            world.culvert.redirector.signal(end)?;
            wait::until("the redirector has ended", PATIENCE, || {
                match world.culvert.redirector.check() {
                    Ok(()) => bail!("it runs on"),
                    Err(_) => Ok(()),
                }
            })?;
            wait::throughout("there is none", Duration::from_millis(500), || Ok(()))?;
            world.culvert.restart_redirector()?;
            world.culvert.wait_for_redirector()?;
            ensure!(
                self::programs(world)? != programs,
                "the kernel runs the programs of the one before"
            );
            for load in &mut loads {
                let report = load
                    .report_all_answered()
                    .with_context(|| format!("{end} of the redirector"))?;
                progress::say(&format!(
                    "    {end}: {} requests answered, the slowest in {} ms",
                    report.answered(),
                    report.slowest_ms()
                ));
            }
            held.iter_mut().try_for_each(HeldClient::check)?;
        }
        Ok(())
    });
}

/// The ids of the kernel programs that are attached now.
fn programs(world: &World<'_>) -> Result<String> {
    let cloud = world.lab.site(Host::Cloud);
    cloud.output(
        "bpftool",
        ["cgroup", "show", &cloud.cgroup().display().to_string()],
    )
}

fn wait_ended(world: &mut World<'_>) -> Result<()> {
    wait::until("the proxy has ended", PATIENCE, || {
        match world.culvert.proxy.check() {
            Ok(()) => bail!("it runs on"),
            Err(ended) if ended.to_string().contains("exit status: 0") => Ok(()),
            Err(ended) => Err(ended),
        }
    })
}

#[test]
fn a_stream_that_outlasts_the_grace_period_is_reset_and_does_not_look_ended() {
    let options = world::proxy_options(["--grace", &format!("{}s", GRACE.as_secs())]);
    world::with(EDGE, options, |world| {
        world.wait_greeting("10.0.3.7", PATIENCE)?;
        let mut held = swarm::held(world, Steered::ByHooks, Host::Edge1)?;
        let told = Instant::now();
        world.culvert.proxy.signal(Signal::SIGTERM)?;
        wait_ended(world)?;
        ensure!(
            told.elapsed() >= GRACE,
            "it ended after {:?}",
            told.elapsed()
        );
        held.ask()?;
        let broken = held.report(PATIENCE)?;
        ensure!(
            matches!(&broken, Report::Broken { count: 20, first } if first.cause == Cause::Reset),
            "{broken:?}"
        );
        let told = world.culvert.proxy.logged("stream ended", &[]).len();
        ensure!(told >= 20, "the log tells the end of {told} streams");
        Ok(())
    });
}
