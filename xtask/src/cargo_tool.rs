//! Programs from crates.io that tasks use. They are compiled into `target/tools/bin` when they are
//! first needed.

use std::path::PathBuf;

use anyhow::Result;
use culvert_lab::{progress, workspace};

/// The program `name` at `version`; compiled without optimisation, which takes a minute.
///
/// # Errors
/// It cannot be fetched or compiled.
pub(crate) fn program(name: &str, version: &str) -> Result<PathBuf> {
    program_with(name, version, &[])
}

/// The same with further arguments of `cargo install`, such as features.
///
/// # Errors
/// It cannot be fetched or compiled.
pub(crate) fn program_with(name: &str, version: &str, arguments: &[&str]) -> Result<PathBuf> {
    let program = workspace::tools_dir().join("bin").join(name);
    let marker = workspace::tools_dir().join(format!("{name}-{version}"));
    if !(program.is_file() && marker.is_file()) {
        let mut command = workspace::cargo();
        command
            .args(["install", name, "--version", version])
            .args(["--locked", "--debug", "--force", "--root"])
            .arg(workspace::tools_dir())
            .args(arguments);
        progress::run(&format!("compile {name} {version}"), &mut command)?;
        std::fs::write(marker, "")?;
    }
    Ok(program)
}
