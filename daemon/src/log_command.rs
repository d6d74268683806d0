//! `PROGRAM log FILTER`: changes what a running program logs, over its admin socket.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::AdminSocket;

/// Changes what the running program logs, until the next change or restart.
#[derive(clap::Args, Clone, Debug)]
pub struct LogCommand {
    /// A level such as `info`, or filters such as `info,culvert_tunnel=debug`.
    #[arg(value_name = "FILTER")]
    filter: String,
}

impl LogCommand {
    #[cfg(test)]
    pub(crate) fn new(filter: &str) -> Self {
        Self {
            filter: filter.to_owned(),
        }
    }

    /// Sends the filter to the program that listens on the socket.
    ///
    /// # Errors
    /// No program answers there, or it refuses the filter.
    pub async fn run(&self, socket: &Path) -> Result<()> {
        let (status, answer) = AdminSocket(socket).put("/debug/log", &self.filter).await?;
        ensure!(
            status.is_success(),
            "the program answers {status}: {}",
            answer.trim()
        );
        Ok(())
    }
}
