//! The processes that `cargo xtask scale` starts beside the proxies: agents, thousands in each, and
//! watchers of the directory. Built only with `--features worker`.
#![forbid(unsafe_code)]

mod agents;
mod authority;
mod counts;
mod tunnel;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The same allocator as in Culvert's programs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The processes of `cargo xtask scale`.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Makes an authority: `ca.crt` and `ca.key` in a folder
    Authority(authority::Args),
    /// Keeps the tunnels of many agents; answers each line of standard input with a line of JSON
    Agents(agents::Args),
    /// Prints the nodes in each change of a proxy's directory
    Watch(watch::Args),
}

fn main() -> ExitCode {
    match run(Args::parse().role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(role: Role) -> Result<()> {
    match role {
        Role::Authority(args) => authority::make(&args),
        Role::Agents(args) => agents::run(args),
        Role::Watch(args) => watch::run(&args),
    }
}
