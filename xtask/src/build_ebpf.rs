//! `cargo xtask build-ebpf`: compiles `redirector-ebpf` for `bpfel-unknown-none`. The workspace's
//! own toolchain cannot build this target, so it looks for a compiler that can.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::progress::{self, Step};
use culvert_lab::workspace;

/// The target: little-endian eBPF, what x86-64 and arm64 kernels run.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// A compiler that can build for eBPF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// A rustc whose sysroot contains a compiled `core` for eBPF (Debian's
    /// `libstd-rust-web-dev-bpf`), and its cargo.
    PrecompiledCore {
        /// The compiler.
        rustc: PathBuf,
        /// The cargo of the same version.
        cargo: PathBuf,
    },
    /// rustup's nightly, which compiles `core` from source.
    Nightly,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrecompiledCore { rustc, .. } => {
                write!(f, "{} with its compiled core for {TARGET}", rustc.display())
            }
            Self::Nightly => {
                f.write_str("rustup's nightly with rust-src, building core on the way")
            }
        }
    }
}

impl Toolchain {
    /// Looks for a compiler. One with a precompiled core is preferred: it builds faster, and its
    /// LLVM is the distribution's.
    pub fn find() -> Option<Self> {
        precompiled_core().or_else(nightly)
    }

    /// `cargo build` with this compiler.
    fn build(&self) -> Command {
        let mut command = match self {
            Self::PrecompiledCore { cargo, .. } => Command::new(cargo),
            Self::Nightly => Command::new("rustup"),
        };
        workspace::without_outer_cargo(&mut command);
        match self {
            // aya-ebpf uses unstable features, and this compiler is a stable one: hence
            // RUSTC_BOOTSTRAP.
            Self::PrecompiledCore { rustc, .. } => command
                .env("RUSTC", rustc)
                .env("RUSTC_BOOTSTRAP", "1")
                .arg("build"),
            Self::Nightly => {
                command.args(["run", "nightly", "cargo", "build", "-Z", "build-std=core"])
            }
        };
        command
    }
}

/// The linker of eBPF objects: the one that setup built, or one in `PATH`.
pub fn linker() -> Option<PathBuf> {
    let own = workspace::tools_dir().join("bin/bpf-linker");
    if own.is_file() {
        Some(own)
    } else {
        workspace::find_program("bpf-linker")
    }
}

/// Compiles the kernel programs and checks that the object describes its types.
///
/// # Errors
/// There is no compiler or linker (the text says what to install), or the compilation fails.
pub fn run() -> Result<()> {
    let toolchain = Toolchain::find().context(
        "no Rust compiler here can build for eBPF; on Debian 12 run `cargo xtask setup` as root, \
         elsewhere install one: \
         `rustup toolchain install nightly --component rust-src`",
    )?;
    let linker = linker().context(
        "bpf-linker is missing: run `cargo xtask setup`, or `cargo install bpf-linker \
            --version 0.13.0`",
    )?;
    progress::say(&format!("==> build-ebpf with {toolchain}"));
    let step = Step::start("compile the kernel programs");
    let built = compile(&toolchain, &linker)?;
    let bytes = std::fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    check_types(&bytes)?;
    let object = workspace::bpf_object();
    write_changed(&object, &bytes)?;
    step.done();
    progress::say(&format!(
        "    {} ({} bytes, with BTF)",
        object.display(),
        bytes.len()
    ));
    Ok(())
}

/// Writes the object. An unchanged one keeps its modification time: otherwise cargo would compile
/// the redirector again.
fn write_changed(object: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(object).is_ok_and(|earlier| earlier == bytes) {
        return Ok(());
    }
    let folder = object.parent().context("the object's path has no folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    std::fs::write(object, bytes).with_context(|| format!("write {}", object.display()))
}

fn compile(toolchain: &Toolchain, linker: &Path) -> Result<PathBuf> {
    let path = workspace::path_with_folder_of(linker)?;
    let mut command = toolchain.build();
    command
        .args([
            "--release",
            "--target",
            TARGET,
            "--message-format",
            "json-render-diagnostics",
            "--target-dir",
        ])
        .arg(workspace::target_dir().join("ebpf-build"))
        .env("PATH", path)
        .env(
            "RUSTFLAGS",
            format!(
                "-C debuginfo=2 -C link-arg=--btf {}",
                workspace::remapped("--remap-path-prefix")?
            ),
        )
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(workspace::root().join("redirector-ebpf"))
        .stderr(Stdio::inherit());
    let done = command
        .output()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    ensure!(
        done.status.success(),
        "compiling redirector-ebpf ended with {}",
        done.status
    );
    executable(&String::from_utf8_lossy(&done.stdout))
        .context("cargo built no object in redirector-ebpf: has it a [[bin]]?")
}

/// The last executable in cargo's JSON messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let mut executable = None;
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else {
            continue;
        };
        if let Some(path) = message["executable"].as_str() {
            executable = Some(PathBuf::from(path));
        }
    }
    executable
}

/// Fails if the maps have no BTF: `bpftool map dump` would show bytes instead of fields.
fn check_types(object: &[u8]) -> Result<()> {
    for section in [&b".BTF\0"[..], b".BTF.ext\0", b".maps\0"] {
        let found = object
            .windows(section.len())
            .any(|window| window == section);
        if !found {
            let name = String::from_utf8_lossy(section).replace('\0', "");
            bail!(
                "the object has no section {name}: is bpf-linker 0.13 or later, and does every \
                 map use #[btf_map]?"
            );
        }
    }
    Ok(())
}

fn precompiled_core() -> Option<Toolchain> {
    let rustc = PathBuf::from("/usr/bin/rustc");
    let cargo = PathBuf::from("/usr/bin/cargo");
    let sysroot = sysroot(Command::new(&rustc).arg("--print=sysroot"))?;
    let libraries = std::fs::read_dir(sysroot.join("lib/rustlib").join(TARGET).join("lib")).ok()?;
    let has_core = libraries
        .flatten()
        .any(|file| file.file_name().to_string_lossy().starts_with("libcore-"));
    if has_core && cargo.is_file() {
        Some(Toolchain::PrecompiledCore { rustc, cargo })
    } else {
        None
    }
}

fn nightly() -> Option<Toolchain> {
    let sysroot =
        sysroot(Command::new("rustup").args(["run", "nightly", "rustc", "--print=sysroot"]))?;
    let core = sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml");
    if core.is_file() {
        Some(Toolchain::Nightly)
    } else {
        None
    }
}

fn sysroot(command: &mut Command) -> Option<PathBuf> {
    let text = workspace::output(workspace::without_outer_cargo(command)).ok()?;
    Some(PathBuf::from(text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_found_in_the_messages_of_cargo() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n{\"executable\":\"/t/culvert\"}\nnoise\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/culvert")));
    }

    #[test]
    fn an_object_without_types_is_refused_with_the_section_it_lacks() {
        let error = check_types(b"\x7fELF\0.maps\0.BTF\0").expect_err("no .BTF.ext");
        assert!(error.to_string().contains(".BTF.ext"), "{error}");
        check_types(b"\x7fELF\0.BTF\0.BTF.ext\0.maps\0").unwrap();
    }
}
