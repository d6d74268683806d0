//! `informers`: client-go's informers in a program of their own, which tests of the hub run.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::{progress, workspace};

/// Its `go.mod` names the version of client-go: one that streams its lists by default.
const SOURCE: &str = "hub/tests/client-go";

/// Whether it is compiled.
pub(super) fn is_there() -> bool {
    program().is_file()
}

fn program() -> PathBuf {
    workspace::tools_dir().join("bin/informers")
}

/// Compiles it into `target/tools` unless it is there.
pub(super) fn install() -> Result<()> {
    if is_there() {
        return Ok(());
    }
    ensure!(
        workspace::find_program("go").is_some(),
        "tests of the hub run client-go, which is compiled by Go, which is not installed: with \
         it, `go build` in {SOURCE}"
    );
    let mut command = Command::new("go");
    command
        .args(["build", "-trimpath", "-buildvcs=false", "-o"])
        .arg(program());
    command
        .arg(".")
        .current_dir(workspace::root().join(SOURCE))
        .env("CGO_ENABLED", "0")
        .env_remove("GOFLAGS");
    progress::run("compile informers of client-go", &mut command).map(drop)
}
