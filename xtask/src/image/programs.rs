//! The programs, compiled as static executables.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, workspace};

use crate::dist::build::Build;
use crate::processor::toolchain::Toolchain;
use crate::processor::{self, Processor};
use crate::setup::apt;

/// A compiled program.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) processor: Processor,
    pub(super) path: PathBuf,
    pub(super) has_glibc: bool,
}

/// What its image has.
#[derive(Clone, Copy)]
pub(super) enum Contents {
    /// The program alone.
    Program,
    /// Also `nft`, which the program runs.
    WithNft,
}

/// The name of each program. The hub has no image: it runs before kubelet.
const PROGRAMS: [(&str, Option<Contents>); 4] = [
    ("culvert-proxy", Some(Contents::Program)),
    ("culvert-redirector", Some(Contents::WithNft)),
    ("culvert-agent", Some(Contents::Program)),
    ("culvert-hub", None),
];

/// The programs that have an image, and what it has.
pub(super) fn with_image() -> impl Iterator<Item = (&'static str, Contents)> {
    let named = |(name, image): (&'static str, Option<Contents>)| Some((name, image?));
    PROGRAMS.into_iter().filter_map(named)
}

/// Compiles them for a processor, in a separate target folder, because their flags differ from the
/// workspace's.
pub(super) fn build(profile: &str, processor: Processor) -> Result<Vec<Program>> {
    let is_foreign = processor != Processor::here()?;
    let target = if is_foreign {
        processor.target().to_owned()
    } else {
        target()?
    };
    let toolchain = Toolchain::of(processor)?;
    let folder = workspace::target_dir().join("image");
    let mut command = toolchain.reproducible_cargo(profile, "-C target-feature=+crt-static")?;
    command
        .args([
            "build",
            "--locked",
            "--bins",
            "--profile",
            profile,
            "--target",
            &target,
            "--target-dir",
        ])
        .arg(&folder);
    for (name, _) in PROGRAMS {
        command.args(["--package", name]);
    }
    // Others are for tests: a commit alone must not compile them again.
    if profile == "release"
        && let Ok(of) = Build::of_work_tree()
    {
        command.env("CULVERT_BUILD", of.program_version());
    }
    if is_foreign {
        let variable = target.to_uppercase().replace('-', "_");
        command.env(
            format!("CARGO_TARGET_{variable}_LINKER"),
            cross_compiler(processor)?,
        );
    }
    progress::run(
        &format!("compile static programs for {target} (minutes, the first time)"),
        &mut command,
    )?;
    let built = folder
        .join(&target)
        .join(if profile == "dev" { "debug" } else { profile });
    PROGRAMS
        .into_iter()
        .map(|(name, _)| {
            Ok(Program {
                name,
                processor,
                path: checked(&built, name)?,
                has_glibc: target.ends_with("-gnu"),
            })
        })
        .collect()
}

/// Debian's gcc for a processor, with a static glibc. Installs them if one is missing.
fn cross_compiler(processor: Processor) -> Result<PathBuf> {
    let system = format!("{}-linux-gnu", processor.name());
    let program = format!("{system}-gcc");
    let library = Path::new("/usr").join(&system).join("lib/libc.a");
    if workspace::find_program(&program).is_none() || !library.is_file() {
        ensure!(
            apt::is_there(),
            "{program} or {} is missing: install it",
            library.display()
        );
        let compiler = format!("gcc-{}", system.replace('_', "-"));
        let glibc = format!("libc6-dev-{}-cross", processor.debian());
        apt::install(&[&compiler, &glibc])?;
    }
    workspace::find_program(&program).with_context(|| format!("no {program} in PATH"))
}

/// The path of a program that loads no library.
fn checked(built: &Path, name: &str) -> Result<PathBuf> {
    let path = built.join(name);
    let libraries = processor::libraries(&path)?;
    ensure!(
        libraries.is_empty(),
        "{} loads {libraries:?}",
        path.display()
    );
    Ok(path)
}

/// For this machine musl, if compiler and linker support it. Otherwise glibc, whose `getaddrinfo` has
/// had files and DNS built in since 2.34.
fn target() -> Result<String> {
    let machine = std::env::consts::ARCH;
    let musl = format!("{machine}-unknown-linux-musl");
    let library = workspace::output(Command::new("rustc").args([
        "--print",
        "target-libdir",
        "--target",
        &musl,
    ]))?;
    let has_musl =
        Path::new(library.trim()).is_dir() && workspace::find_program("musl-gcc").is_some();
    Ok(if has_musl {
        musl
    } else {
        format!("{machine}-unknown-linux-gnu")
    })
}
