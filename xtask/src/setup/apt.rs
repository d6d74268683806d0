//! Debian's package tools, without prompts and without recommended packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::{progress, workspace};

/// Whether this system has Debian's package tools.
pub(crate) fn is_there() -> bool {
    workspace::find_program("apt-get").is_some() && workspace::find_program("dpkg").is_some()
}

/// Refreshes the lists and installs packages.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    ensure!(
        workspace::is_root(),
        "not root: run `apt-get update && apt-get install --no-install-recommends {list}` as root, \
         then this again"
    );
    progress::run("apt-get update", apt_get().arg("update"))?;
    let mut command = apt_get();
    command
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages);
    progress::run(&format!("apt-get install {list}"), &mut command).map(drop)
}

/// Downloads a package into a folder and unpacks it there, without root. Nothing is installed, and
/// no daemon starts.
pub(super) fn unpack(package: &str, folder: &Path) -> Result<()> {
    download(package, folder, &[])
}

/// The same for packages of another architecture. Lists of that architecture's packages are kept in
/// the folder, because those of the machine have only its own.
pub(crate) fn unpack_foreign(architecture: &str, packages: &[&str], folder: &Path) -> Result<()> {
    let lists = folder.join("lists");
    std::fs::create_dir_all(lists.join("partial"))
        .with_context(|| format!("create {}", lists.display()))?;
    let settings = [
        format!("APT::Architecture={architecture}"),
        format!("Dir::State::Lists={}", lists.display()),
        format!("Dir::Cache={}", lists.display()),
    ];
    let mut update = apt_get();
    with_settings(&mut update, &settings).arg("update");
    progress::run(&format!("apt-get update for {architecture}"), &mut update)?;
    for package in packages {
        download(package, folder, &settings)?;
    }
    Ok(())
}

fn download(package: &str, folder: &Path, settings: &[String]) -> Result<()> {
    let downloads = folder.join("downloads");
    if downloads.exists() {
        // An earlier version would be found too.
        std::fs::remove_dir_all(&downloads)?;
    }
    std::fs::create_dir_all(&downloads)
        .with_context(|| format!("create {}", downloads.display()))?;
    let mut download = apt_get();
    with_settings(&mut download, settings)
        .args(["download", package])
        .current_dir(&downloads);
    progress::run(&format!("apt-get download {package}"), &mut download)?;
    let archive = archive_of(package, &downloads)?;
    workspace::output(Command::new("dpkg").arg("-x").arg(&archive).arg(folder))?;
    Ok(())
}

/// The file `NAME_VERSION_ARCHITECTURE.deb` of a package.
fn archive_of(package: &str, downloads: &Path) -> Result<PathBuf> {
    let name = package.split('=').next().unwrap_or(package);
    let start = format!("{name}_");
    for file in std::fs::read_dir(downloads)?.flatten() {
        if file.file_name().to_string_lossy().starts_with(&start) {
            return Ok(file.path());
        }
    }
    bail!(
        "apt-get download {package} left no file in {}",
        downloads.display()
    );
}

fn with_settings<'a>(command: &'a mut Command, settings: &[String]) -> &'a mut Command {
    // As root, apt would download as the user _apt, who may not write here.
    command.args(["-o", "APT::Sandbox::User=root"]);
    for setting in settings {
        command.args(["-o", setting]);
    }
    command
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    // Another apt may be at work, such as the one that upgrades a new machine.
    command.args(["-o", "DPkg::Lock::Timeout=300"]);
    command
}
