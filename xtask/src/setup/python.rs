//! A Python with the stock gRPC client, for the test that any gRPC client can call an agent.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::{progress, workspace};

/// grpcio is the client; grpcio-tools compiles the protos for it.
const PACKAGES: [&str; 2] = ["grpcio", "grpcio-tools"];

fn folder() -> PathBuf {
    workspace::tools_dir().join("python")
}

fn marker() -> PathBuf {
    folder().join("culvert-complete")
}

/// The interpreter, if it is installed with its packages.
pub fn interpreter() -> Option<PathBuf> {
    marker().is_file().then(|| folder().join("bin/python"))
}

/// Creates the virtual environment unless it exists.
pub(super) fn install() -> Result<()> {
    if interpreter().is_some() {
        return Ok(());
    }
    let mut venv = Command::new("python3");
    progress::run(
        "python3 -m venv",
        venv.args(["-m", "venv", "--clear"]).arg(folder()),
    )?;
    let mut pip = Command::new(folder().join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ])
    .args(PACKAGES);
    progress::run(&format!("pip install {}", PACKAGES.join(" ")), &mut pip).context(
        "the test with a stock gRPC client needs PyPI, or a pip configured for a mirror of it",
    )?;
    std::fs::write(marker(), "").context("write the marker of the Python environment")
}
