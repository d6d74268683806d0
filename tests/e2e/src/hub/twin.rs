//! A second control plane on the master, and the node is led to it in place of the real one: an etcd
//! that was restored from a copy, or another cluster behind the address.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::{progress, wait, workspace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::NODE;
use super::node::argument;
use crate::cluster::MASTER;
use crate::processes::{self, Process};
use crate::world::World;

const ETCD: &str = "etcd";
const APISERVER: &str = "kube-apiserver";
/// The ports of the second ones.
const CLIENTS: &str = "http://127.0.0.1:23790";
const PEERS: &str = "http://127.0.0.1:23800";
const PORT: u16 = 6444;
/// The port of the real API server.
const REAL_PORT: u16 = 6443;
/// Half a minute is usual.
const READY: Duration = Duration::from_mins(4);

/// What etcd has, as of one moment.
pub(super) struct Copy {
    folder: PathBuf,
}

/// A control plane.
pub(super) struct Twin {
    programs: Vec<Vec<String>>,
    pub(super) audit_log: PathBuf,
}

/// Its certificate.
pub(super) struct Serving {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// Copies etcd's files while it stands still: what a backup has.
pub(super) fn copy(world: &World) -> Result<Copy> {
    let etcd = process(world, ETCD)?;
    let data = argument(&etcd.line, &["--data-dir"]).context("etcd has no --data-dir")?;
    let copy = Copy {
        folder: world.file("hub-etcd-copy"),
    };
    let pid = Pid::from_raw(etcd.pid);
    kill(pid, Signal::SIGSTOP).context("stop etcd")?;
    let copied = workspace::output(Command::new("cp").args(["-a", data]).arg(&copy.folder));
    kill(pid, Signal::SIGCONT).context("let etcd go on")?;
    copied.map(drop).context("copy etcd's files").map(|()| copy)
}

impl Twin {
    /// Starts one with these contents, or with none.
    pub(super) fn start(
        world: &World,
        copy: Option<&Copy>,
        serving: Option<&Serving>,
    ) -> Result<Self> {
        let name = if copy.is_some() { "copy" } else { "empty" };
        let data = world.file(&format!("hub-etcd-{name}-used"));
        if let Some(copy) = copy {
            workspace::output(Command::new("cp").arg("-a").arg(&copy.folder).arg(&data))?;
        }
        let audit_log = world.file(&format!("hub-audit-{name}.log"));
        let twin = Self {
            programs: vec![
                etcd(process(world, ETCD)?.line, &data),
                apiserver(process(world, APISERVER)?.line, &audit_log, serving),
            ],
            audit_log,
        };
        let log = world.file(&format!("hub-twin-{name}.log"));
        for line in &twin.programs {
            processes::start(&world.cluster, MASTER, line, &log)?;
        }
        wait::until("the second API server is ready", READY, || {
            let ready = twin.ask(world, &["get", "--raw", "/readyz"]);
            ready.map(drop).with_context(|| progress::tail(&log, 3))
        })?;
        Ok(twin)
    }

    /// The output of kubectl.
    pub(super) fn ask(&self, world: &World, args: &[&str]) -> Result<String> {
        let address = world.cluster.variable_of(MASTER, "ADDRESS")?;
        let server = format!("https://{address}:{PORT}");
        world.cluster.ask(&[&["--server", &server], args].concat())
    }

    /// Ends it.
    pub(super) fn stop(self, world: &World) -> Result<()> {
        for process in processes::of_node(&world.cluster, MASTER)? {
            if self.programs.contains(&process.line) {
                kill(Pid::from_raw(process.pid), Signal::SIGKILL).context("end the second one")?;
            }
        }
        Ok(())
    }
}

/// The second etcd's command line, of the real one's.
fn etcd(mut line: Vec<String>, data: &Path) -> Vec<String> {
    set(&mut line, "--data-dir", &text(data));
    for flag in ["--listen-client-urls", "--advertise-client-urls"] {
        set(&mut line, flag, CLIENTS);
    }
    set(&mut line, "--listen-peer-urls", PEERS);
    line
}

/// The second API server's command line, of the real one's.
fn apiserver(mut line: Vec<String>, audit_log: &Path, serving: Option<&Serving>) -> Vec<String> {
    set(&mut line, "--etcd-servers", CLIENTS);
    set(&mut line, "--secure-port", &PORT.to_string());
    set(&mut line, "--audit-log-path", &text(audit_log));
    if let Some(serving) = serving {
        set(&mut line, "--tls-cert-file", &text(&serving.certificate));
        set(&mut line, "--tls-private-key-file", &text(&serving.key));
    }
    line
}

/// Leads new connections of the node to the second API server.
pub(super) fn lead_there(world: &World) -> Result<()> {
    let address = world.cluster.variable_of(MASTER, "ADDRESS")?;
    let rules = format!(
        "table ip culvert_e2e_twin {{
            chain out {{ type nat hook output priority -150; ip daddr {address} tcp dport {REAL_PORT} dnat to {address}:{PORT}; }}
        }}"
    );
    world.cluster.on(NODE, &["nft", &rules]).map(drop)
}

/// Leads them to the real one again.
pub(super) fn lead_back(world: &World) -> Result<()> {
    let delete = ["nft", "delete", "table", "ip", "culvert_e2e_twin"];
    world.cluster.on(NODE, &delete).map(drop)
}

/// A program of the real control plane.
fn process(world: &World, program: &str) -> Result<Process> {
    let mut processes = processes::of_node(&world.cluster, MASTER)?.into_iter();
    let found = processes.find(|it| it.program() == program);
    found.with_context(|| format!("{MASTER} has no process {program}"))
}

/// Gives a flag this value, whether the line has it or not.
fn set(line: &mut Vec<String>, flag: &str, value: &str) {
    for number in 0..line.len() {
        if line[number] == flag && number + 1 < line.len() {
            value.clone_into(&mut line[number + 1]);
            return;
        }
        if line[number].starts_with(&format!("{flag}=")) {
            line[number] = format!("{flag}={value}");
            return;
        }
    }
    line.push(format!("{flag}={value}"));
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_replaced_in_either_form_or_added() {
        let mut line = ["etcd", "--a", "1", "--b=2"].map(str::to_owned).to_vec();
        for flag in ["--a", "--b", "--c"] {
            set(&mut line, flag, "3");
        }
        assert_eq!(line, ["etcd", "--a", "3", "--b=3", "--c=3"]);
    }
}
