//! A command that was run somewhere.

use anyhow::{Context, Result};
use tokio::process::Command;

use super::NoAnswer;

/// What a command printed.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Finished {
    /// Runs a command of this host to its end. It ends with the future.
    pub(super) async fn of(command: &mut Command) -> Result<Self, NoAnswer> {
        let done = output(command).await?;
        Ok(Self {
            out: String::from_utf8_lossy(&done.stdout).into_owned(),
            err: String::from_utf8_lossy(&done.stderr).into_owned(),
        })
    }
}

async fn output(command: &mut Command) -> Result<std::process::Output> {
    let done = command.kill_on_drop(true).output().await;
    done.with_context(|| format!("run {}", command.as_std().get_program().display()))
}
