//! Debian's package tools, without prompts and without recommended packages.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::{progress, workspace};

/// Whether this system has Debian's package tools.
pub(super) fn is_there() -> bool {
    workspace::find_program("apt-get").is_some() && workspace::find_program("dpkg").is_some()
}

/// Refreshes the lists and installs packages.
pub(super) fn install(packages: &[&str]) -> Result<()> {
    progress::run("apt-get update", apt_get().arg("update"))?;
    let mut command = apt_get();
    command
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages);
    progress::run(
        &format!("apt-get install {}", packages.join(" ")),
        &mut command,
    )
    .context(
        "a package of that list does not exist on this release: the compiler for eBPF is in \
         Debian 12 with security updates; \
         elsewhere use `rustup toolchain install nightly --component rust-src` and `cargo install \
         bpf-linker --version 0.13.0`",
    )?;
    Ok(())
}

/// Downloads a package into a folder and unpacks it there, without root. Nothing is installed, and
/// no daemon starts.
pub(super) fn unpack(package: &str, folder: &Path) -> Result<()> {
    let downloads = folder.join("downloads");
    std::fs::create_dir_all(&downloads)
        .with_context(|| format!("create {}", downloads.display()))?;
    let mut download = apt_get();
    // As root, apt would download as the user _apt, who may not write here.
    download
        .args(["-o", "APT::Sandbox::User=root", "download", package])
        .current_dir(&downloads);
    progress::run(&format!("apt-get download {package}"), &mut download)?;
    let archive = std::fs::read_dir(&downloads)?
        .filter_map(Result::ok)
        .map(|file| file.path())
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&format!("{package}_")))
        })
        .with_context(|| {
            format!(
                "apt-get download {package} left no file in {}",
                downloads.display()
            )
        })?;
    workspace::output(Command::new("dpkg").arg("-x").arg(&archive).arg(folder))?;
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
