//! Tests of upgrades: a redirector is replaced under load without any effect on clients; a proxy
//! lets its streams end first.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Phase, Report};
use culvert_lab::{progress, wait, workspace};
use nix::sys::signal::Signal;

use crate::swarm::{self, Load, Steered};
use crate::world::{self, GREET, HeldClient, SMALL, SMALL_SOURCE, World};

const EDGE: &[Host] = &[Host::Edge1];

/// Agents find the next proxy soon after the last one has ended.
const RECOVERY: Duration = Duration::from_secs(3);

/// Long enough for two busy cores.
const DEADLINE: Duration = Duration::from_secs(20);

/// Downloads in progress when the proxy is told to end.
const DOWNLOADS: usize = 5;

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
            wait::until("the redirector has ended", DEADLINE, || {
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
                    "    {end}: {} requests answered",
                    report.answered()
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

#[test]
fn a_proxy_told_to_end_lets_its_streams_end_first_and_says_no_at_once_to_others() {
    world::with(EDGE, Options::default(), |world| {
        let mut held = swarm::held_by_both(world, Host::Edge1)?;
        let mut downloads = world.stall(format!("edge-1:{SMALL_SOURCE}"), DOWNLOADS)?;
        let (seed, addresses) = (swarm::chance()?.number(), swarm::by_address(world, EDGE)?);
        let mut loads = Load::by_both(world, seed, addresses)?;
        world.culvert.proxy.signal(Signal::SIGTERM)?;
        wait::until("the proxy takes no more", DEADLINE, || refused(world))?;
        world.wait_missing(Host::Cloud, PROXY_ADMIN, "listeners: the proxy drains")?;
        wait::throughout("streams go on", Duration::from_secs(2), || {
            refused(world)?;
            held.iter_mut().try_for_each(HeldClient::check)
        })?;
        world
            .culvert
            .proxy
            .check()
            .context("the proxy waits for its streams")?;
        let second = second_proxy(world)?;
        ensure!(
            second.contains("another culvert-proxy uses the state directory"),
            "a second proxy says: {second}"
        );
        held.iter_mut().try_for_each(HeldClient::check)?;
        drop(held);
        downloads.ask()?;
        downloads
            .expect(&Report::Drained(DOWNLOADS as u64 * SMALL))
            .context("downloads under way")?;
        wait_ended(world)?;
        let replaced = Instant::now();
        world.culvert.restart_proxy()?;
        world.wait_greeting("10.0.3.7", RECOVERY)?;
        progress::say(&format!(
            "    the next proxy served {:?} after its start",
            replaced.elapsed()
        ));
        for load in &mut loads {
            let refused = load.report()?;
            progress::say(&format!(
                "    {} requests failed meanwhile: {}",
                refused.failed(),
                refused.errors()
            ));
        }
        wait::throughout("the next proxy serves", Duration::from_secs(2), || Ok(()))?;
        loads
            .iter_mut()
            .try_for_each(|load| load.report_all_answered().map(drop))
    });
}

/// Proves that clients of a draining proxy get no answer that looks valid, and do not wait.
fn refused(world: &World<'_>) -> Result<()> {
    let asked = Instant::now();
    let by_address = world.failing_client(&Client::listen(format!("10.0.3.7:{GREET}")))?;
    ensure!(
        by_address.is(Phase::Connect, Cause::Refused),
        "by address: {by_address}"
    );
    let socket = world.culvert.socket("connect.sock");
    ensure!(!socket.exists(), "the CONNECT socket is still there");
    ensure!(
        asked.elapsed() < RECOVERY,
        "refused only after {:?}",
        asked.elapsed()
    );
    Ok(())
}

/// The error of a proxy that is started while another one with the same state drains.
fn second_proxy(world: &World<'_>) -> Result<String> {
    let cloud = world.lab.site(Host::Cloud);
    let mut command = cloud.command(workspace::binary("culvert-proxy"));
    let done = command
        .arg("--state-dir")
        .arg(cloud.file("proxy"))
        .args(["--admin-listen", "127.0.0.1:7408"])
        .output()?;
    ensure!(
        !done.status.success(),
        "two proxies use one state directory"
    );
    Ok(String::from_utf8_lossy(&done.stderr).into_owned())
}

fn wait_ended(world: &mut World<'_>) -> Result<()> {
    wait::until("the proxy has ended", DEADLINE, || {
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
        let broken = held.report(DEADLINE)?;
        ensure!(
            matches!(&broken, Report::Broken { count: 20, first } if first.cause == Cause::Reset),
            "{broken:?}"
        );
        let told = world.culvert.proxy.logged("stream ended", &[]).len();
        ensure!(told >= 20, "the log tells the end of {told} streams");
        Ok(())
    });
}
