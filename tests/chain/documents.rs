//! Documents that operators rely on: `--help`, docs/flags.md, and the demo.

use std::collections::BTreeSet;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::skip::may_make_labs;
use culvert_lab::{flags_page, page, wait, workspace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

use crate::world::xtask;

/// The demo's lab has one name, so one test at a time runs it.
static DEMO: Mutex<()> = Mutex::new(());

/// A program and its subcommands.
pub(crate) type Program = (&'static str, &'static [&'static str]);

/// The program for people, which runs no daemon.
pub(crate) const CULVERT: Program = (
    "culvert",
    &[
        "status",
        "nodes",
        "node",
        "node remove",
        "streams",
        "observe",
        "top",
        "dashboard",
        "check",
        "why",
        "connectivity-test",
        "ping",
        "bundle",
        "connect",
        "forward",
        "ssh-config",
        "migrate",
        "client create",
        "token create",
        "token list",
        "token revoke",
        "version",
        "completion",
    ],
);

/// All programs.
pub(crate) fn programs() -> impl Iterator<Item = Program> {
    DAEMONS.into_iter().chain([CULVERT])
}

/// Programs that run for ever.
pub(crate) const DAEMONS: [Program; 4] = [
    ("culvert-proxy", &["run", "control-stdio", "log"]),
    (
        "culvert-redirector",
        &["run", "status", "explain", "uninstall", "log"],
    ),
    ("culvert-agent", &["run", "join", "log"]),
    (
        "culvert-hub",
        &[
            "run",
            "check",
            "install",
            "uninstall",
            "status",
            "explain",
            "log",
        ],
    ),
];

#[test]
fn the_page_of_flags_is_what_the_programs_say() -> Result<()> {
    let made = flags_page::made()?;
    let is_whole = made.contains("| `--state-dir` |") && made.contains("\n## culvert-hub\n");
    ensure!(is_whole, "{made}");
    ensure!(
        page::read(flags_page::FILE)? == made,
        "docs/{} is not what `cargo xtask flags` writes",
        flags_page::FILE
    );
    Ok(())
}

/// A pod whose kubelet makes such variables would not start, or with a port of another program.
#[test]
fn no_flag_has_a_variable_that_kubernetes_makes_for_a_service() -> Result<()> {
    for (program, subcommands) in DAEMONS {
        let mut count = 0;
        for words in std::iter::once(&"").chain(subcommands) {
            let mut command = Command::new(workspace::binary(program));
            command.args(words.split_whitespace()).arg("--help");
            for part in workspace::output(&mut command)?.split("[env: ").skip(1) {
                let variable = part.split('=').next().unwrap_or_default();
                ensure!(!is_of_a_service(variable), "{program} {words}: {variable}");
                count += 1;
            }
        }
        ensure!(count > 5, "{program} has {count} variables");
    }
    Ok(())
}

/// Whether kubelet makes it for a Service of some name, with links or in Docker's form.
fn is_of_a_service(variable: &str) -> bool {
    let in_dockers_form = variable
        .split("_PORT_")
        .skip(1)
        .any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    in_dockers_form
        || variable.ends_with("_PORT")
        || variable.ends_with("_SERVICE_HOST")
        || variable.contains("_SERVICE_PORT")
}

#[test]
fn the_demo_passes_and_leaves_nothing() {
    if !may_make_labs() {
        return;
    }
    let _demo = DEMO.lock();
    let (status, said) = demo(&mut demo_command()).expect("run the demo");
    assert!(status.success(), "the demo failed\n{said}");
    nothing_is_left().expect("afterwards");
}

#[test]
fn a_demo_that_fails_says_why_and_leaves_nothing() {
    if !may_make_labs() {
        return;
    }
    let _demo = DEMO.lock();
    // The proxy refuses this setting and ends.
    let (status, said) =
        demo(demo_command().env("CULVERT_VIP4_RANGE", "127.0.0.0/8")).expect("run the demo");
    assert!(
        !status.success() && said.contains("127.0.0.0/8"),
        "{status}: {said}"
    );
    nothing_is_left().expect("afterwards");
}

#[test]
fn a_held_demo_shows_prometheus_until_it_is_interrupted_and_leaves_nothing() {
    if !may_make_labs() {
        return;
    }
    let _demo = DEMO.lock();
    let mut command = demo_command();
    command
        .args(["--hold", "--port", "19090"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("start the demo");
    let shown = wait::until(
        "Prometheus answers on this machine's loopback",
        Duration::from_secs(60),
        || {
            let up = workspace::output(
                Command::new("curl")
                    .args(["-sf", "http://127.0.0.1:19090/api/v1/query?query=sum(up)"]),
            )?;
            up.contains("\"4\"").then_some(()).context(up)
        },
    );
    let pid = i32::try_from(child.id()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("interrupt the demo");
    let status = child.wait().expect("wait for the demo");
    shown.expect("the demo");
    assert!(status.success(), "{status}");
    nothing_is_left().expect("afterwards");
}

/// Uses the programs that `cargo xtask test` has compiled: to compile others, with other features,
/// takes minutes.
fn demo_command() -> Command {
    let mut command = Command::new(xtask());
    command.args(["demo", "--built"]);
    command
}

fn demo(command: &mut Command) -> Result<(ExitStatus, String)> {
    let done = command.output().context("start the demo")?;
    Ok((
        done.status,
        format!(
            "{}\n{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        ),
    ))
}

/// Fails if a namespace, file, cgroup or pin with the demo's name is left, or a process in one.
fn nothing_is_left() -> Result<()> {
    let namespaces = workspace::output(Command::new("ip").args(["netns", "list"]))?;
    ensure!(!namespaces.contains("culvert-demo"), "{namespaces}");
    ensure!(
        !std::path::Path::new("/run/culvert-demo").exists(),
        "/run/culvert-demo is still there"
    );
    // Processes and hooks are in the cgroups. Pins are in mounts that are removed with their
    // processes.
    let cgroups =
        workspace::output(Command::new("find").args(["/sys/fs/cgroup", "-name", "culvert-demo"]))?;
    ensure!(cgroups.is_empty(), "{cgroups}");
    Ok(())
}

/// All `--words` of a text, except those that every program has.
pub(crate) fn flags(text: &str) -> BTreeSet<&str> {
    let mut flags = all_flags(text);
    flags.retain(|word| !["--help", "--version"].contains(word));
    flags
}

/// All `--words` of a text.
pub(crate) fn all_flags(text: &str) -> BTreeSet<&str> {
    let is_flag = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.split(|c: char| !is_flag(c))
        .filter(|word| word.starts_with("--") && !word.ends_with("--"))
        .collect()
}
