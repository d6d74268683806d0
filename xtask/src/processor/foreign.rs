//! What is needed of another processor, from Debian's packages: libraries, and the emulator that
//! runs its programs. They are unpacked under `target/tools`; this machine stays as it is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

use super::Processor;
use crate::setup::apt;

/// A folder with packages of a processor, named as for `apt-get download`.
pub(crate) fn tree(processor: Processor, packages: &[&str]) -> Result<PathBuf> {
    let folder = workspace::tools_dir().join(processor.name());
    let marker = |package: &str| folder.join(format!("culvert-has-{package}"));
    let is_missing = |package: &&str| !marker(package).is_file();
    let missing: Vec<_> = packages.iter().copied().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(folder);
    }
    let architecture = processor.debian();
    ensure!(
        apt::is_there(),
        "{missing:?} of {architecture} are packages of Debian, and this is not Debian"
    );
    apt::unpack_foreign(architecture, &missing, &folder)?;
    for package in missing {
        std::fs::write(marker(package), "").context("write a marker")?;
    }
    Ok(folder)
}

/// The command that runs a program of a processor here.
pub(crate) fn command(processor: Processor, program: &Path) -> Result<Command> {
    let here = Processor::here()?;
    if processor == here {
        return Ok(Command::new(program));
    }
    let libraries = tree(processor, &["libc6"])?;
    let emulator = format!("usr/bin/qemu-{}-static", processor.qemu());
    let emulator = tree(here, &["qemu-user-static"])?.join(emulator);
    let mut command = Command::new(emulator);
    command.arg("-L").arg(libraries).arg(program);
    Ok(command)
}
