//! kustomize, compiled from its Go module. It renders the manifests of `deploy/`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::{progress, workspace};

/// Pinned, because other versions may render other bytes.
const VERSION: &str = "v5.6.0";

/// The program, if it is installed.
pub fn program() -> Option<PathBuf> {
    let program = workspace::tools_dir().join("bin/kustomize");
    program.is_file().then_some(program)
}

/// Compiles it into `target/tools` unless it is there.
pub(super) fn install() -> Result<()> {
    if program().is_some() {
        return Ok(());
    }
    let module = format!("sigs.k8s.io/kustomize/kustomize/v5@{VERSION}");
    let go = workspace::find_program("go");
    ensure!(
        go.is_some(),
        "kustomize is compiled by Go, which is not installed: with it, `go install {module}`"
    );
    let mut command = Command::new("go");
    command
        .args(["install", &module])
        .env("GOBIN", workspace::tools_dir().join("bin"))
        .env_remove("GOFLAGS");
    progress::run(
        &format!("compile kustomize {VERSION}"),
        command.current_dir("/"),
    )
    .map(drop)
}
