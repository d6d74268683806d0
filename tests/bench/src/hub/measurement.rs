//! What is measured of one way in a round. All ways do the same work in the same order.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use culvert_lab::{interrupt, progress, wait};

use super::cluster::{Cluster, MANY_SERVICES, POD, PODS, THOUSAND};
use super::report::Report;
use super::rows;
use super::sandbox::Sandbox;
use super::subject::{Between, Prepared, Subject};
use super::{culvert, yurthub};
use crate::load::{Figures, Load};
use crate::report::short;

/// Watches on each of two lists: a node has some ten.
const WATCHES: u32 = 5;
/// Changes per second.
const RATE: u32 = 100;
/// Until a hub has written what it has read, and has given back what it needed for that.
const REST: Duration = Duration::from_secs(15);

/// How the names of rows begin and end.
#[derive(Clone, Copy)]
struct Names {
    begin: &'static str,
    end: &'static str,
}

const NEAR: Names = Names { begin: "", end: "" };
const FAR: Names = Names {
    begin: "",
    end: "_rtt20",
};
const OFFLINE: Names = Names {
    begin: "offline_",
    end: "",
};

/// Makes a program that knows nothing ready to start.
type Prepare = fn(&Path, &Sandbox, &Cluster) -> Result<Prepared>;

/// What it needs.
pub(super) struct Measurement<'a> {
    pub(super) subject: Subject,
    pub(super) programs: &'a Path,
    pub(super) sandbox: &'a Sandbox,
    pub(super) cluster: &'a Cluster,
    pub(super) load: &'a mut Load,
    pub(super) report: &'a mut Report,
    pub(super) quick: bool,
}

