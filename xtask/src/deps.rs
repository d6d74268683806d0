//! `cargo xtask deps`: checks dependencies against `deny.toml`, and finds unused ones.

use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::workspace;

use crate::cargo_tool;

const CARGO_DENY: &str = "0.20.2";
const CARGO_MACHETE: &str = "0.9.2";

/// Runs both checks. Advisories are not checked, because their database is on the internet; `cargo
/// deny check` does that.
///
/// # Errors
/// `deny.toml` does not allow a licence, crate or source, or a dependency is unused.
pub fn run() -> Result<()> {
    let deny = cargo_tool::program("cargo-deny", CARGO_DENY)?;
    check(Command::new(deny).args(["check", "bans", "licenses", "sources"]))?;
    let machete = cargo_tool::program("cargo-machete", CARGO_MACHETE)?;
    check(Command::new(machete).arg("--with-metadata"))
}

fn check(command: &mut Command) -> Result<()> {
    let status = command.current_dir(workspace::root()).status()?;
    ensure!(status.success(), "{command:?} found what it prints above");
    Ok(())
}
