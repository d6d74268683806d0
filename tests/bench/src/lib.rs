//! `cargo xtask bench`: compares Culvert with direct TCP, with a plain relay of two hops, and with
//! a relay of two hops with TLS between them. Every round measures each row on all paths in turn,
//! so that a slow moment of the machine affects all paths. The result is the median of the rounds.
//! No test depends on these times.
#![forbid(unsafe_code)]

mod culvert;
mod far;
mod fleet;
mod hub;
pub mod line;
mod load;
mod others;
mod plan;
mod redirector;
mod report;
mod run;
mod starter;
mod world;

use std::path::{Path as FilePath, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::{Lab, LabName, interrupt, progress, workspace};

use load::Figures;
use plan::{Job, Pace, Path};
use report::Report;
use world::World;

/// What to measure, and how long.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    /// Measure only the row of this name, or all rows whose names contain it if none is called so;
    /// repeat it for more. `far`: those over links of packets, which are not measured otherwise
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
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
    list: bool,
    /// TCP congestion control of the machines, which is `cubic` on most and `bbr` on some servers
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: String,
    /// Tunnels of the agent over links of packets
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    tunnels: u8,
    /// Measure the programs of this folder, such as those of another commit, and build nothing
    #[arg(long, value_name = "DIR", conflicts_with = "dev")]
    programs: Option<PathBuf>,
    /// Also measure the proxy and agent of this folder, such as those of another commit, on a path of
    /// their own, in the same rounds. With six rounds or more, the ratio has an interval
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// Measure programs built without optimisation, which only tells whether the bench works
    #[arg(long)]
    dev: bool,
}

/// A bench of its own.
#[derive(clap::Subcommand)]
enum Part {
    /// Measure the hub beside direct access to an API server (root)
    Hub(hub::Args),
}

impl Args {
    /// Whether an API server is started.
    pub fn starts_api_server(&self) -> bool {
        matches!(&self.part, Some(Part::Hub(args)) if !args.list)
    }
}

/// Measures, prints the table and writes the JSON. `prepare` makes what compiling the programs
/// needs.
///
/// # Errors
/// Something cannot be built or started. If a path failed, the error comes after everything else
/// has been measured.
pub fn run(args: &Args, prepare: impl FnOnce() -> Result<()>) -> Result<()> {
    if let Some(Part::Hub(args)) = &args.part {
        return hub::run(args);
    }
    let jobs = plan::chosen(&args.only);
    if args.list {
        let listed = if args.only.is_empty() {
            plan::all()
        } else {
            jobs
        };
        for row in listed.iter().flat_map(Job::rows) {
            println!("{:<32} {}", row.name, row.unit);
        }
        return Ok(());
    }
    ensure!(
        !jobs.is_empty(),
        "no row is named so; `cargo xtask bench --list` names all of them"
    );
    interrupt::install()?;
    ensure!(
        workspace::is_root(),
        "the bench makes network namespaces and loads eBPF programs: run it as root"
    );
    let against = match &args.against {
        Some(folder) => Some(existing(folder)?),
        None => None,
    };
    let programs = if let Some(folder) = &args.programs {
        existing(folder)?
    } else {
        prepare()?;
        let programs = [
            "culvert",
            "culvert-proxy",
            "culvert-agent",
            "culvert-redirector",
            "culvert-bench",
        ];
        build(&programs, args.dev)?
    };
    let started = Instant::now();
    let report = measure(&programs, against.as_deref(), &jobs, args)?;
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

/// A folder that is there, as an absolute path.
fn existing(folder: &FilePath) -> Result<PathBuf> {
    folder
        .canonicalize()
        .with_context(|| format!("read {}", folder.display()))
}

fn measure(
    programs: &FilePath,
    against: Option<&FilePath>,
    jobs: &[Job],
    args: &Args,
) -> Result<Report> {
    let pace = if args.quick { Pace::Quick } else { Pace::Full };
    let rounds = if args.quick { 1 } else { args.rounds };
    let mut others = others::paths();
    if against.is_some() {
        others.push(Path::ConnectAgainst);
    }
    let mut report = Report::new(jobs);
    for number in 1..=rounds {
        progress::say(&format!("==> round {number} of {rounds}"));
        let round = Round {
            number,
            programs,
            against,
            jobs,
            others: &others,
            args,
            pace,
        };
        round.run(&mut report)?;
    }
    Ok(report)
}

/// What one round measures, and with what.
struct Round<'a> {
    /// From 1.
    number: u32,
    /// The folder of the programs.
    programs: &'a FilePath,
    /// That of other ones of Culvert.
    against: Option<&'a FilePath>,
    jobs: &'a [Job],
    others: &'a [Path],
    args: &'a Args,
    pace: Pace,
}

