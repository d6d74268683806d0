//! What compiles for a processor. The pinned toolchain does, if it has the standard library of that
//! processor (`rustup target add`). Otherwise Debian's `rustc-web` does, which also compiles the
//! kernel programs: Debian has its standard library for all of its processors, and one of exactly
//! the same version is unpacked under `target/tools`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

use super::{Processor, foreign};

const RUSTC: &str = "/usr/bin/rustc";
const CARGO: &str = "/usr/bin/cargo";

/// A compiler that has the standard library of a processor.
pub(crate) enum Toolchain {
    /// That of `rust-toolchain.toml`.
    Pinned,
    /// Debian's, with the folder that has the standard library.
    Debian { sysroot: PathBuf },
}

impl Toolchain {
    /// The one for a processor. Unpacks a standard library if none is there.
    pub(crate) fn of(processor: Processor) -> Result<Self> {
        let mut rustc = Command::new("rustc");
        workspace::without_outer_cargo(&mut rustc)
            .args(["--print", "target-libdir", "--target"])
            .arg(processor.target())
            .current_dir(workspace::root());
        if Path::new(workspace::output(&mut rustc)?.trim()).is_dir() {
            return Ok(Self::Pinned);
        }
        let version = debian_version().with_context(|| {
            format!(
                "nothing here compiles for {0}: run `rustup target add {0}`, or on Debian 12 \
                 `cargo xtask setup`, which installs rustc-web",
                processor.target()
            )
        })?;
        let library = format!("libstd-rust-web-dev={version}");
        let sysroot = foreign::tree(processor, &[&library])?.join("usr");
        let libraries = sysroot.join("lib/rustlib").join(processor.target());
        ensure!(libraries.is_dir(), "{library} has another processor's");
        Ok(Self::Debian { sysroot })
    }

    /// The version of its compiler and of its standard library.
    pub(crate) fn version(&self) -> Result<String> {
        let mut rustc = Command::new(match self {
            Self::Pinned => "rustc",
            Self::Debian { .. } => RUSTC,
        });
        workspace::without_outer_cargo(&mut rustc).current_dir(workspace::root());
        let said = workspace::output(rustc.arg("-vV"))?;
        let version = said.lines().find_map(|line| line.strip_prefix("release: "));
        Ok(version.context("`rustc -vV` names no release")?.to_owned())
    }

    /// Its cargo, which runs in the workspace.
    pub(crate) fn cargo(&self) -> Command {
        match self {
            Self::Pinned => workspace::cargo(),
            Self::Debian { .. } => {
                let mut cargo = Command::new(CARGO);
                workspace::without_outer_cargo(&mut cargo)
                    .current_dir(workspace::root())
                    .env("RUSTC", RUSTC);
                cargo
            }
        }
    }

    /// The same for programs without symbols. Their bytes depend neither on this folder nor on
    /// earlier compilations. `flags` are for the compiler of Rust.
    pub(crate) fn reproducible_cargo(&self, profile: &str, flags: &str) -> Result<Command> {
        // RUSTFLAGS is not used for what runs during compilation.
        let sysroot = match self {
            Self::Pinned => String::new(),
            Self::Debian { sysroot } => format!("--sysroot={}", sysroot.display()),
        };
        let remapped = workspace::remapped("--remap-path-prefix")?;
        let strip = profile.to_uppercase().replace('-', "_");
        let mut cargo = self.cargo();
        cargo
            .env("RUSTFLAGS", format!("{remapped} {flags} {sysroot}").trim())
            .env("CFLAGS", workspace::remapped("-ffile-prefix-map")?)
            .env("CARGO_INCREMENTAL", "0")
            .env(format!("CARGO_PROFILE_{strip}_STRIP"), "symbols")
            .env("CULVERT_BPF_OBJECT", workspace::bpf_object());
        Ok(cargo)
    }
}

/// The version of the installed `rustc-web`.
fn debian_version() -> Result<String> {
    let mut dpkg = Command::new("dpkg-query");
    dpkg.args(["--show", "--showformat=${Version}", "rustc-web"]);
    let version = workspace::output(&mut dpkg)?;
    ensure!(!version.is_empty(), "rustc-web is not installed");
    Ok(version)
}
