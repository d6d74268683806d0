//! How programs are started on a host of the lab, and how the load reaches what they lead to.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::culvert::link_sockets;
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::{wait, workspace};

/// Time for programs that start side by side on two cores.
const START_TIME: Duration = Duration::from_secs(20);

/// The endpoint that the load dials, and the processes on it.
pub(crate) struct Route {
    pub(crate) endpoint: String,
    pub(crate) pids: Vec<u32>,
}

/// Starts the bench's programs as processes of a host of the lab.
pub(crate) struct Starter<'lab> {
    pub(crate) site: &'lab Site,
    pub(crate) programs: PathBuf,
}

impl Starter<'_> {
    pub(crate) fn command(&self, program: &str) -> Command {
        self.site.command(self.programs.join(program))
    }

    /// Starts one of the bench's own programs, and waits until it listens on `port`.
    pub(crate) fn worker(&self, name: &str, port: u16, args: &[String]) -> Result<Process> {
        let mut command = self.command("culvert-bench");
        let mut process = self.site.start_process(name, command.args(args))?;
        wait::until(&format!("{name} listens on {port}"), START_TIME, || {
            process.check()?;
            let listening = self
                .site
                .output("ss", ["-Htln", "sport", "=", &format!(":{port}")])?;
            ensure!(!listening.is_empty(), "not yet");
            Ok(())
        })?;
        Ok(process)
    }

    /// The path of a file in the folder of the host.
    pub(crate) fn file(&self, name: &str) -> String {
        self.site.file(name).display().to_string()
    }

    /// Runs a `culvert` that asks the proxy with this control socket in the folder of the host.
    pub(crate) fn ask(&self, socket: &str, args: &[&str]) -> Result<String> {
        let folder = self.site.file(&format!("{socket}.run"));
        link_sockets(&folder, &[("control.sock", self.site.file(socket))])?;
        let mut command = self.command("culvert");
        command.args(["--local", "--run-dir"]).arg(folder);
        workspace::output(command.args(args))
    }

    pub(crate) fn output(&self, program: &str, args: &[String]) -> Result<String> {
        workspace::output(self.command(program).args(args))
    }
}
