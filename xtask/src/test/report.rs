//! What a suite's output says: how many of its tests passed, and which failed, with their output.
//! The format is that of libtest, the harness of `cargo test`.

use std::iter::Peekable;
use std::str::Lines;

/// What tests print that could not run.
const SKIPPED: &str = "skipped: ";

/// How the tests of a suite ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Whether the suite came to its end.
    pub(super) is_complete: bool,
    pub(super) passed: usize,
    /// Tests that said that they were skipped. libtest counts them as passed; `passed` does not.
    pub(super) skipped: usize,
    /// As many as the suite counted. It may have named fewer.
    pub(super) failed: usize,
    pub(super) failures: Vec<FailedTest>,
}

/// A test that failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FailedTest {
    pub(super) name: String,
    /// What it printed.
    pub(super) output: String,
}

impl Report {
    /// Reads a suite's output. Programs that the tests started may have written between its lines.
    pub(super) fn read(output: &str) -> Self {
        let mut report = Self::default();
        let mut sections = Vec::new();
        let mut named = Vec::new();
        let mut lines = output.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(name) = name_of_section(line) {
                let output = section(&mut lines);
                sections.push(FailedTest {
                    name: name.to_owned(),
                    output,
                });
            } else if line == "failures:" {
                // The last one is the list of names.
                named = names(&mut lines);
            } else if line.starts_with(SKIPPED) {
                report.skipped += 1;
            } else if let Some(counts) = line.strip_prefix("test result: ") {
                report.is_complete = true;
                report.passed = count(counts, "passed");
                report.failed = count(counts, "failed");
            }
        }
        report.passed = report.passed.saturating_sub(report.skipped);
        for name in named {
            let found = sections.iter().position(|section| section.name == name);
            report.failures.push(match found {
                Some(found) => sections.swap_remove(found),
                None => FailedTest {
                    name,
                    output: String::new(),
                },
            });
        }
        report
    }

    /// Whether each test that failed is known by its name.
    pub(super) fn names_all_failures(&self) -> bool {
        self.failed > 0 && self.failed == self.failures.len()
    }
}

/// The lines of a suite that did not come to its end which say what had failed and what ran for
/// long.
pub(super) fn notable_lines(output: &str) -> String {
    let mut notable = String::new();
    for line in output.lines() {
        if line.starts_with("test ") && NOTABLE.iter().any(|end| line.ends_with(end)) {
            notable.push_str(line);
            notable.push('\n');
        }
    }
    notable
}

/// How such lines end.
const NOTABLE: [&str; 2] = [" ... FAILED", " has been running for over 60 seconds"];

/// The name in `---- NAME stdout ----`.
fn name_of_section(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// The lines up to the next section or list.
fn section(lines: &mut Peekable<Lines<'_>>) -> String {
    let mut text = String::new();
    while let Some(line) =
        lines.next_if(|line| name_of_section(line).is_none() && *line != "failures:")
    {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// The names in the lines up to the next section or to the suite's result.
fn names(lines: &mut Peekable<Lines<'_>>) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(line) =
        lines.next_if(|line| name_of_section(line).is_none() && !line.starts_with("test result: "))
    {
        if let Some(name) = line.strip_prefix("    ")
            && !name.is_empty()
            && !name.contains(' ')
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// The number in `N WHAT;`.
fn count(counts: &str, what: &str) -> usize {
    counts
        .split([';', '.'])
        .find_map(|count| count.trim().strip_suffix(what)?.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libtest of Rust 1.95 prints it, with lines of a child process between.
    const OUTPUT: &str = "
running 4 tests
test a::fails ... FAILED
test passes ... ok
test cannot_run ... 
skipped: it needs root
ok
2026-11-28T10:00:00Z INFO a line of a program
test b::fails ... FAILED

failures:

---- a::fails stdout ----
thread 'a::fails' panicked at a.rs:7:5:
failures: 3
note: run with `RUST_BACKTRACE=1`

---- b::fails stdout ----
Error: broken


failures:
    a::fails
2026-11-28T10:00:01Z INFO another line
    b::fails

test result: FAILED. 2 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn failed_tests_are_read_with_their_output() {
        let report = Report::read(OUTPUT);
        assert_eq!((report.passed, report.skipped, report.failed), (1, 1, 2));
        assert!(report.names_all_failures());
        let [a, b] = &report.failures[..] else {
            panic!("{report:?}")
        };
        assert_eq!((a.name.as_str(), b.name.as_str()), ("a::fails", "b::fails"));
        assert!(a.output.contains("panicked at a.rs") && !a.output.contains("broken"));
        assert!(b.output.contains("broken"));
    }

    #[test]
    fn a_suite_that_ended_without_a_result_names_no_failure() {
        let output =
            "running 3 tests\ntest a ... ok\ntest c ... FAILED\nthread 'b' has overflowed\n";
        let report = Report::read(output);
        assert_eq!(report, Report::default());
        assert!(!report.is_complete && !report.names_all_failures());
        assert_eq!(notable_lines(output), "test c ... FAILED\n");
    }

    #[test]
    fn a_suite_that_passed_has_its_counts() {
        let report = Report::read(
            "\nrunning 3 tests\n...\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; \
             9 filtered out; finished in 0.00s\n",
        );
        assert_eq!(
            (report.passed, report.failed, report.failures.len()),
            (3, 0, 0)
        );
    }
}
