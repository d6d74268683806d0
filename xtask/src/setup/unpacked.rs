//! Stock programs of Debian that the demo and the tests run, unpacked under `target/tools` and
//! never installed.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use super::apt;
use crate::workspace;

/// A program unpacked from its Debian package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// The monitoring server.
    Prometheus,
    /// The exporter of a node's metrics.
    NodeExporter,
    /// The resolver of hosts with systemd.
    SystemdResolved,
}

impl Unpacked {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Prometheus, Self::NodeExporter, Self::SystemdResolved];

    /// The package with the program, and those that must be of its version.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Prometheus => &["prometheus"],
            Self::NodeExporter => &["prometheus-node-exporter"],
            Self::SystemdResolved => &["systemd-resolved", "libsystemd-shared"],
        }
    }

    /// The top of the unpacked package.
    pub fn folder(self) -> PathBuf {
        workspace::tools_dir().join(self.packages()[0])
    }

    /// The program.
    pub fn program(self) -> PathBuf {
        self.folder().join(match self {
            Self::Prometheus => "usr/bin/prometheus",
            Self::NodeExporter => "usr/bin/prometheus-node-exporter",
            Self::SystemdResolved => "lib/systemd/systemd-resolved",
        })
    }

    /// Whether it is unpacked.
    pub fn is_there(self) -> bool {
        self.program().is_file()
    }

    /// What its `LD_LIBRARY_PATH` has to be: libraries of other versions may be installed.
    pub fn libraries(self) -> PathBuf {
        self.folder().join(format!(
            "usr/lib/{}-linux-gnu/systemd",
            std::env::consts::ARCH
        ))
    }

    pub(super) fn install(self) -> Result<()> {
        if self.is_there() {
            return Ok(());
        }
        let program = self.program();
        // The package with the program comes last: once it is there, all are.
        for package in self.packages().iter().rev() {
            ensure!(
                apt::is_there(),
                "tests and the demo need {package}: put the program at {}",
                program.display()
            );
            apt::unpack(package, &self.folder())?;
        }
        ensure!(
            self.is_there(),
            "package {} has no {}",
            self.packages()[0],
            program.display()
        );
        if !self.starts() {
            // For the libraries that it depends on, which a machine without systemd lacks.
            apt::install(&["libsystemd-shared"])?;
        }
        Ok(())
    }

    fn starts(self) -> bool {
        let mut command = Command::new(self.program());
        let done = command
            .arg("--version")
            .env("LD_LIBRARY_PATH", self.libraries())
            .output();
        done.is_ok_and(|done| done.status.success())
    }
}
