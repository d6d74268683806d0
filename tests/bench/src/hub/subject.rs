//! The ways to the API server that are measured.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use culvert_lab::process::{Process, bound};
use culvert_lab::workspace;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// Nothing in between, by HTTP/1.1 as the clients of the others.
    Direct,
    /// Nothing in between, by HTTP/2, which kubelet and client-go speak.
    DirectHttp2,
    /// `culvert-hub`.
    Hub,
    /// The program that [`super::yurthub::PROGRAM`] names.
    YurtHub,
}

impl Subject {
    /// All of them, in the order of the columns.
    pub(super) const ALL: [Self; 4] = [Self::Direct, Self::DirectHttp2, Self::Hub, Self::YurtHub];

    /// Its name in the JSON and the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DirectHttp2 => "direct_http2",
            Self::Hub => "hub",
            Self::YurtHub => "yurthub",
        }
    }
}

/// A program between the clients and the API server, ready to start.
pub(super) struct Prepared {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// For the load.
    pub(super) target: PathBuf,
}

/// The running program. Dropping it ends it.
pub(super) struct Between {
    prepared: Prepared,
    process: Process,
}

impl Prepared {
    pub(super) fn start(self) -> Result<Between> {
        Ok(Between {
            process: self.run()?,
            prepared: self,
        })
    }

    fn run(&self) -> Result<Process> {
        // The log is not on the disk that is measured.
        let logs = workspace::target_dir().join("bench-hub");
        let command: &mut Command = &mut bound(&self.program);
        Process::start(self.name, &logs, command.args(&self.args))
    }
}

impl Between {
    pub(super) fn target(&self) -> PathBuf {
        self.prepared.target.clone()
    }

    pub(super) fn process(&mut self) -> Result<&Process> {
        self.process.check()?;
        Ok(&self.process)
    }

    /// Kills it, starts it again with the same disk, and returns when that was.
    pub(super) fn crash(&mut self) -> Result<Instant> {
        self.process.kill()?;
        let started = Instant::now();
        self.process = self.prepared.run()?;
        Ok(started)
    }
}
