//! `cargo xtask scale`: thousands of agents on several proxies, all on the loopback of one network
//! namespace. The proxies are the real program. The agents are the agent's end of the tunnel
//! protocol with real certificates, a thousand and more in a process.
//!
//! It measures how long all tunnels take to come up, and to come back after all proxies were
//! killed, what tunnels cost while nothing happens, and how fast a change of the directory spreads.
#![forbid(unsafe_code)]

mod config;
mod folder;
mod network;
mod phases;
mod programs;
mod proxies;
mod report;
mod swarm;
mod watchers;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use culvert_lab::{interrupt, progress, workspace};

use config::Config;
use programs::Profile;

pub use programs::Programs;
pub use report::Report;

/// How many of what.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Agents, each with a node of its own
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub agents: u32,
    /// Proxies
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16))]
    pub proxies: u32,
    /// Tunnels of each agent, to two different proxies
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8))]
    pub tunnels: u32,
    /// Processes that the agents are in [default: one for 2,500 agents]
    #[arg(long, value_name = "P")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processes: Option<u32>,
    /// Agents that dial from one address: 1 gives each its own, and with as many as there are
    /// agents all come from one, as behind a forwarder
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub site: u32,
    /// Seconds in which nothing but pings happens, to measure what they cost
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub steady: u32,
    /// Also write the figures here, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure programs built without optimisation, which only tells whether all works
    #[arg(long)]
    pub dev: bool,
}

impl Args {
    /// A small form, which shows that all works.
    #[must_use]
    pub fn small() -> Self {
        Self {
            agents: 200,
            proxies: 3,
            tunnels: 2,
            processes: Some(2),
            site: 200,
            steady: 2,
            json: None,
            dev: true,
        }
    }
}

/// The name of a node by its number.
#[must_use]
pub fn node_name(number: u32) -> String {
    format!("edge-{number:05}")
}

/// Builds the programs, measures and prints the table.
///
/// # Errors
/// Something cannot be built or started, or not all tunnels come up.
pub fn run(args: &Args) -> Result<()> {
    interrupt::install()?;
    ensure!(
        workspace::is_root(),
        "the agents and proxies get a network namespace: run this as root"
    );
    let programs = Programs::build(if args.dev {
        Profile::Dev
    } else {
        Profile::Release
    })?;
    let started = Instant::now();
    let report = measure(args, &programs)?;
    println!("\n{}", report.table());
    println!("measured in {} s", started.elapsed().as_secs());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report.json())?;
        std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Measures with programs that are built. Everything that it starts has ended when it returns.
///
/// # Errors
/// Something cannot be started, or not all tunnels come up.
pub fn measure(args: &Args, programs: &Programs) -> Result<Report> {
    let config = Config::from(args);
    std::thread::scope(|scope| {
        // The namespace is of the thread, and of what it starts.
        let measuring = scope.spawn(|| {
            network::enter()?;
            phases::all(&config, programs)
        });
        measuring
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the measuring thread panicked")))
    })
    .inspect_err(|_| progress::say("    nothing is left running"))
}
