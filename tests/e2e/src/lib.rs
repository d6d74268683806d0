//! `cargo xtask e2e`: a real Kubernetes cluster with edge nodes that nothing can dial, before and
//! after Culvert.
//!
//! `cargo xtask cluster` makes the cluster, or the program that `E2E_CLUSTER` names. Everything else
//! follows docs/install-kubernetes.md, as an operator would. Each step states claims and proves
//! them; the first claim that does not hold ends the run.
#![forbid(unsafe_code)]

mod balancer;
mod before;
mod chart;
mod cluster;
mod command;
mod controllers;
mod copy;
mod coredns;
mod culvert;
mod dns;
mod egress;
mod exec;
mod follower;
mod forward;
mod healing;
mod hub;
mod images;
mod install;
mod logs;
mod lost;
mod metrics;
mod migrate;
mod monitoring;
mod names;
mod pods;
mod ports;
mod processes;
mod prometheus;
mod proxies;
mod rbac;
mod reacher;
mod replaced;
mod rolling;
mod service;
mod top;
mod uninstall;
mod variants;
mod world;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::failures::{Failure, Record, SecondLook};
use culvert_lab::kubernetes::{Programs, Release};
use culvert_lab::{interrupt, progress, silence, workspace};

use cluster::{AtEnd, Cluster, Maker};
use world::{Cuts, World};

/// A run that prints nothing for this long is stopped. One claim may wait for three rollouts.
const SILENCE: Duration = Duration::from_mins(15);

/// The same with `--long`.
const LONG_SILENCE: Duration = Duration::from_mins(25);

/// What of it is run, and how it ends.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Leave the cluster up at the end
    #[arg(long)]
    keep: bool,
    /// Run this step only, besides the installation; repeat it for more
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Run all steps; cut the hub's link for 10 minutes, and let it come and go for 5: else seconds
    #[arg(long)]
    long: bool,
    /// Write what failed, and what held at a second try only, to this file, for `cargo xtask test
    /// --report`
    #[arg(long, value_name = "FILE")]
    first_look: Option<PathBuf>,
    /// The release of Kubernetes, unless E2E_CLUSTER names a program that makes the cluster [default:
    /// the programs that KUBEBUILDER_ASSETS names, or the newest that was tried]
    #[arg(long, value_name = "VERSION")]
    kube: Option<Release>,
}

impl Args {
    /// The programs of Kubernetes that must be there, unless another program makes the cluster.
    ///
    /// # Errors
    /// There is no such program.
    pub fn programs(&self) -> Result<Option<Programs>> {
        Ok(match self.maker()? {
            Maker::Own(release) => Some(Programs::chosen(release.as_ref())),
            Maker::Other(_) => None,
        })
    }

    fn maker(&self) -> Result<Maker> {
        Maker::find(self.kube.as_ref())
    }
}

/// The name and the function of a step.
type Step = (&'static str, fn(&mut World) -> Result<()>);

/// The order matters: later steps restart and remove what earlier ones use.
const STEPS: [Step; 24] = [
    ("before", before::run),
    (INSTALL, install::run),
    ("top", top::run),
    ("logs", logs::run),
    ("exec", |world| exec::prove(world, "edge-1")),
    ("forward", |world| forward::prove(world, "edge-1")),
    ("copy", |world| copy::prove(world, "edge-1")),
    ("metrics", metrics::run),
    ("ports", ports::run),
    ("prometheus", prometheus::run),
    ("follow", logs::finish),
    ("healing", healing::run),
    ("names", names::run),
    ("hub", hub::run),
    ("proxies", proxies::run),
    ("rolling", rolling::run),
    ("service", service::run),
    (LOST, lost::run),
    ("egress", egress::run),
    ("variants", variants::run),
    ("rbac", rbac::run),
    ("uninstall", uninstall::run),
    (CHART, chart::run),
    (MIGRATE, migrate::run),
];

/// The steps that only `--long` has, unless they are wanted by name. CONTRIBUTING.md says what else
/// covers them.
const LONG_STEPS: [&str; 3] = [LOST, CHART, MIGRATE];

/// The step that every later one needs, except those of [`OTHER_WAYS`].
const INSTALL: &str = "install";
const LOST: &str = "lost";
const CHART: &str = "chart";
const MIGRATE: &str = "migrate";
/// The last steps, which install Culvert in other ways.
const OTHER_WAYS: [&str; 2] = [CHART, MIGRATE];

/// Runs the steps. `prepare` must create the images of the three programs.
///
/// # Errors
/// The first claim that does not hold.
pub fn run(args: &Args, prepare: impl FnOnce() -> Result<()>) -> Result<()> {
    interrupt::install()?;
    silence::stop_after(if args.long { LONG_SILENCE } else { SILENCE });
    let record = args.first_look.as_deref();
    let mut run = Run {
        args,
        record: record.map(Record::create).transpose()?,
        repeat: "cargo xtask e2e".to_owned(),
    };
    let ran = run.steps(prepare);
    match &ran {
        // The user ends this program, and knows why.
        Err(error) if !interrupt::is_signalled() => run.record_failure(error)?,
        _ => {}
    }
    ran
}

/// One run of the steps.
struct Run<'a> {
    args: &'a Args,
    record: Option<Record>,
    /// The command that runs again what failed.
    repeat: String,
}

