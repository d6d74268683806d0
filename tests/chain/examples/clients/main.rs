//! Many clients, run by the whole-chain tests as processes of a lab's hosts: short connections,
//! half of them aborted, or a steady load that reports who answered and what hung. A report is one
//! line of JSON.

mod churn;
mod steady;
mod target;

use anyhow::Result;
use clap::Parser;

/// Many clients.
#[derive(Parser)]
enum Args {
    /// Makes short connections, aborts half of them, and prints what came of them
    Churn(churn::Args),
    /// Goes on with requests until its input ends; prints what came of them for each line of input
    Steady(steady::Args),
}

fn main() -> Result<()> {
    match Args::parse() {
        Args::Churn(args) => churn::run(&args),
        Args::Steady(args) => steady::run(&args),
    }
}
