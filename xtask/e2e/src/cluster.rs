//! The real cluster, made by the program that `E2E_CLUSTER` names. Its commands are `up`, `env`,
//! `kubectl ARGS`, `enter NODE COMMAND...`, `load ARCHIVE`, `image NAME FOLDER COMMAND...`,
//! `apiserver FLAGS` and `down`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::{progress, workspace};

use crate::command::{Finished, finish};

/// The environment variable that names the program.
const PROGRAM: &str = "E2E_CLUSTER";

/// The environment variable of `up` with the names of the nodes.
const NODES: &str = "NODES";

/// The environment variable of `up` that asks for a kube-proxy on each node, unless it is set
/// otherwise.
const KUBE_PROXY: &str = "KUBE_PROXY";

/// The cloud node where the API server runs.
pub(super) const MASTER: &str = "master";
/// The cloud nodes. Each has a proxy and a redirector.
pub(super) const CLOUDS: [&str; 3] = [MASTER, "cloud-2", "cloud-3"];
/// The edge nodes.
pub(super) const EDGES: [&str; 3] = ["edge-1", "edge-2", "edge-3"];
/// Limit for kubectl commands that end by themselves, on two busy cores.
pub(super) const KUBECTL_TIME: Duration = Duration::from_secs(30);
/// Limit for loading images of 100 MB on six nodes.
const LOAD_TIME: Duration = Duration::from_secs(120);
/// Limit for a graceful end, which waits for watches, and a start.
const APISERVER_TIME: Duration = Duration::from_secs(120);
/// Limit for `down`, which kills what does not end.
const DOWN_TIME: Duration = Duration::from_secs(60);

/// What happens to the cluster at the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtEnd {
    /// The cluster is removed.
    TakeDown,
    /// The cluster stays, for debugging.
    Keep,
}

/// A running cluster.
pub(super) struct Cluster {
    program: PathBuf,
    variables: BTreeMap<String, String>,
    at_end: AtEnd,
}

impl Cluster {
    /// The program that creates clusters.
    pub(super) fn program() -> Result<PathBuf> {
        let program = std::env::var_os(PROGRAM).with_context(|| {
            format!(
                "{PROGRAM} is not set: let it name a program that makes a Kubernetes cluster of \
                 the nodes in the variable {NODES}: of `master`, with the API server, of `cloud-2` \
                 and `cloud-3`, and of `edge-1`, `edge-2`, `edge-3` that nothing can dial (the \
                 latter two with one address), each with a kube-proxy, by the commands `up`, `env`, `kubectl`, `enter`, \
                 `load`, `image`, `apiserver` and `down`"
            )
        })?;
        let path = workspace::root().join(program);
        ensure!(
            path.is_file(),
            "{PROGRAM}: there is no program {}",
            path.display()
        );
        Ok(path)
    }

    /// Creates a cluster.
    pub(super) fn up(program: PathBuf, apiserver_flags: &[String], at_end: AtEnd) -> Result<Self> {
        remove_killed(&program)?;
        let mut cluster = Self {
            program,
            variables: BTreeMap::new(),
            at_end,
        };
        let mut up = cluster.command("up");
        progress::run(
            "start a Kubernetes cluster",
            up.env("APISERVER_ARGS", apiserver_flags.join(" "))
                .env(
                    KUBE_PROXY,
                    std::env::var_os(KUBE_PROXY).unwrap_or_else(|| "1".into()),
                )
                .env(NODES, [&CLOUDS[..], &EDGES].concat().join(" ")),
        )?;
        cluster.variables =
            variables(&finish(&mut cluster.command("env"), KUBECTL_TIME)?.success()?);
        Ok(cluster)
    }

