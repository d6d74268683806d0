//! bpf-linker, compiled against the LLVM of the eBPF compiler.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::{progress, workspace};

use crate::build_ebpf;

/// The version with which the object was verified, and the LLVM of Debian's eBPF compiler.
const VERSION: &str = "0.13.0";
const LLVM: &str = "/usr/lib/llvm-22";

/// Compiles bpf-linker into `target/tools` unless it exists there.
pub(super) fn install() -> Result<()> {
    if build_ebpf::linker().is_some() {
        return Ok(());
    }
    let llvm_config = Path::new(LLVM).join("bin/llvm-config");
    ensure!(
        llvm_config.is_file(),
        "bpf-linker needs {LLVM} (package llvm-22-dev), or install one that fits your compiler: \
         `cargo install bpf-linker --version {VERSION}`"
    );
    let path = workspace::path_with_folder_of(&llvm_config)?;
    let mut command = Command::new("cargo");
    workspace::without_outer_cargo(&mut command)
        .args([
            "install",
            "--debug",
            "bpf-linker",
            "--version",
            VERSION,
            "--no-default-features",
            "--features",
            "llvm-22",
            "--root",
        ])
        .arg(workspace::tools_dir())
        .env("LLVM_PREFIX", LLVM)
        .env("PATH", path)
        .current_dir(workspace::root());
    progress::run(
        &format!("compile bpf-linker {VERSION} (some minutes)"),
        &mut command,
    )?;
    Ok(())
}
