//! `cargo xtask test --kernels`: tests what depends on the kernel, on other kernels than this
//! machine's.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::process::bound;
use culvert_lab::workspace;

use super::first_look::FirstLook;
use super::suite::Suite;
use super::{Args, KernelTests};

/// The variable that names the program that boots kernels. CONTRIBUTING.md says what the program
/// must do.
const RUNNER: &str = "KERNEL_RUNNER";

/// The oldest kernel that supports the connect hooks, and long-term ones up to the newest.
const KERNELS: [&str; 4] = ["5.10", "6.1", "6.12", "7.2"];
/// The kernels of the short list: the oldest and the newest.
const SHORT_KERNELS: [&str; 2] = ["5.10", "7.2"];

/// Time limit in seconds for all tests of a suite, and for the short list, on an emulated
/// processor.
const TIME: u32 = 5_400;
const SHORT_TIME: u32 = 900;

/// The tests to run: on which kernels, and of which suite.
struct Part {
    suite: &'static str,
    kernels: &'static [&'static str],
    short: &'static [&'static str],
    /// The tests without `--short`.
    all: Tests,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tests {
    Every,
    TheShortOnes,
}

const PARTS: [Part; 2] = [
    Part {
        suite: "redirector: kernel",
        kernels: &KERNELS,
        short: &[
            // The verifier with the shipped capabilities, and the limit of locked memory.
            "lifecycle::three_capabilities_are_enough",
            "lifecycle::a_limit_of_locked_memory_is_named_with_the_fix_where_the_kernel_counts_maps",
            // Every hook of both families; getpeername.
            "steering::a_client_sees_what_it_dialled_and_the_proxy_sees_the_client",
            // The error of a refused connect.
            "steering::an_offline_node_is_refused_at_connect_until_its_agent_comes",
            // The sequence number that the key of a handshake has.
            "strangers::with_hooks_for_all_a_stranger_with_the_hosts_address_moves_and_resets_no_connection",
            // Expressions of nftables, and conntrack.
            "nftables::with_both_the_hooks_carry_what_they_see_and_nftables_the_rest",
            // The initial network namespace, where the kernel says no other.
            "reserved_ports::while_the_proxy_is_dead_only_root_may_listen_on_its_ports",
            // Links, and the order of programs.
            "lifecycle::a_killed_redirector_leaves_the_hooks_and_its_successor_takes_over_the_links",
            "coexistence::what_another_program_refuses_is_refused_and_leaves_nothing",
        ],
        all: Tests::Every,
    },
    Part {
        suite: "tests/chain",
        // The programs need different capabilities: on 5.10 the proxy needs CAP_BPF. 6.1 is the
        // kernel of Debian 12.
        kernels: &["5.10", "6.1"],
        short: &[
            "steering::pods_are_steered_by_connect_hooks_alone",
            "steering::pods_are_steered_by_nftables_alone",
        ],
        all: Tests::TheShortOnes,
    },
];

/// Runs the tests on one kernel after the other.
pub(super) fn run(
    tests: KernelTests,
    args: &Args,
    suites: &[Suite],
    looked: &mut FirstLook<'_>,
) -> Result<()> {
    let runner = runner()?;
    let kernels: &[&str] = match tests {
        KernelTests::All => &KERNELS,
        KernelTests::Short => &SHORT_KERNELS,
    };
    for kernel in kernels {
        for part in &PARTS {
            if !part.kernels.contains(kernel) {
                continue;
            }
            let suite = part.suite_in(suites)?;
            let chosen = part.chosen(tests, args, suite)?;
            if chosen.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let first = command(&runner, kernel, args, suite, chosen.as_deref());
            let again = command(&runner, kernel, args, suite, chosen.as_deref());
            looked.run_on_kernel(kernel, suite, first, again)?;
        }
    }
    ensure!(
        !looked.outcomes.is_empty(),
        "no test has that name: {}",
        args.filter().unwrap_or_default()
    );
    Ok(())
}

/// The command that runs one test alone on this kernel.
pub(super) fn one_test(kernel: &str, suite: &Suite, test: &str, args: &Args) -> Result<Command> {
    let tests = [test.to_owned()];
    Ok(command(&runner()?, kernel, args, suite, Some(&tests)))
}

fn runner() -> Result<OsString> {
    match std::env::var_os(RUNNER) {
        Some(runner) if !runner.is_empty() => Ok(runner),
        _ => bail!(
            "{RUNNER} names no program that boots other kernels; CONTRIBUTING.md says what it has \
             to do"
        ),
    }
}

impl Part {
    fn suite_in<'a>(&self, suites: &'a [Suite]) -> Result<&'a Suite> {
        let suite = suites.iter().find(|suite| suite.name == self.suite);
        suite.with_context(|| format!("no suite {}", self.suite))
    }
    /// The names of the tests to run; `None` means all of the suite.
    fn chosen(
        &self,
        tests: KernelTests,
        args: &Args,
        suite: &Suite,
    ) -> Result<Option<Vec<String>>> {
        let there = suite.tests()?;
        let mut missing = self.short.to_vec();
        missing.retain(|test| !there.contains(*test));
        ensure!(
            missing.is_empty(),
            "{} has no such tests any more: {missing:?}",
            suite.name
        );
        let mut chosen = Vec::new();
        if tests == KernelTests::All && self.all == Tests::Every {
            if args.filter().is_none() {
                return Ok(None);
            }
            chosen.extend(there);
        } else {
            chosen.extend(self.short.iter().map(ToString::to_string));
        }
        chosen.retain(|test| args.matches(test));
        Ok(Some(chosen))
    }
}

fn command(
    runner: &OsString,
    kernel: &str,
    args: &Args,
    suite: &Suite,
    chosen: Option<&[String]>,
) -> Command {
    let seconds = match args.kernels() {
        Some(KernelTests::Short) => SHORT_TIME,
        Some(KernelTests::All) | None => TIME,
    };
    let mut command = bound(Path::new(runner));
    command
        .args([kernel, "--timeout", &seconds.to_string(), "--"])
        .arg(&suite.executable);
    command.arg("--test-threads=1");
    if let Some(tests) = chosen {
        command.arg("--exact").args(tests);
    }
    args.set_length(&mut command);
    // On other kernels no test may be skipped.
    workspace::without_outer_cargo(&mut command)
        .current_dir(&suite.package)
        .env("REQUIRE_PRIVILEGED", "1");
    command
}
