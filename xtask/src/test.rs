//! `cargo xtask test`: builds everything once and runs all tests. The eBPF programs are compiled
//! first, and the privileged suites run last. Tests that failed run again at the end, each alone.

mod first_look;
mod kernels;
mod measured;
mod needs;
mod report;
mod second_look;
pub(crate) mod suite;
mod summary;
mod watch;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::failures::Record;
use culvert_lab::kubernetes::{Programs, Release};
use culvert_lab::{interrupt, progress, workspace};

use crate::setup::Use;
use crate::{build_ebpf, kube, setup};

use first_look::FirstLook;
use suite::Suite;
use summary::Outcome;

/// Concurrent tests per processor. Tests mostly wait.
const JOBS_PER_PROCESSOR: usize = 2;

/// A suite that prints nothing for this long is stopped. It prints at least a dot for each test that
/// ends.
const SILENCE: Duration = Duration::from_mins(5);

/// The same for the long forms of tests, and on an emulated processor.
const LONG_SILENCE: Duration = Duration::from_mins(25);

const NO_ROOT: &str = "it needs root: run the same command as root";

const NO_API_SERVER: &str = "there is no Kubernetes: install Go 1.21 or later, then `cargo xtask \
                             kube` compiles it; or let KUBEBUILDER_ASSETS name a folder with etcd, \
                             kube-apiserver and kubectl";

/// The tests that run on other kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KernelTests {
    All,
    /// What kernels are known to differ in.
    Short,
}

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
    /// How many tests of a suite run at once [default: two for each processor]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Run only the tests of what kernels are known to differ in
    #[arg(long, requires = "kernels")]
    short: bool,
    /// Build everything, and run nothing
    #[arg(long, conflicts_with_all = ["filter", "kernels", "long"])]
    no_run: bool,
    /// The release of Kubernetes [default: the programs that KUBEBUILDER_ASSETS names, or the newest
    /// that was tried]
    #[arg(long, value_name = "VERSION")]
    kube: Option<Release>,
    /// Run only the tests that measure time or load the whole machine, which otherwise run last
    #[arg(long, conflicts_with_all = ["kernels", "no_run"])]
    measured: bool,
    /// Write which tests failed to this file, for a later --second-look, and succeed. Tests that
    /// measure are left to --measured
    #[arg(long, value_name = "FILE", conflicts_with = "long")]
    first_look: Option<PathBuf>,
    /// Run the tests again that failed by these files, each alone, and write there how they ended
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["filter", "kernels", "long", "first_look"])]
    second_look: Vec<PathBuf>,
    /// Run nothing, and say what failed and what was flaky by these files
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["filter", "kernels", "long", "first_look", "second_look"])]
    report: Vec<PathBuf>,
}

impl Args {
    fn jobs(&self) -> usize {
        if let Some(jobs) = self.jobs {
            return jobs.get();
        }
        let processors = available_parallelism().map_or(1, NonZeroUsize::get);
        JOBS_PER_PROCESSOR * processors
    }

    fn silence(&self) -> Duration {
        if self.long || self.kernels {
            LONG_SILENCE
        } else {
            SILENCE
        }
    }

    fn programs(&self) -> Programs {
        Programs::chosen(self.kube.as_ref())
    }

    /// What the names of the tests to run contain.
    fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
    }

    /// Whether a test of this name is to run.
    fn matches(&self, test: &str) -> bool {
        self.filter().is_none_or(|filter| test.contains(filter))
    }

    /// Where the failures are written for a later second look.
    fn record(&self) -> Option<&Path> {
        self.first_look.as_deref()
    }

    /// What runs on other kernels; `None` if this machine's is tested.
    fn kernels(&self) -> Option<KernelTests> {
        if !self.kernels {
            return None;
        }
        Some(if self.short {
            KernelTests::Short
        } else {
            KernelTests::All
        })
    }

    /// Selects the long forms of tests for a suite, if they are wanted.
    fn set_length(&self, suite: &mut Command) {
        if self.long {
            suite.env(LONG, "1").arg("--include-ignored");
        }
    }

    /// The command that runs a test again, or without a name all of them.
    fn command(&self, test: &str) -> String {
        let mut command = "cargo xtask test".to_owned();
        if self.kernels {
            command += " --kernels";
        }
        // A test that is named is short enough.
        if self.short && test.is_empty() {
            command += " --short";
        }
        if self.long {
            command += " --long";
        }
        if let Some(release) = &self.kube {
            command += &format!(" --kube {release}");
        }
        if !test.is_empty() {
            command += " ";
            command += test;
        }
        command
    }
}

