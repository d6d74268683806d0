//! `cargo xtask test`: builds everything once and runs all tests. The eBPF programs are compiled
//! first, and the privileged suites run last.

mod kernels;

use std::fmt;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::{progress, workspace};
use serde_json::Value;

use crate::{build_ebpf, setup};

/// Suites that load kernel programs and create namespaces: folder of the package, name of the test,
/// and order of its tests.
const PRIVILEGED: [(&str, &str, Order); 3] = [
    ("redirector", "kernel", Order::OneByOne),
    ("xtask", "chain", Order::SideBySide),
    ("xtask", "kubernetes", Order::SideBySide),
];

/// Concurrent tests per processor. Tests mostly wait.
const JOBS_PER_PROCESSOR: usize = 2;

/// Environment variable that selects the long forms of tests.
pub const LONG: &str = "CULVERT_TEST_LONG";

/// What to run.
#[derive(clap::Args)]
pub struct Args {
    /// Run only tests whose names contain this
    filter: Option<String>,
    /// Churn a million connections and kill for a quarter of an hour, where the short forms take
    /// some minutes
    #[arg(long)]
    long: bool,
    /// Run what depends on the kernel on Linux 5.10, 6.1, 6.12 and 7.2, which the program named by
    /// KERNEL_RUNNER boots
    #[arg(long)]
    kernels: bool,
    /// How many tests of the whole chain run at once [default: two for each processor]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Of that only what kernels are known to differ in
    #[arg(long, requires = "kernels")]
    short: bool,
}

impl Args {
    fn jobs(&self) -> usize {
        self.jobs.map_or_else(
            || JOBS_PER_PROCESSOR * available_parallelism().map_or(1, NonZeroUsize::get),
            NonZeroUsize::get,
        )
    }
}

/// Runs all tests.
///
/// # Errors
/// Something cannot be built, or a test fails. Under `REQUIRE_PRIVILEGED=1` also if a suite cannot
/// run.
pub fn run(args: &Args) -> Result<()> {
    setup::ensure_for_tests()?;
    build_ebpf::run()?;
    let suites = build()?;
    if args.kernels {
        return kernels::run(args, &suites);
    }
    // Under REQUIRE_PRIVILEGED the suites run without root too, and fail by themselves.
    let may_run_privileged = workspace::is_root()
        || std::env::var_os("REQUIRE_PRIVILEGED").is_some_and(|value| value == "1");
    let mut outcomes = Vec::new();
    for suite in suites {
        let started = Instant::now();
        let verdict = if suite.privileged.is_some() && !may_run_privileged {
            Verdict::Skipped
        } else {
            suite.run(args)?
        };
        progress::say(&format!("==> {}: {verdict}", suite.name));
        outcomes.push((suite.name, verdict, started.elapsed().as_secs_f32()));
    }
    summarize(&outcomes)
}

/// One compiled test suite.
#[derive(Debug, PartialEq, Eq)]
struct Suite {
    name: String,
    executable: PathBuf,
    package: PathBuf,
    /// The order of its tests, if it needs root.
    privileged: Option<Order>,
}

/// How the tests of a privileged suite run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// One after the other: they share the machine's cgroups.
    OneByOne,
    /// Concurrently: each has its own lab or ports.
    SideBySide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Contains the number of tests that reported that they were skipped. libtest counts these as
    /// passed.
    Passed {
        skipped: usize,
    },
    Failed,
    Skipped,
}

impl Verdict {
    /// Nothing failed and nothing was skipped.
    const PASSED: Self = Self::Passed { skipped: 0 };
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed { skipped: 0 } => f.write_str("passed"),
            Self::Passed { skipped } => write!(f, "passed, {skipped} SKIPPED"),
            Self::Failed => f.write_str("FAILED"),
            Self::Skipped => f.write_str("skipped, it needs root"),
        }
    }
}

