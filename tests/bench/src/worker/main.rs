//! The processes that `cargo xtask bench` starts beside Culvert: the load (clients and backends in
//! one), the relays that Culvert is compared with, and the links to the edge: of connections, and of
//! packets. Built only with `--features worker`.

mod api_load;
mod delay;
mod figures;
mod link;
mod load;
mod relay;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The same allocator as in Culvert's programs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The processes of `cargo xtask bench`.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Serves a backend, and runs the jobs that come as lines of standard input; answers each with
    /// a line of JSON
    Load(load::Args),
    /// The clients of `cargo xtask bench hub`: runs the jobs that come as lines of standard input;
    /// answers each with a line of JSON
    ApiLoad,
    /// The half of a comparison relay that stands at the clients
    RelayNear(relay::NearArgs),
    /// The half of a comparison relay that stands at the backend
    RelayFar(relay::FarArgs),
    /// Passes TCP connections on, each byte late by half a round trip
    Delay(delay::Args),
    /// Passes IP packets on between two namespaces, late, at a rate, and not all of them
    Link(link::Args),
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
        Role::Load(args) => load::run(&args),
        Role::ApiLoad => api_load::run(),
        Role::RelayNear(args) => relay::near(args),
        Role::RelayFar(args) => relay::far(args),
        Role::Delay(args) => delay::run(args),
        Role::Link(args) => link::run(&args),
    }
}