/// Runs all tests.
///
/// # Errors
/// Something cannot be built, or a test fails twice. Under `REQUIRE_PRIVILEGED=1` also if a suite
/// cannot run.
pub fn run(args: &Args) -> Result<()> {
    interrupt::install()?;
    if !args.report.is_empty() {
        return report(args);
    }
    let kernel_programs = prepare(args)?;
    let suites = suite::build(&kernel_programs)?;
    if args.no_run {
        return Ok(());
    }
    if !args.second_look.is_empty() {
        return second_look(args, &suites);
    }
    let mut stdout = std::io::stdout();
    let mut looked = FirstLook::new(args, &mut stdout)?;
    if let KernelPrograms::Missing(reason) = &kernel_programs {
        looked.skip(suite::REDIRECTOR, reason);
    }
    match args.kernels() {
        Some(tests) => kernels::run(tests, args, &suites, &mut looked)?,
        None => run_suites(args, &suites, &mut looked)?,
    }
    if args.first_look.is_some() {
        summary::show_suites(&looked.outcomes, &looked.failures);
        return Ok(());
    }
    finish(args, &suites, looked)
}

/// Runs the tests again that failed, and says how all ended.
fn finish(args: &Args, suites: &[Suite], looked: FirstLook<'_>) -> Result<()> {
    let FirstLook {
        mut failures,
        outcomes,
        ..
    } = looked;
    let again = second_look::run(&mut failures, suites, args, &mut std::io::stdout());
    summary::show_suites(&outcomes, &failures);
    again.and(summary::report(&failures))?;
    if let Some(filter) = &args.filter {
        let is_found = outcomes.iter().any(Outcome::has_tests);
        ensure!(
            is_found,
            "no test that may run here has {filter:?} in its name"
        );
    }
    Ok(())
}

/// The kernel programs, which the redirector contains.
enum KernelPrograms {
    Compiled,
    /// Nothing here can compile them, for this reason.
    Missing(String),
}

/// Compiles the kernel programs. Where nothing may be skipped, it installs what is missing, and what
/// cannot be had is an error. Elsewhere that waits for the suites that need it: [`install`].
fn prepare(args: &Args) -> Result<KernelPrograms> {
    if args.no_run || args.kernels || is_required() {
        setup::ensure_for_tests()?;
        build_ebpf::run()?;
        return Ok(KernelPrograms::Compiled);
    }
    let compiled = match setup::ensure(&[Use::Ebpf]) {
        Ok(()) => build_ebpf::run(),
        Err(error) => Err(error),
    };
    Ok(match compiled {
        Ok(()) => KernelPrograms::Compiled,
        Err(error) => KernelPrograms::Missing(format!("{error:#}")),
    })
}

/// Installs what is missing. What cannot be had is said, and what needs it is skipped.
fn install() {
    if let Err(error) = setup::ensure_for_tests() {
        progress::say(&format!("{error:#}\nWhat needs it is skipped."));
    }
}

/// Whether what cannot run here is to fail.
fn is_required() -> bool {
    std::env::var_os("REQUIRE_PRIVILEGED").is_some_and(|value| value == "1")
}

fn report(args: &Args) -> Result<()> {
    let mut failures = Vec::new();
    for path in &args.report {
        failures.extend(Record::at(path).read()?);
    }
    summary::report(&failures)
}

/// Looks again at what the files have. All of them together have too many failures, or not.
fn second_look(args: &Args, suites: &[Suite]) -> Result<()> {
    let mut failures = Vec::new();
    let mut ends = Vec::new();
    for path in &args.second_look {
        failures.extend(Record::at(path).read()?);
        ends.push(failures.len());
    }
    let again = second_look::run(&mut failures, suites, args, &mut std::io::stdout());
    let mut start = 0;
    for (path, end) in args.second_look.iter().zip(ends) {
        Record::at(path).write(&failures[start..end])?;
        start = end;
    }
    again
}

/// Runs the suites in their order. Unit tests come first and need nothing, so that they need not
/// wait for what only other suites need.
fn run_suites(args: &Args, suites: &[Suite], looked: &mut FirstLook<'_>) -> Result<()> {
    let mut may_start_api_server = None;
    let mut may_run = Vec::new();
    for suite in suites {
        if needs::has_any(suite) && may_start_api_server.is_none() {
            install();
            may_start_api_server = Some(has_api_server(args, suites)?);
        }
        match lack(args, suite, may_start_api_server == Some(true))? {
            Some(reason) => looked.skip(&suite.name, &reason),
            None => may_run.push(suite),
        }
        if !args.measured && may_run.last() == Some(&suite) {
            looked.run(None, suite, suite.all_tests(args))?;
        }
    }
    if args.measured || args.first_look.is_none() {
        for suite in &may_run {
            looked.run_measured(suite)?;
        }
    }
    Ok(())
}

