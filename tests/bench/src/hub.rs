//! `cargo xtask bench hub`: compares the hub with direct access to an API server. Every round does
//! the same work by each way, one after the other. Where `YURTHUB` names that program, it is
//! one of the ways. The result is the median of the rounds. No test
//! depends on these times.

mod cluster;
mod culvert;
mod measurement;
mod report;
mod rows;
mod sandbox;
mod subject;

mod yurthub;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::kubernetes::Programs;
use culvert_lab::{interrupt, progress, workspace};

use crate::load::Load;
use cluster::Cluster;
use measurement::Measurement;
use report::Report;
use sandbox::Sandbox;
use subject::Subject;

/// What to measure, and how long.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One short round, to see that everything works; its numbers say little
    #[arg(long)]
    quick: bool,
    /// Rounds; the median counts
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    rounds: u32,
    /// Also write the rows here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the names of all rows, and measure nothing
    #[arg(long)]
    pub(super) list: bool,
    /// Measure programs built without optimisation, which only tells whether the bench works
    #[arg(long)]
    dev: bool,
}

/// Measures, prints the table and writes the JSON.
///
/// # Errors
/// Something cannot be built or started. If a way failed, the error comes after everything else has
/// been measured.
pub(super) fn run(args: &Args) -> Result<()> {
    if args.list {
        for row in rows::ALL {
            println!("{:<28} {:<10} {}", row.name, row.unit, row.better.label());
        }
        return Ok(());
    }
    interrupt::install()?;
    ensure!(
        workspace::is_root(),
        "the bench makes a network namespace and mounts a disk of its own: run it as root"
    );
    let programs = super::build(&["culvert-hub", "culvert-bench"], args.dev)?;
    let started = Instant::now();
    let report = measure(args, &programs)?;
    println!("\n{}", report.table());
    println!("measured in {} s", started.elapsed().as_secs());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report.json())?;
        std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    match report.failures() {
        [] => Ok(()),
        failures => bail!("not measured:\n{}", failures.join("\n")),
    }
}

/// Measures each way once in each round.
fn measure(args: &Args, programs: &Path) -> Result<Report> {
    let assets = Programs::chosen(None).folder();
    let sandbox = Sandbox::enter()?;
    let mut load =
        Load::start(std::process::Command::new(programs.join("culvert-bench")).arg("api-load"))?;
    let cluster = Cluster::start(&assets, programs, &sandbox, &mut load)?;
    let mut subjects = Subject::ALL.to_vec();
    if yurthub::program().is_some() {
        cluster.allow_everything()?;
    } else {
        subjects.retain(|subject| *subject != Subject::YurtHub);
    }
    let mut report = Report::default();
    let rounds = if args.quick { 1 } else { args.rounds };
    for round in 1..=rounds {
        progress::say(&format!("==> round {round} of {rounds}"));
        for subject in subjects.iter().copied() {
            interrupt::check()?;
            progress::say(&format!("    {}", subject.name()));
            let measurement = Measurement {
                subject,
                programs,
                sandbox: &sandbox,
                cluster: &cluster,
                load: &mut load,
                report: &mut report,
                quick: args.quick,
            };
            let measured = measurement.measure();
            // The next way must not meet what this one left.
            load.run("release")?;
            load.run("heal")?;
            if let Err(error) = measured {
                progress::say(&format!("      failed: {error:#}"));
                report.fail(subject, &error);
            }
        }
    }
    Ok(report)
}
