//! `cargo xtask cluster`: prepares what [`culvert_cluster`] needs, and runs its command.

use std::process::ExitCode;

use anyhow::Result;

use crate::{kube, setup};

/// Runs one of the cluster's commands.
///
/// # Errors
/// What it needs is missing, or it fails.
pub fn run(args: culvert_cluster::Args) -> Result<ExitCode> {
    if let Some(programs) = args.programs() {
        kube::ensure_there(&programs)?;
        setup::ensure_for_cluster()?;
    }
    culvert_cluster::run(args)
}
