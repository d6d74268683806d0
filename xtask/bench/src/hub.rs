//! `cargo xtask bench hub`: compares the hub with direct access to an API server. Every round does
//! the same work by each way, one after the other. Where `YURTHUB` names that program, it is
//! one of the ways. The result is the median of the rounds. No test
//! depends on these times.

mod cluster;
mod culvert;
mod place;
mod report;
mod rows;
mod subject;
mod turn;
mod yurthub;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::kubernetes::Programs;
use culvert_lab::{interrupt, progress, workspace};

use crate::load::Load;
use cluster::Cluster;
use place::Place;
use report::Report;
use subject::Subject;
use turn::Turn;

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
        rows::ALL
            .iter()
            .for_each(|row| println!("{:<28} {:<10} {}", row.name, row.unit, row.better.words()));
        return Ok(());
    }
    interrupt::install()?;
    ensure!(
        workspace::is_root(),
        "the bench makes a network namespace and mounts a disk of its own: run it as root"
    );
    let assets = Programs::chosen(None).folder();
    let programs = super::build(&["culvert-hub", "culvert-bench"], args.dev)?;
    let started = Instant::now();
    let place = Place::enter()?;
    let mut load =
        Load::start(std::process::Command::new(programs.join("culvert-bench")).arg("api-load"))?;
    let cluster = Cluster::start(&assets, &place, &mut load)?;
    let is_there = |it: &Subject| *it != Subject::YurtHub || yurthub::program().is_some();
    let subjects: Vec<Subject> = Subject::ALL.into_iter().filter(is_there).collect();
    if subjects.contains(&Subject::YurtHub) {
        cluster.allow_everything()?;
    }
    let mut report = Report::default();
    let rounds = if args.quick { 1 } else { args.rounds };
    for round in 1..=rounds {
        progress::say(&format!("==> round {round} of {rounds}"));
        for subject in subjects.iter().copied() {
            interrupt::check()?;
            progress::say(&format!("    {}", subject.name()));
            let turn = Turn {
                subject,
                programs: &programs,
                place: &place,
                cluster: &cluster,
                load: &mut load,
                report: &mut report,
                quick: args.quick,
            };
            let taken = turn.take();
            // The next way must not meet what this one left.
            load.run("release")?;
            load.run("heal")?;
            if let Err(error) = taken {
                progress::say(&format!("      failed: {error:#}"));
                report.fail(subject, &error);
            }
        }
    }
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
