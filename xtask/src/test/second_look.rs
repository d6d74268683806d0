//! The second look: tests that failed run again, each alone, when nothing else runs. One that passes
//! then is flaky. That is said loudly, because some flaky tests are real faults.

use std::io::Write;

use anyhow::{Context, Result};
use culvert_lab::failures::{Failure, SecondLook};
use culvert_lab::{interrupt, progress};

use super::report::Report;
use super::suite::Suite;
use super::watch::{End, Ended, watch};
use super::{Args, LONG_SILENCE, kernels};

/// With more failures than these, something is broken, and nothing runs again.
const MAX_RERUNS: usize = 5;

/// Runs tests that failed again, and shows what they print.
///
/// # Errors
/// A suite cannot be started, or this program is interrupted.
pub(super) fn run(
    failures: &mut [Failure],
    suites: &[Suite],
    args: &Args,
    shown: &mut dyn Write,
) -> Result<()> {
    let pending = failures
        .iter()
        .filter(|failure| failure.second == SecondLook::Pending)
        .count();
    for failure in failures {
        if failure.second != SecondLook::Pending {
            continue;
        }
        failure.second = if pending > MAX_RERUNS {
            SecondLook::Never(format!("more than {MAX_RERUNS} tests failed"))
        } else {
            progress::say(&format!("==> second look: {}", failure.title()));
            run_again(failure, suites, args, shown)?
        };
    }
    Ok(())
}

fn run_again(
    failure: &Failure,
    suites: &[Suite],
    args: &Args,
    shown: &mut dyn Write,
) -> Result<SecondLook> {
    let test = failure.test.as_deref().context("only tests run again")?;
    let suite = suites.iter().find(|suite| suite.name == failure.suite);
    let suite = suite.with_context(|| format!("there is no suite {:?} any more", failure.suite))?;
    let command = match &failure.kernel {
        Some(kernel) => kernels::one_test(kernel, suite, test, args)?,
        None => suite.one_test(test, args),
    };
    let silence = match &failure.kernel {
        Some(_) => LONG_SILENCE,
        None => args.silence(),
    };
    let ended = watch(command, silence, shown)?;
    interrupt::check()?;
    Ok(result(ended))
}

/// A test that did not run, or skipped itself, has not passed.
fn result(ended: Ended) -> SecondLook {
    let report = Report::read(&ended.output);
    if ended.how == End::Success && (report.passed, report.skipped) == (1, 0) {
        SecondLook::Passed(ended.output)
    } else {
        SecondLook::Failed(ended.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(how: End, output: &str) -> bool {
        let output = output.to_owned();
        matches!(result(Ended { how, output }), SecondLook::Passed(_))
    }

    #[test]
    fn only_a_test_that_ran_and_passed_counts_as_passed() {
        assert!(passes(
            End::Success,
            "test result: ok. 1 passed; 0 failed;\n"
        ));
        assert!(!passes(
            End::Failure,
            "test result: FAILED. 0 passed; 1 failed;\n"
        ));
        assert!(!passes(
            End::Success,
            "test result: ok. 0 passed; 0 failed;\n"
        ));
        let skipped =
            "test a ... \nskipped: needs root\nok\ntest result: ok. 1 passed; 0 failed;\n";
        assert!(!passes(End::Success, skipped));
    }
}
