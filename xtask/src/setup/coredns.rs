//! CoreDNS, compiled from its Go module with only the plugins in docs/dns.md. With all plugins,
//! which need the SDKs of several clouds, the compilation takes many times as long.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::{progress, workspace};

/// Its `go.mod` names the version: the oldest that docs/dns.md allows, which is the first with
/// `failover`.
const SOURCE: &str = "xtask/src/setup/coredns";

/// The program, if it is installed.
pub fn program() -> Option<PathBuf> {
    let program = workspace::tools_dir().join("bin/coredns");
    program.is_file().then_some(program)
}

/// Compiles it into `target/tools` unless it is there.
pub(super) fn install() -> Result<()> {
    if program().is_some() {
        return Ok(());
    }
    ensure!(
        workspace::find_program("go").is_some(),
        "CoreDNS is compiled by Go, which is not installed: with it, `go build` in {SOURCE}"
    );
    let mut command = Command::new("go");
    command
        .args(["build", "-trimpath", "-buildvcs=false", "-o"])
        .arg(workspace::tools_dir().join("bin/coredns"));
    command
        .arg(".")
        .current_dir(workspace::root().join(SOURCE))
        .env_remove("GOFLAGS");
    progress::run("compile CoreDNS", &mut command).map(drop)
}
