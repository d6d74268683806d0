//! The ways to the API server that are measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use culvert_lab::process::{Process, bound};
use culvert_lab::{ports, workspace};
use serde_json::json;

use super::cluster::{Cluster, write_target};
use super::place::Place;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// Nothing in between.
    Direct,
    /// `culvert-hub`.
    Hub,
}

impl Subject {
    /// All of them, in the order of the columns.
    pub(super) const ALL: [Self; 2] = [Self::Direct, Self::Hub];

    /// Its name in the JSON and the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Hub => "hub",
        }
    }
}

/// A hub with a state of its own. Dropping it ends it.
pub(super) struct RunningHub {
    command: HubCommand,
    process: Process,
    /// For the load.
    pub(super) target: PathBuf,
}

struct HubCommand {
    program: PathBuf,
    folder: PathBuf,
    listen: String,
    admin_listen: String,
}

impl RunningHub {
    /// Starts one that knows nothing, installed for a kubelet as an operator does.
    pub(super) fn start(programs: &Path, place: &Place, cluster: &Cluster) -> Result<Self> {
        let folder = place.folder("hub")?;
        let command = HubCommand {
            program: programs.join("culvert-hub"),
            listen: ports::free_address()?.to_string(),
            admin_listen: ports::free_address()?.to_string(),
            folder,
        };
        let kubeconfig = cluster.copy_kubeconfig(&command.folder)?;
        let mut install = command.of(Command::new(&command.program), "install");
        workspace::output(install.arg("--kubelet-kubeconfig").arg(kubeconfig))?;
        let local = |name: &str| command.state().join("local").join(name);
        let target = write_target(
            &command.folder.join("target.json"),
            &json!({
                "address": command.listen,
                "authority": local("ca.crt"),
                "certificate": local("kubelet.crt"),
                "key": local("kubelet.key"),
            }),
        )?;
        Ok(Self {
            process: command.run()?,
            command,
            target,
        })
    }

    pub(super) fn process(&mut self) -> Result<&Process> {
        self.process.check()?;
        Ok(&self.process)
    }

    /// Kills it, starts it again with the same disk, and returns when that was.
    pub(super) fn crash(&mut self) -> Result<Instant> {
        self.process.kill()?;
        let started = Instant::now();
        self.process = self.command.run()?;
        Ok(started)
    }
}

impl HubCommand {
    fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    fn run(&self) -> Result<Process> {
        // The log is not on the disk that is measured.
        let logs = workspace::target_dir().join("bench-hub");
        Process::start(
            "culvert-hub",
            &logs,
            &mut self.of(bound(&self.program), "run"),
        )
    }

    fn of(&self, mut program: Command, command: &str) -> Command {
        program.args([command, "--listen", &self.listen]);
        program.args(["--admin-listen", &self.admin_listen]);
        program.arg("--state-dir").arg(self.state());
        let socket = self.folder.join("admin.sock");
        program.arg("--admin-socket").arg(socket);
        program
    }
}