    /// One of the program's commands.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name);
        command
    }

    /// A variable from the output of `env`.
    pub(super) fn variable(&self, name: &str) -> Result<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("`{PROGRAM} env` prints no {name}"))
    }

    /// A variable of a node, such as its `CGROUP`.
    pub(super) fn variable_of(&self, node: &str, name: &str) -> Result<&str> {
        let node = node.to_uppercase().replace('-', "_");
        self.variable(&format!("CK_{node}_{name}"))
    }

    /// kubectl as administrator, on the master.
    pub(super) fn kubectl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command("kubectl");
        command.args(args);
        command
    }

    /// The output of kubectl.
    pub(super) fn ask(&self, args: &[&str]) -> Result<String> {
        self.ask_within(KUBECTL_TIME, args)
    }

    /// The output of a kubectl command that takes long.
    pub(super) fn ask_within(&self, deadline: Duration, args: &[&str]) -> Result<String> {
        let said = finish(&mut self.kubectl(args), deadline).and_then(Finished::success);
        said.with_context(|| format!("kubectl {}", args.join(" ")))
    }

    /// An object as JSON.
    pub(super) fn json(&self, args: &[&str]) -> Result<serde_json::Value> {
        let text = self.ask(&[args, &["--output", "json"]].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("kubectl {}: this is not JSON: {text:.200}", args.join(" ")))
    }

    /// A command that runs as a process of a node.
    pub(super) fn enter(&self, node: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command("enter");
        command.arg(node).arg(program);
        command
    }

    /// The output of a command on a node.
    pub(super) fn on(&self, node: &str, line: &[&str]) -> Result<String> {
        let (program, args) = line.split_first().context("an empty command")?;
        let said =
            finish(self.enter(node, program).args(args), KUBECTL_TIME).and_then(Finished::success);
        said.with_context(|| format!("{} on {node}", line.join(" ")))
    }

    /// Loads an image archive on every node.
    pub(super) fn load(&self, archive: &Path) -> Result<()> {
        finish(self.command("load").arg(archive), LOAD_TIME)?
            .success()
            .with_context(|| format!("load {}", archive.display()))?;
        Ok(())
    }

    /// Builds an image with one folder and loads it on every node.
    pub(super) fn image(&self, name: &str, folder: &Path, command: &[&str]) -> Result<()> {
        finish(
            self.command("image").arg(name).arg(folder).args(command),
            LOAD_TIME,
        )?
        .success()
        .with_context(|| format!("load image {name}"))?;
        Ok(())
    }

    /// Restarts kube-apiserver with these flags in addition to its own.
    pub(super) fn restart_apiserver(&self, flags: &[String]) -> Result<()> {
        finish(self.command("apiserver").args(flags), APISERVER_TIME)?
            .success()
            .context("restart kube-apiserver")?;
        Ok(())
    }
}

/// Removes what a killed run left: a cluster whose API server does not answer.
///
/// # Errors
///
/// If a cluster is up.
fn remove_killed(program: &Path) -> Result<()> {
    let ask = |args: &[&str]| finish(Command::new(program).args(args), DOWN_TIME);
    if !ask(&["env"])?.status.success() {
        return Ok(());
    }
    ensure!(
        !ask(&["kubectl", "get", "--raw", "/readyz"])?
            .status
            .success(),
        "a cluster is up: end what uses it, then run `{} down`",
        program.display()
    );
    progress::run(
        "remove what a killed run left of its cluster",
        Command::new(program).arg("down"),
    )?;
    Ok(())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.at_end == AtEnd::Keep {
            progress::say(&format!(
                "the cluster stays up; `{} down` takes it down",
                self.program.display()
            ));
            return;
        }
        progress::say("==> take the cluster down");
        if let Err(error) = take_down(&mut self.command("down")) {
            eprintln!("error: {error:#}");
        }
    }
}

/// Does not use [`finish`], which ends at once after Ctrl-C.
fn take_down(down: &mut Command) -> Result<()> {
    let mut bounded = Command::new("timeout");
    bounded
        .arg("--kill-after=10")
        .arg(DOWN_TIME.as_secs().to_string())
        .arg(down.get_program())
        .args(down.get_args());
    let done = bounded.output().context("take the cluster down")?;
    if !done.status.success() {
        bail!(
            "take the cluster down: {}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(())
}

/// Parses `NAME=value` and `NAME="several words"`, several per line.
fn variables(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(char::is_whitespace).unwrap_or((after, "")),
        };
        found.insert(name.to_owned(), value.to_owned());
        rest = next.trim_start();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_with_several_on_a_line() {
        let found = variables(
            "CK_DIR=/run/ck\nCK_NODES=\"master edge-1\"\nCK_MASTER_PID=7 \
             CK_MASTER_CGROUP=/c/cloud\n",
        );
        let expected = [
            ("CK_DIR", "/run/ck"),
            ("CK_MASTER_CGROUP", "/c/cloud"),
            ("CK_MASTER_PID", "7"),
            ("CK_NODES", "master edge-1"),
        ];
        assert_eq!(
            found,
            expected
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        );
    }
}