impl Measurement<'_> {
    /// Measures everything.
    pub(super) fn measure(mut self) -> Result<()> {
        match self.subject {
            Subject::Direct => {
                let direct = self.cluster.direct.clone();
                self.requests(&direct.near, NEAR, None)?;
                self.requests(&direct.far, FAR, None)?;
                self.updates(&direct.near, None)
            }
            Subject::DirectHttp2 => {
                let direct = self.cluster.direct_http2.clone();
                self.requests(&direct.near, NEAR, None)?;
                self.requests(&direct.far, FAR, None)
            }
            Subject::Hub => {
                self.between(culvert::prepare)?;
                let hub = self.start(culvert::prepare_far)?;
                self.requests(&hub.target(), FAR, None)
            }
            Subject::YurtHub => self.between(yurthub::prepare),
        }
    }

    fn between(&mut self, prepare: Prepare) -> Result<()> {
        let mut hub = self.start(prepare)?;
        let target = hub.target();
        self.open_watches(&target, PODS)?;
        rest()?;
        let resident = hub.process()?.resident()?;
        self.add("memory_idle", resident as f64 / 1e6)?;
        let pid = hub.process()?.pid();
        self.requests(&target, NEAR, Some(pid))?;
        self.open_watches(&target, THOUSAND)?;
        self.updates_on_disk(&target, pid)?;
        self.cut(&target)?;
        // The hub is killed, so only what it has written counts.
        self.run(&format!("sever {}", self.cluster.cut_address()?))?;
        let started = hub.crash()?;
        self.run(&format!("until-answered {} {THOUSAND}", target.display()))?;
        self.add("first_offline_answer", started.elapsed().as_secs_f64())?;
        self.run("heal")?;
        drop(hub);
        self.memory_of_many(prepare)
    }

    /// A program that knows nothing, with a link.
    fn start(&mut self, prepare: Prepare) -> Result<Between> {
        let hub = prepare(self.programs, self.sandbox, self.cluster)?.start()?;
        let target = hub.target();
        self.run(&format!("until-answered {} {PODS}", target.display()))?;
        Ok(hub)
    }

    fn memory_of_many(&mut self, prepare: Prepare) -> Result<()> {
        let mut hub = self.start(prepare)?;
        let target = hub.target();
        for path in [MANY_SERVICES, self.cluster.slices()] {
            self.run(&format!("until-answered {} {path}", target.display()))?;
            self.open_watches(&target, path)?;
        }
        rest()?;
        let resident = hub.process()?.resident()?;
        self.add("memory_10000", resident as f64 / 1e6)?;
        self.run("release").map(drop)
    }

    /// The link is cut and comes back, while watches are open.
    fn cut(&mut self, target: &Path) -> Result<()> {
        let cut = self.run(&format!(
            "cut {} {POD} {}",
            target.display(),
            self.cluster.cut_address()?
        ))?;
        self.add("cut_noticed", figure_of(&cut, "noticed_s")?)?;
        self.add("cut_longest_request", figure_of(&cut, "longest_s")?)?;
        self.add("cut_errors", figure_of(&cut, "errors")?)?;
        self.requests(target, OFFLINE, None)?;
        let back = self.run(&format!("return {}", self.cluster.writer.display()))?;
        self.add("watches_ended", figure_of(&back, "watches_ended")?)?;
        self.add("return_seen", figure_of(&back, "return_seen_s")?)?;
        self.run("release").map(drop)
    }

    /// GET and LIST.
    fn requests(&mut self, target: &Path, names: Names, pid: Option<u32>) -> Result<()> {
        let Names { begin, end } = names;
        let seconds = if self.quick { 0.5 } else { 3.0 };
        for (verb, path) in [("get", POD), ("list", PODS)] {
            for connections in [1, 32] {
                let found = self.run(&format!(
                    "requests {} {path} {connections} {seconds}{}",
                    target.display(),
                    pid_option(pid)
                ))?;
                // Not all that is found is a row.
                for (figure, kind) in [
                    ("per_second", ""),
                    ("p50_us", "p50_"),
                    ("p99_us", "p99_"),
                    ("errors", "errors_"),
                    ("cpu_per_100k", "cpu_"),
                ] {
                    let name = format!("{begin}{verb}_{kind}{connections}{end}");
                    let is_measured = kind != "cpu_" || pid.is_some();
                    if is_measured && let Some(row) = rows::find(&name) {
                        self.add(row.name, figure_of(&found, figure)?)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Changes of objects at a steady rate, beside open watches.
    fn updates(&mut self, target: &Path, pid: Option<u32>) -> Result<()> {
        let count = if self.quick { RATE } else { 10 * RATE };
        let found = self.run(&format!(
            "updates {} {} {THOUSAND} {count} {RATE}{}",
            target.display(),
            self.cluster.writer.display(),
            pid_option(pid)
        ))?;
        self.add("event_delay_p50", figure_of(&found, "p50_us")?)?;
        self.add("event_delay_p99", figure_of(&found, "p99_us")?)?;
        if pid.is_some() {
            self.add("event_cpu", figure_of(&found, "cpu_per_1000")?)?;
        }
        Ok(())
    }

    /// The same, and what comes to the disk of it.
    fn updates_on_disk(&mut self, target: &Path, pid: u32) -> Result<()> {
        rest()?;
        self.sandbox.sync()?;
        let before = self.sandbox.disk_use()?;
        let started = Instant::now();
        self.updates(target, Some(pid))?;
        rest()?;
        let after = self.sandbox.disk_use()?;
        let elapsed = started.elapsed();
        let flushes = (after.flushes - before.flushes) as f64;
        self.add(
            "disk_1000_events",
            (after.bytes - before.bytes) as f64 / 1e3,
        )?;
        self.add("disk_flushes", flushes / (elapsed.as_secs_f64() / 5.0))
    }

    fn open_watches(&mut self, target: &Path, path: &str) -> Result<()> {
        self.run(&format!("hold {} {path} {WATCHES}", target.display()))
            .map(drop)
    }

    fn run(&mut self, job: &str) -> Result<Figures> {
        interrupt::check()?;
        self.load
            .run(job)
            .with_context(|| job.split(' ').next().unwrap_or_default().to_owned())
    }

    fn add(&mut self, row: &str, value: f64) -> Result<()> {
        progress::say(&format!("      {row:<24} {}", short(value)));
        self.report.add(row, self.subject, value)
    }
}

fn figure_of(figures: &Figures, name: &str) -> Result<f64> {
    let figure = figures.get(name).copied();
    figure.with_context(|| format!("the load found no {name}"))
}

fn pid_option(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" --pid {pid}")).unwrap_or_default()
}

fn rest() -> Result<()> {
    wait::throughout("rest", REST, || Ok(()))
}
