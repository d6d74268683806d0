//! The clients of `cargo xtask bench hub`: they ask an API server, or a hub in front of it, as
//! kubelet and the other programs of a node do.

mod connection;
mod cut;
mod job;
mod objects;
mod requests;
mod updates;
mod watches;

use std::io::BufRead;
use std::time::Duration;

use anyhow::Result;

use crate::figures::{self, Figures};
use job::Job;
use watches::OpenWatches;

/// Limit of every wait that is not measured.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the jobs from standard input until its end.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut open_watches = OpenWatches::default();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let found = runtime.block_on(async { Job::parse(&line)?.run(&mut open_watches).await });
        figures::print(found)?;
    }
    Ok(())
}
