//! The programs of the images: static executables, or those of the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, workspace};

use crate::build::Build;
use crate::processor::toolchain::Toolchain;
use crate::processor::{self, Processor};
use crate::setup::apt;
use crate::test::suite;

/// A compiled program.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) processor: Processor,
    pub(super) path: PathBuf,
    pub(super) linked: Linked,
}

/// The libraries of a compiled program.
#[derive(Clone, Copy)]
pub(super) enum Linked {
    /// musl is in the program.
    Musl,
    /// glibc is in the program.
    Glibc,
    /// The program loads them from files.
    Libraries,
}

/// The profile of the tests.
pub(super) const DEV: &str = "dev";

/// What its image has.
#[derive(Clone, Copy)]
pub(super) enum Contents {
    /// The program alone.
    Program,
    /// Also `culvert`, which people run there.
    WithCulvert,
    /// Also `nft`, which the program runs.
    WithNft,
}

/// The name of each program. The hub has no image: it runs before kubelet. `culvert` is in the
/// proxy's, and people run it on their own machines.
const PROGRAMS: [(&str, Option<Contents>); 5] = [
    ("culvert", None),
    ("culvert-proxy", Some(Contents::WithCulvert)),
    ("culvert-redirector", Some(Contents::WithNft)),
    ("culvert-agent", Some(Contents::Program)),
    ("culvert-hub", None),
];

/// The programs that have an image, and what it has.
pub(super) fn with_image() -> Vec<(&'static str, Contents)> {
    let mut programs = Vec::new();
    for (name, image) in PROGRAMS {
        if let Some(contents) = image {
            programs.push((name, contents));
        }
    }
    programs
}

/// Compiles them for a processor.
pub(super) fn build(profile: &str, processor: Processor) -> Result<Vec<Program>> {
    if profile == DEV {
        of_tests(processor)
    } else {
        static_programs(profile, processor)
    }
}

/// The programs of the tests without their symbols: they need not be compiled a second time.
fn of_tests(processor: Processor) -> Result<Vec<Program>> {
    ensure!(
        processor == Processor::here()?,
        "images of profile {DEV} are for this machine: leave --processor out"
    );
    progress::run(
        "compile the programs of the tests (minutes, the first time)",
        &mut suite::programs(),
    )?;
    let folder = workspace::target_dir().join("image").join(DEV);
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    PROGRAMS
        .into_iter()
        .map(|(name, _)| {
            let path = folder.join(name);
            workspace::strip_binary(name, &path)?;
            Ok(Program {
                name,
                processor,
                path,
                linked: Linked::Libraries,
            })
        })
        .collect()
}

/// Compiles static ones in a separate target folder, because their flags differ from the workspace's.
fn static_programs(profile: &str, processor: Processor) -> Result<Vec<Program>> {
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
    if let Ok(of) = Build::of_work_tree() {
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
    let built = folder.join(&target).join(profile);
    let linked = if target.ends_with("-gnu") {
        Linked::Glibc
    } else {
        Linked::Musl
    };
    PROGRAMS
        .into_iter()
        .map(|(name, _)| {
            Ok(Program {
                name,
                processor,
                path: checked(&built, name)?,
                linked,
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
