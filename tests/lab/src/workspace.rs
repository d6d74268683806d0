//! Paths in the work tree, and calls of cargo and other programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The top folder of the work tree that this program was built from.
pub fn root() -> PathBuf {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    lab.ancestors().nth(2).unwrap_or(lab).to_path_buf()
}

/// The folder of build products: `CARGO_TARGET_DIR`, or `target/` in [`root`].
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The folder of programs that setup builds or unpacks only for this project.
pub fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// One of the project's binaries, as `cargo build` leaves it.
pub fn binary(name: &str) -> PathBuf {
    target_dir().join("debug").join(name)
}

/// Writes one of the project's binaries to `path`, without its symbols.
///
/// # Errors
/// The binary is not built, or `strip` fails.
pub fn strip_binary(name: &str, path: &Path) -> Result<()> {
    output(Command::new("strip").arg("-o").args([path, &binary(name)]))?;
    Ok(())
}

/// One of the examples: programs that tests run.
pub fn example(name: &str) -> PathBuf {
    target_dir().join("debug").join("examples").join(name)
}

/// The compiled kernel programs.
pub fn bpf_object() -> PathBuf {
    target_dir().join("ebpf/culvert-redirector.bpf.o")
}

/// The folder of what `cargo xtask image` leaves.
pub fn images_dir() -> PathBuf {
    target_dir().join("images")
}

/// The container image of one of the programs.
pub fn image_archive(program: &str) -> PathBuf {
    images_dir().join(format!("{program}.tar"))
}

/// One of the programs, static, for runs on this machine outside of containers.
pub fn image_program(program: &str) -> PathBuf {
    images_dir().join(program)
}

/// `cargo` for the workspace, run from [`root`], without the environment variables of an outer
/// cargo.
pub fn cargo() -> Command {
    let mut command = Command::new("cargo");
    without_outer_cargo(&mut command).current_dir(root());
    // The redirector's build script looks in `target/` by default.
    if std::env::var_os("CARGO_TARGET_DIR").is_some() {
        command.env("CULVERT_BPF_OBJECT", bpf_object());
    }
    command
}

/// Removes variables of an outer cargo or rustup: they would choose the toolchain, the flags or the
/// target folder of an inner one. The user's network, registry and home settings stay, and those of
/// what is compiled for tests.
pub fn without_outer_cargo(command: &mut Command) -> &mut Command {
    const CARGO_VARIABLES: [&str; 8] = [
        "CARGO_HOME",
        "CARGO_INCREMENTAL",
        "CARGO_TARGET_DIR",
        "CARGO_NET_",
        "CARGO_PROFILE_DEV_",
        "CARGO_HTTP_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
    ];
    const REMOVED: [&str; 6] = [
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTUP_TOOLCHAIN",
        "RUST_RECURSION_COUNT",
        "OUT_DIR",
        "LD_LIBRARY_PATH",
    ];
    for (key, _) in std::env::vars_os() {
        let Some(name) = key.to_str() else { continue };
        let of_cargo =
            name.starts_with("CARGO") && !CARGO_VARIABLES.iter().any(|kept| name.starts_with(kept));
        if of_cargo || name.starts_with("RUSTC") || REMOVED.contains(&name) {
            command.env_remove(&key);
        }
    }
    command
}

/// Compiler flags that keep this machine's paths out of build products: rustc's
/// `--remap-path-prefix`, or C's `-ffile-prefix-map`.
///
/// # Errors
/// The folder of cargo's sources cannot be determined.
pub fn remapped(flag: &str) -> Result<String> {
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => {
            PathBuf::from(std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?)
                .join(".cargo")
        }
    };
    // The last matching one is used.
    let prefixes = [
        (root(), "/culvert"),
        (target_dir(), "/culvert/target"),
        (cargo_home, "/cargo"),
    ];
    Ok(prefixes
        .map(|(path, name)| format!("{flag}={}={name}", path.display()))
        .join(" "))
}

/// `PATH` with the folder of a program before all others.
///
/// # Errors
/// The program is in no folder, or its folder has a colon in its name.
pub fn path_with_folder_of(program: &Path) -> Result<OsString> {
    let folder = program.parent().context("a program is in a folder")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_path_buf()).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}

/// The full path of a program in `PATH` or in root's usual folders.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

/// The output of a command. If it fails, its error output is the error's text.
pub fn output(command: &mut Command) -> Result<String> {
    let text = format!("{:?}", command.get_program());
    let done = command.output().with_context(|| format!("run {text}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let args: Vec<_> = command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        bail!(
            "{text} {} ended with {}: {}",
            args.join(" "),
            done.status,
            said.trim()
        );
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Whether this process may create namespaces, mounts and cgroups.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