/// Builds every suite at once with one set of features, and the binaries that the privileged suites
/// run.
fn build() -> Result<Vec<Suite>> {
    let mut command = workspace::cargo();
    command.args([
        "build",
        "--workspace",
        "--bins",
        "--lib",
        "--tests",
        "--examples",
        "--features",
        "culvert-scale/worker",
        "--message-format",
        "json-render-diagnostics",
    ]);
    let log = progress::run("build everything", &mut command)?;
    let messages =
        std::fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
    let mut suites: Vec<Suite> = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message| Suite::of(&message))
        .collect();
    ensure!(
        !suites.is_empty(),
        "cargo built no tests; its messages are in {}",
        log.display()
    );
    suites.sort_by(|a, b| (a.privileged, &a.name).cmp(&(b.privileged, &b.name)));
    Ok(suites)
}

impl Suite {
    /// The suite in a message of cargo, if there is one.
    fn of(message: &Value) -> Option<Self> {
        if message["profile"]["test"] != true {
            return None;
        }
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        let folder = package.file_name()?.to_str()?;
        let (kind, test) = (
            message["target"]["kind"][0].as_str()?,
            message["target"]["name"].as_str()?,
        );
        let name = if kind == "test" {
            format!("{folder}: {test}")
        } else {
            format!("{folder}: unit tests of the {kind}")
        };
        let privileged = PRIVILEGED
            .into_iter()
            .find(|(its_folder, its_test, _)| {
                kind == "test" && (*its_folder, *its_test) == (folder, test)
            })
            .map(|(_, _, order)| order);
        Some(Self {
            name,
            executable: message["executable"].as_str()?.into(),
            package: package.to_path_buf(),
            privileged,
        })
    }

    fn run(&self, args: &Args) -> Result<Verdict> {
        progress::say(&format!("==> {}", self.name));
        let mut command = Command::new(&self.executable);
        workspace::without_outer_cargo(&mut command)
            .current_dir(&self.package)
            .args(&args.filter);
        if args.long {
            command.env(LONG, "1");
        }
        // Privileged tests take long, so their progress is shown.
        match self.privileged {
            None => command.arg("--quiet"),
            Some(Order::OneByOne) => command.args(["--test-threads=1", "--nocapture"]),
            Some(Order::SideBySide) => command.arg(format!("--test-threads={}", args.jobs())),
        };
        self.watch(&mut command)
    }

    /// Runs the suite's executable with `command`.
    fn watch(&self, command: &mut Command) -> Result<Verdict> {
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {:?} for {}", command.get_program(), self.name))?;
        let mut skipped = 0;
        for line in BufReader::new(child.stderr.take().context("stderr")?).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            skipped += usize::from(line.starts_with("skipped: "));
            eprintln!("{line}");
        }
        Ok(if child.wait()?.success() {
            Verdict::Passed { skipped }
        } else {
            Verdict::Failed
        })
    }
}

fn summarize(outcomes: &[(String, Verdict, f32)]) -> Result<()> {
    progress::say("\nsummary");
    for (suite, verdict, seconds) in outcomes {
        progress::say(&format!("  {suite:<40} {seconds:>6.1} s  {verdict}"));
    }
    let failed = outcomes
        .iter()
        .filter(|(_, verdict, _)| *verdict == Verdict::Failed)
        .count();
    if failed > 0 {
        bail!("{failed} of {} suites failed", outcomes.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_read_from_the_message_of_cargo() {
        let message = |kind: &str, test: bool| {
            serde_json::json!({"manifest_path": "/w/xtask/Cargo.toml", "executable": "/w/t/chain-1",
                "target": {"kind": [kind], "name": "chain"}, "profile": {"test": test}})
        };
        let chain = Suite::of(&message("test", true)).unwrap();
        assert_eq!(
            (chain.name.as_str(), chain.privileged),
            ("xtask: chain", Some(Order::SideBySide))
        );
        assert_eq!(Suite::of(&message("lib", true)).unwrap().privileged, None);
        assert_eq!(Suite::of(&message("bin", false)), None);
    }
}
