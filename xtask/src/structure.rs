//! `cargo xtask structure`: runs the counter of `xtask/structure`, which a parser of Rust belongs to.

use anyhow::{Result, ensure};
use culvert_lab::workspace;

/// What to do with what is counted.
#[derive(clap::Args)]
pub struct Args {
    /// Write what is above a limit to xtask/structure/exceptions.txt, after code has moved or got
    /// better
    #[arg(long)]
    record: bool,
}

/// Counts, and prints what is above a limit.
///
/// # Errors
/// Something is above a limit and no exception, an exception is not needed any more, or the source
/// cannot be read.
pub fn run(args: &Args) -> Result<()> {
    let mut command = workspace::cargo();
    command.args(["run", "--quiet", "--package", "culvert-structure", "--"]);
    if args.record {
        command.arg("--record");
    }
    let status = command.current_dir(workspace::root()).status()?;
    ensure!(
        status.success(),
        "the structure does not hold; CONTRIBUTING.md, \"How the code reads\", has the rules"
    );
    Ok(())
}
