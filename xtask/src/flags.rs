//! `cargo xtask flags`: writes docs/flags.md, which lists what the programs take.

use anyhow::{Context, Result};
use culvert_lab::progress::Step;
use culvert_lab::{flags_page, workspace};

/// Builds the programs, and writes the page of their help.
///
/// # Errors
/// A program does not compile, or the file cannot be written.
pub fn run() -> Result<()> {
    let step = Step::start("build the programs");
    let mut build = workspace::cargo();
    build.args(["build", "--bins"]);
    for package in flags_page::PROGRAMS {
        build.args(["--package", package]);
    }
    workspace::output(&mut build)?;
    step.done();
    let path = workspace::root().join("docs").join(flags_page::FILE);
    std::fs::write(&path, flags_page::made()?).with_context(|| format!("write {}", path.display()))
}
