//! The programs, compiled as static executables.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::{progress, workspace};

use super::nft;

/// A compiled program.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
    pub(super) image: Option<Contents>,
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

/// Compiles them in a separate target folder, because their flags differ from the workspace's.
pub(super) fn build(profile: &str) -> Result<Vec<Program>> {
    let target = target()?;
    let folder = workspace::target_dir().join("image");
    let mut command = workspace::cargo();
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
    let remapped = workspace::remapped("--remap-path-prefix")?;
    command.env(
        "RUSTFLAGS",
        format!("-C target-feature=+crt-static {remapped}"),
    );
    command.env("CFLAGS", workspace::remapped("-ffile-prefix-map")?);
    // Incremental compilation would make the output depend on earlier compilations.
    command.env("CARGO_INCREMENTAL", "0");
    command.env("CULVERT_BPF_OBJECT", workspace::bpf_object());
    command.env(
        format!(
            "CARGO_PROFILE_{}_STRIP",
            profile.to_uppercase().replace('-', "_")
        ),
        "symbols",
    );
    progress::run(
        &format!("compile static programs for {target} (minutes, the first time)"),
        &mut command,
    )?;
    let built = folder
        .join(&target)
        .join(if profile == "dev" { "debug" } else { profile });
    PROGRAMS
        .into_iter()
        .map(|(name, image)| checked(&built, name, image))
        .collect()
}

fn checked(built: &Path, name: &'static str, image: Option<Contents>) -> Result<Program> {
    let path = built.join(name);
    ensure!(nft::is_static(&path)?, "{} is not static", path.display());
    Ok(Program { name, path, image })
}

/// musl, if compiler and linker support it. Otherwise glibc, whose `getaddrinfo` has had files and
/// DNS built in since 2.34.
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
