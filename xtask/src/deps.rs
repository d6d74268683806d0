//! `cargo xtask deps`: checks dependencies against `deny.toml`, and finds unused ones.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, workspace};
use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::cargo_tool;

const CARGO_DENY: &str = "0.20.2";
const CARGO_MACHETE: &str = "0.9.2";

/// The file with the digest of what was checked last, in the top folder.
const CHECKED: &str = "deny.checked";

/// When to check.
#[derive(clap::Args)]
pub struct Args {
    /// Check nothing if the manifests, the lock file and deny.toml are those of the last check that
    /// passed, as deny.checked says
    #[arg(long)]
    if_changed: bool,
}

/// Runs both checks. Advisories are not checked, because their database is on the internet; `cargo
/// deny check` does that.
///
/// # Errors
/// `deny.toml` does not allow a licence, crate or source, or a dependency is unused.
pub fn run(args: &Args) -> Result<()> {
    let digest = digest()?;
    let checked = workspace::root().join(CHECKED);
    if args.if_changed && std::fs::read_to_string(&checked).is_ok_and(|text| text == digest) {
        progress::say("deps: nothing has changed since the last check");
        return Ok(());
    }
    let deny = cargo_tool::program("cargo-deny", CARGO_DENY)?;
    check(Command::new(deny).args(["check", "bans", "licenses", "sources"]))?;
    let machete = cargo_tool::program("cargo-machete", CARGO_MACHETE)?;
    check(Command::new(machete).arg("--with-metadata"))?;
    std::fs::write(&checked, digest).with_context(|| format!("write {}", checked.display()))
}

fn check(command: &mut Command) -> Result<()> {
    let status = command.current_dir(workspace::root()).status()?;
    ensure!(status.success(), "{command:?} found what it prints above");
    Ok(())
}

/// The digest of the names and contents of all files that decide about dependencies.
fn digest() -> Result<String> {
    let root = workspace::root();
    let mut files = manifests()?;
    for file in ["Cargo.toml", "Cargo.lock", "deny.toml"] {
        files.push(root.join(file));
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let bytes = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        // The folder of the work tree is another one elsewhere.
        let name = file.strip_prefix(&root).unwrap_or(&file);
        hash.update(format!("{} {}\n", name.display(), bytes.len()));
        hash.update(bytes);
    }
    Ok(HEXLOWER.encode(&hash.finalize()) + "\n")
}

/// The manifests of all packages of the workspace.
fn manifests() -> Result<Vec<PathBuf>> {
    let mut metadata = workspace::cargo();
    metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&workspace::output(&mut metadata)?)?;
    let packages = metadata["packages"].as_array();
    let mut manifests = Vec::new();
    for package in packages.context("cargo lists no packages")? {
        let manifest = package["manifest_path"].as_str().context("no manifest")?;
        manifests.push(manifest.into());
    }
    Ok(manifests)
}
