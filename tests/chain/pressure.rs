//! Pressure: more of everything than should ever occur, peers that stop, and clocks that jump.

mod agents;
mod budget;
mod clock;
mod descriptors;
mod ends;
mod queues;
mod stopped;
mod streams;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::PROXY_ADMIN;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, progress, wait, workspace};

/// The port of a test's own backend.
const OWN: u16 = 9050;

/// Interval between progress reports of a long wait.
const REPORT: Duration = Duration::from_secs(5);

/// Starts a load (`examples/load`) on a host and waits until it is ready.
fn start_load(lab: &Lab, host: Host, name: &str, args: &[&str]) -> Result<Process> {
    let program = workspace::example("load");
    ensure!(
        program.exists(),
        "{} is missing: `cargo build --workspace --examples` makes it",
        program.display()
    );
    let site = lab.site(host);
    start_ready(lab, host, name, site.command(program).args(args))
}

/// Starts a program that prints `ready`.
fn start_ready(
    lab: &Lab,
    host: Host,
    name: &str,
    command: &mut std::process::Command,
) -> Result<Process> {
    let mut process = lab.site(host).start_process(name, command)?;
    wait::until(&format!("{name} is ready"), Duration::from_secs(30), || {
        process.check()?;
        process
            .log()
            .lines()
            .any(|line| line == "ready")
            .then_some(())
            .context("not yet")
    })?;
    Ok(process)
}

/// Waits until a gauge of the proxy has a value, and reports progress.
fn wait_gauge(lab: &Lab, name: &str, expected: usize, deadline: Duration) -> Result<()> {
    let started = Instant::now();
    let mut told = Instant::now();
    wait::until(&format!("{name} is {expected}"), deadline, || {
        let now = lab.site(Host::Cloud).metric(PROXY_ADMIN, name)?;
        if told.elapsed() >= REPORT {
            told = Instant::now();
            progress::say(&format!(
                "    {} s: {name} {now}",
                started.elapsed().as_secs()
            ));
        }
        ensure!(now == expected as f64, "{now}");
        Ok(())
    })
}

/// Fails if a program uses more than a tenth of one processor during this time.
fn expect_idle(
    who: &str,
    process: &Process,
    duration: Duration,
    mut look: impl FnMut() -> Result<()>,
) -> Result<()> {
    let before = process.cpu_time()?;
    wait::throughout(&format!("{who} stands still"), duration, &mut look)?;
    let used = process.cpu_time()?.saturating_sub(before);
    ensure!(
        used <= duration / 10,
        "{who} used {used:?} of processor time in {duration:?}"
    );
    Ok(())
}
