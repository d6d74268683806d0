//! The compiled test suites: which there are, and how their tests run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::kubernetes::{ASSETS, Programs};
use culvert_lab::process::bound;
use culvert_lab::{progress, workspace};
use serde_json::Value;

use super::{Args, KernelPrograms, measured};

/// The package that cannot be compiled without its kernel programs.
pub(super) const REDIRECTOR: &str = "redirector";

/// Suites that load kernel programs and create namespaces: folder of the package, name of the test,
/// and order of its tests.
const PRIVILEGED: [(&str, &str, Order); 3] = [
    ("redirector", "kernel", Order::OneByOne),
    ("tests/chain", "chain", Order::SideBySide),
    ("tests/kubernetes", "kubernetes", Order::SideBySide),
];

/// Suites with tests that start an API server.
const WITH_API_SERVER: [&str; 2] = ["tests/kubernetes", "tests/manifests"];

/// One compiled test suite.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Suite {
    pub(super) name: String,
    pub(super) executable: PathBuf,
    pub(super) package: PathBuf,
    /// The order of its tests, if it needs root.
    pub(super) privileged: Option<Order>,
}

/// How the tests of a privileged suite run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// One after the other: they share the machine's cgroups.
    OneByOne,
    /// Concurrently: each has its own lab or ports.
    SideBySide,
}

/// The command that compiles the programs which the suites run, as [`build`] does.
pub(crate) fn programs() -> Command {
    // An example brings the features that tests want of the crates.
    compile("build", &["--bins", "--example", "jumping_clock"])
}

/// Builds every suite, and the programs that they run: without kernel programs all but those of the
/// redirector.
pub(super) fn build(kernel_programs: &KernelPrograms) -> Result<Vec<Suite>> {
    // Unit tests have a profile of their own. No program has any: what it does is in its library.
    let mut with_programs = compile("build", &["--bins", "--test", "*", "--examples"]);
    let mut unit_tests = compile("test", &["--no-run", "--lib"]);
    if let KernelPrograms::Missing(_) = kernel_programs {
        for command in [&mut with_programs, &mut unit_tests] {
            command.args(["--exclude", &format!("culvert-{REDIRECTOR}")]);
        }
    }
    let mut messages = messages_of("build the programs and their tests", with_programs)?;
    messages.push_str(&messages_of("build the unit tests", unit_tests)?);
    let mut suites = Vec::new();
    for line in messages.lines() {
        if let Ok(message) = serde_json::from_str(line)
            && let Some(suite) = Suite::of(&message)
        {
            suites.push(suite);
        }
    }
    ensure!(!suites.is_empty(), "cargo built no tests");
    suites.sort_by(|a, b| (a.privileged, &a.name).cmp(&(b.privileged, &b.name)));
    Ok(suites)
}

/// A command of cargo for the whole workspace, always with the same features, so that nothing is
/// compiled twice.
fn compile(task: &str, targets: &[&str]) -> Command {
    let mut command = workspace::cargo();
    command.args([task, "--workspace", "--features", "culvert-scale/worker"]);
    command.args(targets);
    command
}

/// Runs a command of cargo, and returns its messages, each a line of JSON.
fn messages_of(step: &str, mut command: Command) -> Result<String> {
    command.args(["--message-format", "json-render-diagnostics"]);
    let log = progress::run(step, &mut command)?;
    std::fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))
}

impl Suite {
    /// The suite in a message of cargo, if there is one.
    fn of(message: &Value) -> Option<Self> {
        if message["profile"]["test"] != true {
            return None;
        }
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        // Two packages may have folders of the same name.
        let folder = package.strip_prefix(workspace::root()).ok()?.to_str()?;
        let kind = message["target"]["kind"][0].as_str()?;
        let test = message["target"]["name"].as_str()?;
        let name = if kind != "test" {
            format!("{folder}: unit tests of the {kind}")
        } else if folder.ends_with(&format!("/{test}")) {
            folder.to_owned()
        } else {
            format!("{folder}: {test}")
        };
        let mut privileged = None;
        for (its_folder, its_test, order) in PRIVILEGED {
            if kind == "test" && its_folder == folder && its_test == test {
                privileged = Some(order);
            }
        }
        Some(Self {
            name,
            executable: message["executable"].as_str()?.into(),
            package: package.to_path_buf(),
            privileged,
        })
    }

    /// Whether a test that is to run may start an API server.
    pub(super) fn starts_api_server(&self, args: &Args) -> Result<bool> {
        if !WITH_API_SERVER.contains(&self.name.as_str()) {
            return Ok(false);
        }
        if args.filter().is_none() {
            return Ok(true);
        }
        Ok(self.tests()?.iter().any(|test| args.matches(test)))
    }

    /// The names of its tests.
    pub(super) fn tests(&self) -> Result<BTreeSet<String>> {
        let listed = workspace::output(Command::new(&self.executable).arg("--list"))?;
        let mut tests = BTreeSet::new();
        for line in listed.lines() {
            if let Some(test) = line.strip_suffix(": test") {
                tests.insert(test.to_owned());
            }
        }
        Ok(tests)
    }

    /// The command that runs its tests, without those that measure.
    pub(super) fn all_tests(&self, args: &Args) -> Command {
        let mut command = self.command(args);
        command.args(args.filter());
        for test in measured::of(&self.name) {
            command.args(["--skip", test]);
        }
        // Privileged tests take long, so their progress is shown.
        if self.privileged.is_none() {
            command.arg("--quiet");
        }
        let threads = match self.privileged {
            Some(Order::OneByOne) => 1,
            Some(Order::SideBySide) | None => args.jobs(),
        };
        command.arg(format!("--test-threads={threads}"));
        command
    }

    /// The command that runs one of its tests, alone.
    pub(super) fn one_test(&self, test: &str, args: &Args) -> Command {
        self.tests_alone(&[test], args)
    }

    /// The command that runs some of its tests, one after the other.
    pub(super) fn tests_alone(&self, tests: &[&str], args: &Args) -> Command {
        let mut command = self.command(args);
        command.arg("--exact").args(tests).arg("--test-threads=1");
        command
    }

    /// For people: the command that runs it again.
    pub(super) fn whole_again(&self) -> String {
        format!(
            "cd {} && {}",
            self.package.display(),
            self.executable.display()
        )
    }

    fn command(&self, args: &Args) -> Command {
        let mut command = bound(&self.executable);
        workspace::without_outer_cargo(&mut command).current_dir(&self.package);
        args.set_length(&mut command);
        if let Programs::Compiled(release) = args.programs()
            && release.is_there()
        {
            command.env(ASSETS, release.folder());
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_read_from_the_message_of_cargo() {
        let message = |kind: &str, test: bool| {
            let manifest = workspace::root().join("tests/chain/Cargo.toml");
            serde_json::json!({"manifest_path": manifest, "executable": "/w/t/chain-1",
                "target": {"kind": [kind], "name": "chain"}, "profile": {"test": test}})
        };
        let chain = Suite::of(&message("test", true)).unwrap();
        assert_eq!(
            (chain.name.as_str(), chain.privileged),
            ("tests/chain", Some(Order::SideBySide))
        );
        assert_eq!(Suite::of(&message("lib", true)).unwrap().privileged, None);
        assert_eq!(Suite::of(&message("bin", false)), None);
    }
}
