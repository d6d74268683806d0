//! Compiles programs of other projects from their Go modules, in the folders of these modules:
//! their own `go.mod` and `go.sum` say what else is compiled.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::compiled::Compiled;
use culvert_lab::{progress, workspace};

/// Compiles a program, unless it exists.
pub(super) fn install(wanted: Compiled) -> Result<()> {
    if wanted.is_there() {
        return Ok(());
    }
    let (name, module) = (wanted.name(), wanted.module());
    ensure!(
        workspace::find_program("go").is_some(),
        "{name} is compiled by Go, which is not installed: install Go, or put a static {name} of \
         {module} at {}",
        wanted.program().display()
    );
    let source = download(module)?;
    if let Some(manifests) = wanted.manifests() {
        copy(&source.join(manifests), &wanted.folder().join("manifests"))?;
    }
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"])
        .args(["-tags", wanted.tags(), "-o"])
        .arg(wanted.program())
        .arg(format!("./cmd/{name}"))
        .current_dir(source)
        // A module's workspace has folders that the module itself leaves out.
        .envs([("CGO_ENABLED", "0"), ("GOWORK", "off")])
        .env_remove("GOFLAGS");
    progress::run(
        &format!("compile {module} (minutes, the first time)"),
        &mut go,
    )
    .map(drop)
}

/// Downloads a module; returns its folder in Go's cache.
fn download(module: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json", module])
        .current_dir("/")
        .env_remove("GOFLAGS");
    let said = workspace::output(&mut go).with_context(|| format!("download {module}"))?;
    let said: serde_json::Value = serde_json::from_str(&said).context("what Go says")?;
    let folder = said["Dir"].as_str();
    folder
        .map(PathBuf::from)
        .with_context(|| format!("Go names no folder of {module}: {said}"))
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = (|| {
        std::fs::create_dir_all(to)?;
        for file in std::fs::read_dir(from)? {
            let file = file?;
            // Files in Go's cache are read-only, and so would be their copies.
            std::fs::write(to.join(file.file_name()), std::fs::read(file.path())?)?;
        }
        anyhow::Ok(())
    })();
    copied.with_context(|| format!("copy {} to {}", from.display(), to.display()))
}
