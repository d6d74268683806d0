//! Stock programs of Debian that the demo and the tests run, unpacked under `target/tools` and never installed.

use std::path::PathBuf;

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
}

impl Unpacked {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Prometheus, Self::NodeExporter];

    /// The package, which has a program of the same name.
    fn package(self) -> &'static str {
        match self {
            Self::Prometheus => "prometheus",
            Self::NodeExporter => "prometheus-node-exporter",
        }
    }

    /// The top of the unpacked package.
    pub fn folder(self) -> PathBuf {
        workspace::tools_dir().join(self.package())
    }

    /// The program.
    pub fn program(self) -> PathBuf {
        self.folder().join("usr/bin").join(self.package())
    }

    /// Whether it is unpacked.
    pub fn is_there(self) -> bool {
        self.program().is_file()
    }

    pub(super) fn install(self) -> Result<()> {
        if self.is_there() {
            return Ok(());
        }
        let (package, program) = (self.package(), self.program());
        ensure!(apt::is_there(), "the demo needs {package}: put the program at {}", program.display());
        apt::unpack(package, &self.folder())?;
        ensure!(self.is_there(), "package {package} has no /usr/bin/{package}");
        Ok(())
    }
}
