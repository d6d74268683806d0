//! What the tests showed, for the end of a run: a table of the suites, the output of what failed,
//! and the names of what failed and what was flaky, each with the command that repeats it.

use std::time::Duration;

use anyhow::{Result, bail};
use culvert_lab::failures::{Failure, SecondLook, suite_title};
use culvert_lab::progress;

use super::report::Report;

/// More flaky tests than these fail the run.
const MAX_FLAKY: usize = 2;

/// Lines of a test's output that are shown of its beginning and of its end.
const FIRST_LINES: usize = 100;
const LAST_LINES: usize = 200;

/// How a suite ended.
pub(super) struct Outcome {
    /// The kernel, if it is another one than this machine's, and the suite.
    pub(super) title: String,
    pub(super) result: SuiteResult,
    pub(super) time: Duration,
}

pub(super) enum SuiteResult {
    Ran(Report),
    /// It did not run, for this reason.
    Skipped(String),
    /// It did not come to its end, or did not name what failed.
    Broken,
}

impl Outcome {
    /// Whether it ran, with a test to run.
    pub(super) fn has_tests(&self) -> bool {
        match &self.result {
            SuiteResult::Ran(report) => report.passed + report.failed + report.skipped > 0,
            SuiteResult::Broken => true,
            SuiteResult::Skipped(_) => false,
        }
    }
}

/// Prints the table of the suites, without those of which no test was wanted.
pub(super) fn show_suites(outcomes: &[Outcome], failures: &[Failure]) {
    progress::say(&format!(
        "\n{:<40} {:>6} {:>6} {:>6} {:>7} {:>8}",
        "suite", "passed", "failed", "flaky", "skipped", "seconds"
    ));
    for outcome in outcomes {
        if matches!(&outcome.result, SuiteResult::Ran(_)) && !outcome.has_tests() {
            continue;
        }
        let seconds = outcome.time.as_secs_f32();
        let line = match &outcome.result {
            SuiteResult::Ran(report) => {
                let flaky = failures
                    .iter()
                    .filter(|failure| failure.is_flaky() && is_of(failure, outcome))
                    .count();
                format!(
                    "{:>6} {:>6} {flaky:>6} {:>7} {seconds:>8.1}",
                    report.passed,
                    report.failed.saturating_sub(flaky),
                    report.skipped,
                )
            }
            SuiteResult::Skipped(reason) => format!("skipped: {reason}"),
            SuiteResult::Broken => format!("BROKEN after {seconds:.1} s"),
        };
        progress::say(&format!("{:<40} {line}", outcome.title));
    }
}

fn is_of(failure: &Failure, outcome: &Outcome) -> bool {
    suite_title(failure.kernel.as_deref(), &failure.suite) == outcome.title
}

/// Prints what failed and what was flaky.
///
/// # Errors
/// A test failed, or too many were flaky.
pub(super) fn report(failures: &[Failure]) -> Result<()> {
    let mut flaky = Vec::new();
    let mut failed = Vec::new();
    for failure in failures {
        if failure.is_flaky() {
            flaky.push(failure);
        } else {
            failed.push(failure);
        }
    }
    for failure in &failed {
        progress::say(&both_outputs("FAILED", failure));
    }
    for failure in &flaky {
        progress::say(&both_outputs("FLAKY", failure));
    }
    progress::say(&format!("\n{} failed, {} flaky", failed.len(), flaky.len()));
    for (word, failures) in [("FAILED", &failed), ("FLAKY", &flaky)] {
        for failure in failures {
            progress::say(&format!("{word:<6}  {}", failure.title()));
            progress::say(&format!("        again: {}", failure.repeat));
        }
    }
    if !failed.is_empty() {
        bail!("{} failed", failed.len());
    }
    if flaky.len() > MAX_FLAKY {
        bail!("{} were flaky, more than {MAX_FLAKY}", flaky.len());
    }
    Ok(())
}

/// What a test printed each time.
fn both_outputs(word: &str, failure: &Failure) -> String {
    let (title, output) = match &failure.second {
        SecondLook::Pending => ("it did not run again".to_owned(), ""),
        SecondLook::Never(reason) => (format!("it did not run again: {reason}"), ""),
        SecondLook::Passed(output) => ("again: it passed".to_owned(), output.as_str()),
        SecondLook::Failed(output) => ("again: it failed".to_owned(), output.as_str()),
    };
    format!(
        "\n==== {word}: {}\n---- first\n{}\n---- {title}\n{}",
        failure.title(),
        shortened(&failure.output),
        shortened(output)
    )
}

/// The beginning and the end of a long text.
fn shortened(text: &str) -> String {
    let lines: Vec<&str> = text.trim_matches('\n').lines().collect();
    let left_out = lines.len().saturating_sub(FIRST_LINES + LAST_LINES);
    if left_out == 0 {
        return lines.join("\n");
    }
    let first = lines[..FIRST_LINES].join("\n");
    let last = lines[lines.len() - LAST_LINES..].join("\n");
    format!("{first}\n... {left_out} lines ...\n{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(second: SecondLook) -> Failure {
        Failure {
            kernel: None,
            suite: "tests/chain".to_owned(),
            test: Some("a::test".to_owned()),
            output: "panicked".to_owned(),
            second,
            repeat: "cargo xtask test a::test".to_owned(),
        }
    }

    #[test]
    fn two_flaky_tests_are_borne_and_a_third_is_not() {
        let flaky = failure(SecondLook::Passed("test result: ok".to_owned()));
        assert!(report(&vec![flaky.clone(); 2]).is_ok());
        assert!(report(&vec![flaky; 3]).is_err());
    }

    #[test]
    fn a_test_that_nobody_ran_again_has_failed() {
        let never = SecondLook::Never("a test about data".to_owned());
        for second in [
            never,
            SecondLook::Pending,
            SecondLook::Failed(String::new()),
        ] {
            assert!(report(&[failure(second)]).is_err());
        }
        assert!(report(&[]).is_ok());
    }

    #[test]
    fn a_long_output_keeps_its_beginning_and_its_end() {
        let text: String = (1..=1000).map(|line| format!("line {line}\n")).collect();
        let short = shortened(&text);
        assert!(short.starts_with("line 1\n") && short.ends_with("line 1000"));
        assert!(short.contains("... 700 lines ..."), "{short}");
        assert_eq!(shortened("a\nb\n"), "a\nb");
    }
}