/// Why a suite cannot run here. Where nothing may be skipped, what cannot run fails by itself.
fn lack(args: &Args, suite: &Suite, may_start_api_server: bool) -> Result<Option<String>> {
    if is_required() {
        return Ok(None);
    }
    if suite.privileged.is_some() {
        if !workspace::is_root() {
            return Ok(Some(NO_ROOT.to_owned()));
        }
        if !may_start_api_server && suite.starts_api_server(args)? {
            return Ok(Some(NO_API_SERVER.to_owned()));
        }
    }
    Ok(needs::lacking(suite))
}

/// Compiles Kubernetes if a test that is to run needs it. Returns whether it is there: without Go,
/// tests can run without it.
fn has_api_server(args: &Args, suites: &[Suite]) -> Result<bool> {
    let Programs::Compiled(release) = args.programs() else {
        return Ok(true);
    };
    for suite in suites {
        if suite.starts_api_server(args)? && !release.is_there() {
            if !kube::can_compile() {
                return Ok(false);
            }
            kube::ensure_compiled(&release)?;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use culvert_lab::failures::{Failure, SecondLook};

    use super::first_look::{failure_of, failures};
    use super::report::{FailedTest, Report};
    use super::watch::{End, Ended, watch};
    use super::*;

    /// A suite of libtest's. `MARKS` is a folder where a test leaves that it has run.
    const SUITE: &str = r#"
        fn fails_once(name: &str) {
            let mark = std::path::Path::new(env!("MARKS")).join(name);
            let is_first = !mark.exists();
            std::fs::write(mark, "").unwrap();
            assert!(!is_first, "the first time");
        }
        #[test] fn passes() {}
        #[test] fn is_skipped() {
            use std::io::Write;
            writeln!(std::io::stderr(), "\nskipped: no reason").unwrap();
        }
        #[test] fn fails() { println!("a word before"); panic!("each time") }
        #[test] fn is_flaky() { fails_once("is_flaky") }
        #[test] fn an_answer_arrives_whole() { fails_once("whole") }
    "#;

    fn made(folder: &Path) -> Suite {
        let source = folder.join("suite.rs");
        let executable = folder.join("suite");
        std::fs::write(&source, SUITE).unwrap();
        let mut rustc = Command::new("rustc");
        workspace::without_outer_cargo(&mut rustc)
            .args(["--test", "--edition", "2024", "-o"])
            .args([&executable, &source])
            .env("MARKS", folder);
        workspace::output(&mut rustc).unwrap();
        suite("a: suite", executable)
    }

    fn suite(name: &str, executable: PathBuf) -> Suite {
        let package = executable.parent().map(Path::to_path_buf);
        Suite {
            name: name.to_owned(),
            executable,
            package: package.unwrap_or_default(),
            privileged: None,
        }
    }

    fn args(line: &[&str]) -> Args {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        Line::parse_from([&["test"], line].concat()).args
    }

    fn named<'a>(failures: &'a [Failure], name: &str) -> &'a Failure {
        let found = failures
            .iter()
            .find(|failure| failure.test.as_deref() == Some(name));
        found.unwrap_or_else(|| panic!("{name} is not in {failures:?}"))
    }

    #[test]
    fn a_test_that_fails_once_is_flaky_and_one_about_data_has_failed() {
        let folder = tempfile::tempdir().unwrap();
        let suite = made(folder.path());
        let args = args(&[]);

        let ended = watch(suite.all_tests(&args), SILENCE, &mut Vec::new()).unwrap();
        let report = Report::read(&ended.output);
        let counts = (report.passed, report.skipped, report.failed);
        assert_eq!(counts, (1, 1, 3), "{}", ended.output);
        let mut failures = failures(&suite, &ended, &report, &args);
        second_look::run(&mut failures, &[suite], &args, &mut Vec::new()).unwrap();

        let fails = named(&failures, "fails");
        assert!(fails.output.contains("a word before"), "{fails:?}");
        assert!(
            matches!(&fails.second, SecondLook::Failed(output) if output.contains("each time"))
        );
        assert_eq!(fails.repeat, "cargo xtask test fails");
        let flaky = named(&failures, "is_flaky");
        assert!(
            flaky.is_flaky() && flaky.output.contains("the first time"),
            "{flaky:?}"
        );
        let data = named(&failures, "an_answer_arrives_whole");
        assert!(matches!(data.second, SecondLook::Never(_)), "{data:?}");
        assert!(summary::report(&failures).is_err());
    }

    #[test]
    fn with_more_failures_than_five_nothing_runs_again() {
        let suite = suite("a: suite", PathBuf::new());
        let args = args(&[]);
        let mut failures = Vec::new();
        for number in 0..6 {
            let name = format!("test_{number}");
            let output = String::new();
            failures.push(failure_of(&suite, &FailedTest { name, output }, &args));
        }
        second_look::run(&mut failures, &[], &args, &mut Vec::new()).unwrap();
        for failure in failures {
            assert!(
                matches!(failure.second, SecondLook::Never(_)),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn a_suite_that_succeeds_has_no_failures_whatever_its_tests_print() {
        let suite = suite("a: suite", PathBuf::new());
        let output = "failures:\n    a\n\ntest result: FAILED. 0 passed; 1 failed;\n\
                      test result: ok. 1 passed; 0 failed;\n";
        let ended = Ended {
            how: End::Success,
            output: output.to_owned(),
        };
        let report = Report::read(&ended.output);
        assert_eq!(report.failures.len(), 1, "{report:?}");
        assert_eq!(failures(&suite, &ended, &report, &args(&[])).len(), 0);
    }

    #[test]
    fn a_suite_that_dies_or_falls_silent_has_failed_as_a_whole() {
        let suite = suite("a: suite", "/t/suite".into());
        let args = args(&[]);
        for how in [End::Success, End::Failure, End::Silent, End::Interrupted] {
            let output = "running 2 tests\ntest a ... FAILED\n".to_owned();
            let ended = Ended { how, output };
            let failures = failures(&suite, &ended, &Report::read(&ended.output), &args);
            let [failure] = &failures[..] else {
                panic!("{failures:?}")
            };
            assert_eq!(
                (&failure.test, failure.repeat.as_str()),
                (&None, "cd /t && /t/suite")
            );
            assert!(
                matches!(failure.second, SecondLook::Never(_)),
                "{failure:?}"
            );
            assert!(summary::report(&failures).is_err());
        }
    }

    /// A shell that prints this, and ends with this status.
    fn printing(output: &str, status: u8) -> Command {
        let mut command = Command::new("sh");
        let script = format!("printf '%s' \"$0\"; exit {status}");
        command.args(["-c", &script, output]);
        command
    }

    #[test]
    fn a_kernel_that_dies_runs_its_tests_again() {
        const DIED: &str = "running 1 test\ntest a ... \nKernel panic\n";
        const PASSED: &str = "running 1 test\ntest result: ok. 1 passed; 0 failed;\n";
        const FAILED: &str =
            "running 1 test\nfailures:\n    a\n\ntest result: FAILED. 0 passed; 1 failed;\n";
        let suite = suite("a: suite", "/t/suite".into());
        let args = args(&["--kernels"]);
        for (first, again, flaky, failed) in [
            (printing(DIED, 125), printing(PASSED, 0), 1, 0),
            (printing(DIED, 125), printing(DIED, 125), 0, 1),
            (printing(DIED, 125), printing(FAILED, 101), 0, 1),
            (printing(PASSED, 0), printing(DIED, 125), 0, 0),
        ] {
            let mut shown = Vec::new();
            let mut looked = FirstLook::new(&args, &mut shown).unwrap();
            looked.run_on_kernel("6.1", &suite, first, again).unwrap();
            let is_flaky = looked.failures.iter().filter(|failure| failure.is_flaky());
            assert_eq!(is_flaky.count(), flaky, "{:?}", looked.failures);
            assert_eq!(
                looked.failures.len(),
                flaky + failed,
                "{:?}",
                looked.failures
            );
            assert_eq!(summary::report(&looked.failures).is_err(), failed > 0);
        }
    }

    #[test]
    fn a_skipped_test_proves_nothing_about_a_kernel() {
        let suite = suite("a: suite", "/t/suite".into());
        let output = "\nskipped: needs root\ntest result: ok. 1 passed; 0 failed;\n".to_owned();
        let how = End::Success;
        let ended = Ended { how, output };
        let report = Report::read(&ended.output);
        assert_eq!(failures(&suite, &ended, &report, &args(&[])).len(), 0);
        assert_eq!(
            failures(&suite, &ended, &report, &args(&["--kernels"])).len(),
            1
        );
    }
}
