//! `cargo xtask deps`: what may be linked (`deny.toml`), and dependencies that nothing uses.

use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::workspace;

use crate::cargo_tool;

const CARGO_DENY: &str = "0.20.2";
const CARGO_MACHETE: &str = "0.9.2";

/// Runs both checks. Advisories need a database from the internet: `cargo deny check` has them.
///
/// # Errors
/// A licence, a crate or a source that `deny.toml` does not allow, or an unused dependency.
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
