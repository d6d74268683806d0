//! What is needed of another processor, from Debian's packages: libraries, and the emulator that
//! runs its programs. They are unpacked under `target/tools`; this machine stays as it is.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

use super::Processor;
use crate::setup::apt;

/// How the names of [`marker`]s begin.
const MARKER: &str = "culvert-has-";

/// A folder with packages of a processor, named as for `apt-get download`.
pub(crate) fn tree(processor: Processor, packages: &[&str]) -> Result<PathBuf> {
    let folder = workspace::tools_dir().join(processor.name());
    if has_other_version(&folder, packages)? {
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let mut missing = packages.to_vec();
    missing.retain(|package| !marker(&folder, package).is_file());
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
        std::fs::write(marker(&folder, package), "").context("write a marker")?;
    }
    Ok(folder)
}

/// The file that says that a package was unpacked.
fn marker(folder: &Path, package: &str) -> PathBuf {
    folder.join(format!("{MARKER}{package}"))
}

/// Whether one of the packages, where it has a version, was unpacked in another one.
fn has_other_version(folder: &Path, packages: &[&str]) -> Result<bool> {
    let entries = match folder.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.with_context(|| format!("read {}", folder.display()))?,
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(package) = name.strip_prefix(MARKER) else {
            continue;
        };
        let Some((unpacked, version)) = package.split_once('=') else {
            continue;
        };
        for package in packages {
            if let Some((wanted, its_version)) = package.split_once('=')
                && wanted == unpacked
                && its_version != version
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_of_a_package_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let has_other = |packages: &[&str]| has_other_version(folder.path(), packages).unwrap();
        std::fs::write(folder.path().join("culvert-has-libstd=1.96"), "").unwrap();
        std::fs::write(folder.path().join("culvert-has-libc6"), "").unwrap();
        assert!(!has_other(&["libstd=1.96", "libc6", "libmnl0"]));
        assert!(has_other(&["libc6", "libstd=1.97"]));
        assert!(!has_other_version(&folder.path().join("none"), &["libstd=1"]).unwrap());
    }
}
