//! The programs as users get them, for any distribution with glibc 2.17 on a processor.
//!
//! They are dynamic. A static program with glibc dies (`_dl_call_libc_early_init`) as soon as
//! `nsswitch.conf` names a service that it has to load, for instance systemd-resolved's, and the
//! host has another glibc. zig links against the symbols of an old glibc, and compiles the C of
//! dependencies with its own compiler and headers, so that the result does not depend on this
//! machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, workspace};

use super::package::Package;
use crate::build::Build;
use crate::cargo_tool;
use crate::processor::toolchain::Toolchain;
use crate::processor::{self, Processor};
use crate::setup::venv::Venv;

const ZIGBUILD: &str = "0.24.1";
/// The package of PyPI has the compiler as a program.
const ZIG: Venv = Venv {
    folder: "zig",
    packages: &["ziglang==0.17.1"],
};
/// The oldest that Rust's standard library supports.
const GLIBC: (u32, u32) = (2, 17);
/// What every glibc has.
const LIBRARIES: [&str; 8] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-armhf.so.3",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// Compiles the programs of packages. Returns where each is, by the name of its package.
pub(super) fn programs(
    build: &Build,
    processor: Processor,
    packages: &[&'static Package],
) -> Result<BTreeMap<&'static str, PathBuf>> {
    let folder = workspace::target_dir().join("dist");
    let target = processor.target();
    let (major, minor) = GLIBC;
    progress::run(
        &format!(
            "compile programs for {target}, glibc {major}.{minor} (a quarter of an hour, the first time)"
        ),
        cargo(build, processor, packages)?
            .arg("--target-dir")
            .arg(&folder),
    )?;
    let built = folder.join(target).join("release");
    packages
        .iter()
        .map(|package| {
            let program = built.join(package.name);
            check(&program, &build.program_version())
                .with_context(|| format!("check {}", program.display()))?;
            Ok((package.name, program))
        })
        .collect()
}

fn cargo(build: &Build, processor: Processor, packages: &[&Package]) -> Result<Command> {
    let zigbuild = cargo_tool::program("cargo-zigbuild", ZIGBUILD)?;
    let python = ZIG.install()?;
    let toolchain = Toolchain::of(processor)?;
    let mut command = toolchain.reproducible_cargo("release", "")?;
    let (major, minor) = GLIBC;
    command
        .args(["zigbuild", "--locked", "--release", "--bins", "--target"])
        .arg(format!("{}.{major}.{minor}", processor.target()))
        .env("PATH", workspace::path_with_folder_of(&zigbuild)?)
        .env("CARGO_ZIGBUILD_PYTHON_PATH", python)
        .env("CULVERT_BUILD", build.program_version())
        .env("SOURCE_DATE_EPOCH", &build.epoch);
    for package in packages {
        command.args(["--package", package.name]);
    }
    Ok(command)
}

/// Fails unless a program of any processor starts with the oldest glibc, and names its version.
fn check(program: &Path, version: &str) -> Result<()> {
    for name in processor::libraries(program)? {
        // It would have to be a dependency of the packages.
        ensure!(
            LIBRARIES.contains(&name.as_str()),
            "it loads {name}, which is not of glibc"
        );
    }
    let glibc = processor::glibc(program)?;
    ensure!(
        glibc.is_some_and(|glibc| glibc <= GLIBC),
        "it needs a glibc of {glibc:?}, and may need {GLIBC:?}"
    );
    let bytes = std::fs::read(program)?;
    let mut texts = bytes.windows(version.len());
    ensure!(
        texts.any(|text| text == version.as_bytes()),
        "it does not contain its version {version}"
    );
    Ok(())
}
