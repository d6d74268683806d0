//! Compiles the programs in Go.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use culvert_lab::go_program::{self, GoProgram};
use culvert_lab::{progress, workspace};

/// Prometheus discovers by nothing but Kubernetes. Any other discovery needs the SDKs of several
/// clouds, whose compilation takes many times as long.
const TAGS: &str = "remove_all_sd,enable_kubernetes_sd";

/// Compiles those of the programs that are not current.
pub(super) fn install(programs: &[GoProgram]) -> Result<()> {
    let mut stale = programs.to_vec();
    stale.retain(|program| !program.is_current());
    if stale.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = stale.iter().map(|program| program.name()).collect();
    let list = names.join(", ");
    ensure!(
        workspace::find_program("go").is_some(),
        "Go compiles {list}, and is not installed: install Go 1.21 or later"
    );
    if stale.contains(&GoProgram::MetricsServer) {
        copy_manifests()?;
    }
    let step = format!("compile {list} (minutes, the first time)");
    progress::run(&step, &mut build(&stale)?)?;
    for program in stale {
        let path = program.path();
        touch(&path).with_context(|| format!("touch {}", path.display()))?;
    }
    Ok(())
}

/// The command that compiles programs.
fn build(programs: &[GoProgram]) -> Result<Command> {
    // Go names the programs after their packages if it is given a folder.
    let folder = go_program::folder();
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let mut build = go();
    build
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"])
        .args(["-tags", TAGS, "-o"])
        .arg(folder)
        .args(programs.iter().map(|program| program.package()));
    Ok(build)
}

/// Go, in the folder of the module.
fn go() -> Command {
    let mut go = Command::new("go");
    go.current_dir(go_program::module())
        .env("CGO_ENABLED", "0")
        .env_remove("GOFLAGS");
    go
}

/// Go leaves a program as it is if a change of its source makes no difference to it.
fn touch(program: &Path) -> io::Result<()> {
    let file = File::options().append(true).open(program)?;
    file.set_modified(SystemTime::now())
}

/// Copies the manifests that are in metrics-server's module.
fn copy_manifests() -> Result<()> {
    let module = "sigs.k8s.io/metrics-server";
    let downloaded = workspace::output(go().args(["mod", "download", "-json", module]))
        .with_context(|| format!("download {module}"))?;
    let downloaded: serde_json::Value =
        serde_json::from_str(&downloaded).context("what Go says")?;
    let source = downloaded["Dir"].as_str().map(PathBuf::from);
    let source = source.with_context(|| format!("Go names no folder of {module}: {downloaded}"))?;
    let to = go_program::metrics_server_manifests();
    copy_files(&source.join("manifests/base"), &to)
        .with_context(|| format!("copy the manifests of {module} to {}", to.display()))
}

/// Copies the files of a folder.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for file in std::fs::read_dir(from)? {
        let file = file?;
        // Files in Go's cache are read-only, and so would be their copies.
        std::fs::write(to.join(file.file_name()), std::fs::read(file.path())?)?;
    }
    Ok(())
}