impl Run<'_> {
    fn steps(&mut self, prepare: impl FnOnce() -> Result<()>) -> Result<()> {
        let maker = self.args.maker()?;
        ensure!(
            workspace::is_root(),
            "the cluster's hosts are namespaces of this machine: run this as root"
        );
        let steps = chosen(&self.args.only, self.args.long)?;
        prepare()?;
        let folder = workspace::target_dir().join("e2e");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("remove {}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let started = Instant::now();
        let flags = [
            rbac::audit_flags(&folder)?,
            top::aggregation_flags(&folder)?,
        ]
        .concat();
        let at_end = if self.args.keep {
            AtEnd::Keep
        } else {
            AtEnd::TakeDown
        };
        let cluster = Cluster::up(maker, &flags, at_end)?;
        let record = self.args.first_look.as_deref().map(Record::at);
        let cuts = if self.args.long {
            Cuts::Long
        } else {
            Cuts::Short
        };
        let mut world = World::new(cluster, folder, flags, cuts, record);
        let shown = show(&mut world, &steps);
        if shown.is_err() && interrupt::check().is_ok() {
            world.show_state();
        }
        self.repeat = world.repeat();
        let claims = world.claims;
        let flaky = std::mem::take(&mut world.flaky);
        drop(world);
        shown?;
        for failure in &flaky {
            progress::say(&format!("FLAKY {}: {}", failure.title(), failure.output));
        }
        progress::say(&format!(
            "{claims} claims hold, {} of them at a second try only; it took {} s",
            flaky.len(),
            started.elapsed().as_secs()
        ));
        Ok(())
    }

    fn record_failure(&self, error: &anyhow::Error) -> Result<()> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        record.add(&Failure {
            kernel: None,
            suite: world::SUITE.to_owned(),
            test: None,
            output: format!("{error:#}"),
            second: SecondLook::Never("its first failure ends it".to_owned()),
            repeat: self.repeat.clone(),
        })
    }
}

fn show(world: &mut World, steps: &[Step]) -> Result<()> {
    pods::start(world).context("start the pods that are to be reached")?;
    world.upstream = Some(coredns::start(world).context("start the cluster's DNS")?);
    for (name, step) in steps {
        world.step = Some(name);
        let started = progress::Step::start(*name);
        step(world).with_context(|| format!("step {name}"))?;
        started.done();
    }
    Ok(())
}

/// The steps to run.
fn chosen(only: &[String], long: bool) -> Result<Vec<Step>> {
    let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!(
            "there is no step {unknown:?}; these are: {}",
            names.join(", ")
        );
    }

    let needed = needed_by(only);
    let mut steps = Vec::from(STEPS);
    if only.is_empty() {
        steps.retain(|(name, _)| long || !LONG_STEPS.contains(name));
    } else {
        steps.retain(|(name, _)| needed.contains(name) || only.iter().any(|it| it == name));
    }
    Ok(steps)
}

/// The steps that these need before them, or between them.
fn needed_by(only: &[String]) -> &'static [&'static str] {
    if only.iter().any(|name| name == "rbac") {
        // The RBAC step compares requests that these steps cause.
        &[INSTALL, "healing", "egress"]
    } else if only.iter().all(|step| is_in_other_way(step)) {
        &[]
    } else if only.iter().any(|step| is_in_other_way(step)) {
        &[INSTALL, "uninstall"]
    } else {
        &[INSTALL]
    }
}

fn is_in_other_way(step: &str) -> bool {
    OTHER_WAYS.contains(&step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_step_comes_with_the_installation() {
        let names: Vec<&str> = chosen(&["copy".to_owned()], false)
            .unwrap()
            .iter()
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(names, [INSTALL, "copy"]);
        assert_eq!(chosen(&[], true).unwrap().len(), STEPS.len());
        let short = STEPS.len() - LONG_STEPS.len();
        assert_eq!(chosen(&[], false).unwrap().len(), short);
        let names = |only: &[&str]| -> Vec<&str> {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            let steps = chosen(&only, false).unwrap();
            steps.iter().map(|(name, _)| *name).collect()
        };
        assert_eq!(names(&[MIGRATE]), [MIGRATE]);
        assert_eq!(names(&OTHER_WAYS), OTHER_WAYS);
        assert_eq!(
            names(&[MIGRATE, "logs"]),
            [INSTALL, "logs", "uninstall", MIGRATE]
        );
        assert!(
            chosen(&["coyp".to_owned()], false)
                .unwrap_err()
                .to_string()
                .contains("rolling")
        );
    }
}
