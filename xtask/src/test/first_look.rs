//! The first look: runs whole suites, and collects which of their tests failed.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use culvert_lab::failures::{Failure, Record, SecondLook, suite_title};
use culvert_lab::{interrupt, progress};

use super::report::{FailedTest, Report, notable_lines};
use super::suite::Suite;
use super::summary::{Outcome, SuiteResult};
use super::watch::{End, Ended, watch};
use super::{Args, measured};

/// Words in the name of a test whose failure would be lost or mixed-up data, or a data race. If it
/// fails once, it failed.
const ABOUT_DATA: [&str; 12] = [
    "bytes_arrive",
    "data_race",
    "destination",
    "destinations",
    "lose_no",
    "lose_nothing",
    "loses_no",
    "loses_nothing",
    "nothing_is_lost",
    "order",
    "what_it_dialled",
    "whole",
];

/// What the suites showed so far.
pub(super) struct FirstLook<'a> {
    args: &'a Args,
    /// What the suites print goes there.
    shown: &'a mut dyn Write,
    /// Where the failures are for a later second look.
    record: Option<Record>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) failures: Vec<Failure>,
}

impl<'a> FirstLook<'a> {
    /// Nothing yet.
    pub(super) fn new(args: &'a Args, shown: &'a mut dyn Write) -> Result<Self> {
        let record = match args.record() {
            Some(path) => Some(Record::create(path)?),
            None => None,
        };
        Ok(Self {
            args,
            shown,
            record,
            outcomes: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// A suite that does not run, for this reason.
    pub(super) fn skip(&mut self, suite: &str, reason: &str) {
        self.outcomes.push(Outcome {
            title: suite.to_owned(),
            result: SuiteResult::Skipped(reason.to_owned()),
            time: Duration::ZERO,
        });
    }

    /// Runs a suite on another kernel. If it dies there without a word about its tests, as an
    /// emulated processor does now and then, it runs again at once, and is flaky if all of it
    /// passes then.
    ///
    /// # Errors
    /// It cannot be started, or this program is interrupted.
    pub(super) fn run_on_kernel(
        &mut self,
        kernel: &str,
        suite: &Suite,
        command: Command,
        again: Command,
    ) -> Result<()> {
        if self.run(Some(kernel), suite, command)? == SuiteEnd::Reached {
            return Ok(());
        }
        let title = suite_title(Some(kernel), &suite.name);
        progress::say(&format!("==> {title} died, and runs again"));
        let started = Instant::now();
        let ended = watch(again, self.args.silence(), self.shown)?;
        interrupt::check()?;
        let report = Report::read(&ended.output);
        let passed = has_passed(&ended, &report, self.args);
        if let Some(failure) = self.failures.last_mut() {
            failure.second = if passed {
                SecondLook::Passed(ended.output)
            } else {
                SecondLook::Failed(ended.output)
            };
        }
        if let Some(record) = &self.record {
            record.write(&self.failures)?;
        }
        if passed && let Some(outcome) = self.outcomes.last_mut() {
            outcome.result = SuiteResult::Ran(report);
            outcome.time += started.elapsed();
        }
        Ok(())
    }

    /// Runs a suite by a command, here or on another kernel.
    ///
    /// # Errors
    /// It cannot be started, or this program is interrupted.
    pub(super) fn run(
        &mut self,
        kernel: Option<&str>,
        suite: &Suite,
        command: Command,
    ) -> Result<SuiteEnd> {
        let title = suite_title(kernel, &suite.name);
        progress::say(&format!("==> {title}"));
        let started = Instant::now();
        let ended = watch(command, self.args.silence(), self.shown)?;
        let time = started.elapsed();
        let report = Report::read(&ended.output);
        for mut failure in failures(suite, &ended, &report, self.args) {
            failure.kernel = kernel.map(str::to_owned);
            if let Some(record) = &self.record {
                record.add(&failure)?;
            }
            self.failures.push(failure);
        }
        interrupt::check()?;
        let is_broken = nameless_reason(&ended, &report, self.args).is_some();
        let died = ended.how == End::Failure && !report.is_complete;
        let result = if is_broken {
            SuiteResult::Broken
        } else {
            SuiteResult::Ran(report)
        };
        self.add(title, result, time);
        Ok(if died {
            SuiteEnd::Died
        } else {
            SuiteEnd::Reached
        })
    }

    /// Runs those tests of a suite that measure and are wanted, one after the other.
    ///
    /// # Errors
    /// The suite lacks one of them, or cannot be started, or this program is interrupted.
    pub(super) fn run_measured(&mut self, suite: &Suite) -> Result<()> {
        let tests = measured::of(&suite.name);
        if tests.is_empty() {
            return Ok(());
        }
        let there = suite.tests()?;
        let mut wanted = Vec::new();
        for test in tests {
            ensure!(there.contains(*test), "{} has no test {test}", suite.name);
            if self.args.matches(test) {
                wanted.push(*test);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let command = suite.tests_alone(&wanted, self.args);
        self.run(None, suite, command).map(drop)
    }

    /// Adds how a suite ended, or the rest of it.
    fn add(&mut self, title: String, result: SuiteResult, time: Duration) {
        for earlier in &mut self.outcomes {
            if earlier.title != title {
                continue;
            }
            if let (SuiteResult::Ran(before), SuiteResult::Ran(rest)) =
                (&mut earlier.result, &result)
            {
                before.passed += rest.passed;
                before.skipped += rest.skipped;
                before.failed += rest.failed;
                earlier.time += time;
                return;
            }
        }
        self.outcomes.push(Outcome {
            title,
            result,
            time,
        });
    }
}

/// Whether a suite came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuiteEnd {
    Reached,
    /// It failed without a result.
    Died,
}

/// Whether all of a suite ran and passed.
fn has_passed(ended: &Ended, report: &Report, args: &Args) -> bool {
    ended.how == End::Success && report.passed > 0 && nameless_reason(ended, report, args).is_none()
}

/// The tests that failed; the suite itself if it does not name them.
pub(super) fn failures(suite: &Suite, ended: &Ended, report: &Report, args: &Args) -> Vec<Failure> {
    let Some(reason) = nameless_reason(ended, report, args) else {
        // A test that passes may print what looks like a failure.
        if ended.how == End::Success {
            return Vec::new();
        }
        let failures = report.failures.iter();
        return failures.map(|test| failure_of(suite, test, args)).collect();
    };
    vec![Failure {
        kernel: None,
        suite: suite.name.clone(),
        test: None,
        output: notable_lines(&ended.output) + &ended.output,
        second: SecondLook::Never(reason.to_owned()),
        repeat: match args.kernels() {
            Some(_) => args.command(""),
            None => suite.whole_again(),
        },
    }]
}

/// Why a suite failed that does not name tests that did.
fn nameless_reason(ended: &Ended, report: &Report, args: &Args) -> Option<&'static str> {
    match ended.how {
        End::Silent => Some("the suite was stopped"),
        End::Interrupted => Some("the run was interrupted"),
        End::Success if !report.is_complete => Some("the suite ended before its end"),
        End::Success if args.kernels().is_some() && report.skipped > 0 => {
            Some("tests were skipped, which proves nothing about this kernel")
        }
        End::Success => None,
        End::Failure if report.names_all_failures() => None,
        End::Failure => Some("the suite does not name the tests that failed"),
    }
}

pub(super) fn failure_of(suite: &Suite, test: &FailedTest, args: &Args) -> Failure {
    Failure {
        kernel: None,
        suite: suite.name.clone(),
        test: Some(test.name.clone()),
        output: test.output.clone(),
        second: planned(&test.name),
        repeat: args.command(&test.name),
    }
}

/// What the second look does about a test that failed.
pub(super) fn planned(test: &str) -> SecondLook {
    let (_, name) = test.rsplit_once("::").unwrap_or(("", test));
    let name = format!("_{name}_");
    for words in ABOUT_DATA {
        if name.contains(&format!("_{words}_")) {
            return SecondLook::Never(format!("a test about data: its name has {words:?}"));
        }
    }
    SecondLook::Pending
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs_again(test: &str) -> bool {
        planned(test) == SecondLook::Pending
    }

    #[test]
    fn a_test_about_data_never_runs_again() {
        assert!(!runs_again("bytes::a_gibibyte_arrives_whole_each_way"));
        assert!(!runs_again(
            "steering::an_ipv4_client_keeps_its_destination"
        ));
        assert!(runs_again(
            "whole::a_silent_agent_is_noticed_within_the_grace"
        ));
    }
}