impl Round<'_> {
    fn run(&self, report: &mut Report) -> Result<()> {
        let lab = Lab::start(LabName::bench())?;
        self.near(&lab, report)?;
        for link in plan::far::Link::ALL {
            self.over(link, &lab, report)?;
        }
        self.over_many_links(&lab, report)
    }

    fn near(&self, lab: &Lab, report: &mut Report) -> Result<()> {
        let mut jobs: Vec<&Job> = self.jobs.iter().collect();
        jobs.retain(|job| job.packets().is_none() && !job.is_of_fleet());
        if jobs.is_empty() {
            return Ok(());
        }
        let congestion = &self.args.congestion;
        // Programs keep memory after they moved bytes, so each round starts new ones.
        let mut world = World::start(lab, self.programs, self.against, congestion, self.jobs)?;
        self.measure_each(&jobs, report, |job, path| {
            world.check()?;
            Ok(run::run(&mut world, job, path, self.pace))
        })
    }

    fn over(&self, link: plan::far::Link, lab: &Lab, report: &mut Report) -> Result<()> {
        let mut jobs: Vec<&Job> = self.jobs.iter().collect();
        jobs.retain(|job| job.packets() == Some(link));
        if jobs.is_empty() {
            return Ok(());
        }
        let settings = far::Settings {
            link,
            congestion: &self.args.congestion,
            tunnels: self.args.tunnels,
            against: self.against,
            seed: self.number,
        };
        let mut world = far::World::start(lab, self.programs, &settings)?;
        self.measure_each(&jobs, report, |job, path| {
            world.check()?;
            Ok(world.run(job, path, self.pace))
        })
    }

    fn over_many_links(&self, lab: &Lab, report: &mut Report) -> Result<()> {
        let mut jobs: Vec<&Job> = self.jobs.iter().collect();
        jobs.retain(|job| job.is_of_fleet());
        if jobs.is_empty() {
            return Ok(());
        }
        let congestion = &self.args.congestion;
        let mut fleet = fleet::Fleet::start(lab, self.programs, congestion, self.number)?;
        self.measure_each(&jobs, report, |_, path| {
            fleet.check()?;
            Ok(fleet.scrape_all(path, self.pace))
        })
    }

    /// Runs the jobs on all their paths. `run` fails only if none can be run any more.
    fn measure_each(
        &self,
        jobs: &[&Job],
        report: &mut Report,
        mut run: impl FnMut(&Job, Path) -> Result<Result<Figures>>,
    ) -> Result<()> {
        for job in jobs {
            let mut paths = job.paths(self.others);
            // What comes second may find a warmer or a slower machine.
            if self.number.is_multiple_of(2) {
                paths.reverse();
            }
            for path in paths {
                interrupt::check()?;
                let found = run(job, path)?;
                progress::say(&format!(
                    "    {:<28} {:<15} {}",
                    job.name(),
                    path.name(),
                    report::found(&found)
                ));
                report.add(job, path, found);
            }
        }
        Ok(())
    }
}

/// Builds the measured programs and the measuring ones; returns their folder.
fn build(packages: &[&str], dev: bool) -> Result<PathBuf> {
    let mut command = workspace::cargo();
    command.args(["build", "--bins", "--features", "culvert-bench/worker"]);
    for package in packages {
        command.args(["--package", package]);
    }
    let profile = if dev {
        "debug"
    } else {
        command.arg("--release");
        "release"
    };
    progress::run(&format!("build the programs ({profile})"), &mut command)?;
    Ok(workspace::target_dir().join(profile))
}
