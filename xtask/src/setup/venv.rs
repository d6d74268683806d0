//! Python environments with packages of PyPI, under `target/tools`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::{progress, workspace};

/// The stock gRPC client, for the test that any gRPC client can call an agent. grpcio-tools
/// compiles the protos for it.
pub(super) const GRPC: Venv = Venv {
    folder: "python",
    packages: &["grpcio", "grpcio-tools"],
};

/// An environment with packages.
#[derive(Clone, Copy)]
pub(crate) struct Venv {
    pub(crate) folder: &'static str,
    pub(crate) packages: &'static [&'static str],
}

impl Venv {
    fn path(self) -> PathBuf {
        workspace::tools_dir().join(self.folder)
    }

    /// What the environment was made with.
    fn marker(self) -> PathBuf {
        self.path().join("culvert-complete")
    }

    /// The interpreter, if it is installed with these packages.
    pub(crate) fn interpreter(self) -> Option<PathBuf> {
        let made_with = std::fs::read_to_string(self.marker()).ok()?;
        if made_with == self.packages.join(" ") {
            Some(self.path().join("bin/python"))
        } else {
            None
        }
    }

    /// Creates the environment unless it exists. Returns its interpreter.
    pub(crate) fn install(self) -> Result<PathBuf> {
        if let Some(interpreter) = self.interpreter() {
            return Ok(interpreter);
        }
        let mut venv = Command::new("python3");
        progress::run(
            "python3 -m venv",
            venv.args(["-m", "venv", "--clear"]).arg(self.path()),
        )?;
        let interpreter = self.path().join("bin/python");
        let packages = self.packages.join(" ");
        let mut pip = Command::new(&interpreter);
        pip.args(["-m", "pip", "install", "--quiet"])
            .arg("--disable-pip-version-check")
            .args(self.packages);
        progress::run(&format!("pip install {packages}"), &mut pip)
            .context("this needs PyPI, or a pip configured for a mirror of it")?;
        std::fs::write(self.marker(), packages).context("write the marker of the environment")?;
        Ok(interpreter)
    }
}

/// Whether Python has what makes an environment. Debian has that in a package of its own.
pub(super) fn can_be_made() -> bool {
    let mut python = Command::new("python3");
    let done = python.args(["-c", "import ensurepip"]).output();
    done.is_ok_and(|done| done.status.success())
}

/// The interpreter with the stock gRPC client, if it is installed.
pub fn python_with_grpc() -> Option<PathBuf> {
    GRPC.interpreter()
}
