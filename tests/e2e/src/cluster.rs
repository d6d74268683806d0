//! The real cluster, made by `cargo xtask cluster`, or by the program that `E2E_CLUSTER` names. The
//! commands of either are `up`, `env`, `kubectl ARGS`, `enter NODE COMMAND...`, `load ARCHIVE`,
//! `image NAME FOLDER COMMAND...`, `apiserver FLAGS` and `down`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::kubernetes::Release;
use culvert_lab::{progress, workspace};

use crate::command::{finish, output};

/// The environment variable that names a program in place of `cargo xtask cluster`.
const PROGRAM: &str = "E2E_CLUSTER";

/// The environment variable of `up` with the names of the nodes.
const NODES: &str = "NODES";

/// The environment variable of `up` that asks such a program for a kube-proxy on each node, unless
/// it is set otherwise.
const KUBE_PROXY: &str = "KUBE_PROXY";

/// The cloud node where the API server runs.
pub(super) const MASTER: &str = "master";
/// The cloud nodes. Each has a proxy and a redirector.
pub(super) const CLOUDS: [&str; 3] = [MASTER, "cloud-2", "cloud-3"];
/// The edge nodes.
pub(super) const EDGES: [&str; 3] = ["edge-1", "edge-2", "edge-3"];
/// Limit for kubectl commands that end by themselves, on two busy cores.
pub(super) const KUBECTL_TIME: Duration = Duration::from_secs(90);
/// Limit for loading images of 100 MB on six nodes.
const LOAD_TIME: Duration = Duration::from_mins(6);
/// Limit for a graceful end, which waits for watches, and a start.
const APISERVER_TIME: Duration = Duration::from_secs(200);
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
    maker: Maker,
    variables: BTreeMap<String, String>,
    at_end: AtEnd,
}

/// The program that makes clusters.
#[derive(Clone, Debug)]
pub(super) enum Maker {
    /// `cargo xtask cluster`, with this release of Kubernetes, or as the environment says.
    Own(Option<Release>),
    /// The one that the environment names.
    Other(PathBuf),
}

impl Maker {
    /// The one of this run.
    pub(super) fn find(release: Option<&Release>) -> Result<Self> {
        let program = std::env::var_os(PROGRAM).unwrap_or_default();
        if program.is_empty() {
            return Ok(Self::Own(release.cloned()));
        }
        let path = workspace::root().join(program);
        ensure!(
            path.is_file(),
            "{PROGRAM}: there is no program {}",
            path.display()
        );
        Ok(Self::Other(path))
    }

    /// One of its commands.
    fn command(&self, name: &str) -> Command {
        let mut command = match self {
            Self::Own(_) => {
                // The file of this program may be compiled again while it runs.
                let own = format!("/proc/{}/exe", std::process::id());
                let mut command = Command::new(own);
                command.arg("cluster");
                command
            }
            Self::Other(path) => Command::new(path),
        };
        command.arg(name);
        command
    }

    fn up(&self, apiserver_flags: &[String]) -> Command {
        let mut up = self.command("up");
        up.env("APISERVER_ARGS", apiserver_flags.join(" "))
            .env(NODES, [&CLOUDS[..], &EDGES].concat().join(" "));
        match self {
            Self::Own(Some(release)) => {
                up.args(["--kube", &release.to_string()]);
            }
            Self::Other(_) if std::env::var_os(KUBE_PROXY).is_none() => {
                up.env(KUBE_PROXY, "1");
            }
            Self::Own(None) | Self::Other(_) => {}
        }
        up
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(_) => f.write_str("cargo xtask cluster"),
            Self::Other(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Cluster {
    /// Creates a cluster.
    pub(super) fn up(maker: Maker, apiserver_flags: &[String], at_end: AtEnd) -> Result<Self> {
        remove_killed(&maker)?;
        let mut cluster = Self {
            maker,
            variables: BTreeMap::new(),
            at_end,
        };
        progress::run(
            "start a Kubernetes cluster",
            &mut cluster.maker.up(apiserver_flags),
        )?;
        cluster.variables =
            variables(&finish(&mut cluster.command("env"), KUBECTL_TIME)?.success()?);
        Ok(cluster)
    }

    /// One of the program's commands.
    fn command(&self, name: &str) -> Command {
        self.maker.command(name)
    }

    /// A variable from the output of `env`.
    pub(super) fn variable(&self, name: &str) -> Result<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("`{} env` prints no {name}", self.maker))
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
        output(&mut self.kubectl(args), deadline)
            .with_context(|| format!("kubectl {}", args.join(" ")))
    }

    /// An object as JSON.
    pub(super) fn json(&self, args: &[&str]) -> Result<serde_json::Value> {
        let text = self.ask(&[args, &["--output", "json"]].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("kubectl {}: this is not JSON: {text:.200}", args.join(" ")))
    }

    /// The minor version of the API server, such as 36 of 1.36.3.
    pub(super) fn minor_version(&self) -> Result<u32> {
        let version = self.ask(&["get", "--raw", "/version"])?;
        let version: serde_json::Value =
            serde_json::from_str(&version).with_context(|| format!("/version: {version}"))?;
        let minor = version["minor"].as_str().unwrap_or_default();
        let number = minor.trim_end_matches('+').parse();
        number.with_context(|| format!("/version: {version}"))
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
        let said = output(self.enter(node, program).args(args), KUBECTL_TIME);
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
fn remove_killed(maker: &Maker) -> Result<()> {
    // What was killed while it started has no variables yet. The project's own program removes that
    // too, and nothing if there is nothing.
    let may_be_there = match maker {
        Maker::Own(_) => true,
        Maker::Other(_) => finish(&mut maker.command("env"), DOWN_TIME)?
            .status
            .success(),
    };
    if !may_be_there {
        return Ok(());
    }
    let mut ready = maker.command("kubectl");
    ready.args(["get", "--raw", "/readyz"]);
    ensure!(
        !finish(&mut ready, DOWN_TIME)?.status.success(),
        "a cluster is up: end what uses it, then run `{maker} down`"
    );
    progress::run(
        "remove what a killed run may have left of its cluster",
        &mut maker.command("down"),
    )?;
    Ok(())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.at_end == AtEnd::Keep {
            progress::say(&format!(
                "the cluster stays up; `{} down` takes it down",
                self.maker
            ));
            return;
        }
        progress::say("==> take the cluster down");
        if let Err(error) = tear_down(&mut self.command("down")) {
            eprintln!("error: {error:#}");
        }
    }
}

/// Does not use [`finish`], which ends at once after Ctrl-C.
fn tear_down(down: &mut Command) -> Result<()> {
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
