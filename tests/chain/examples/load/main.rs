//! Loads for the chain tests that need thousands of connections, without a thread or process for
//! each.
//!
//! Each runs in its own process until it is killed, and prints `ready` when it is ready.
#![forbid(unsafe_code)]

mod agents;
mod echo;

use std::io::Write;

use anyhow::Result;
use clap::{Parser, Subcommand};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand)]
enum Load {
    /// Keeps the tunnels of many agents, each with a node and a certificate of its own
    Agents(agents::Args),
    /// Echoes in any number of connections, idle ones costing next to nothing
    Echo(echo::Args),
}

fn main() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    match Args::parse().load {
        Load::Agents(args) => runtime.block_on(agents::run(args)),
        Load::Echo(args) => runtime.block_on(echo::run(&args)),
    }
}

fn ready() -> Result<()> {
    println!("ready");
    Ok(std::io::stdout().flush()?)
}
