//! `culvert-redirector`: steers connections addressed to edge nodes into the proxy on this host.
//!
//! Control plane only. It tells the kernel what is steered (`bpf`, `nft`, `route`) from a copy of
//! the proxy's `directory`, and answers the nodes' names (`dns`). Killed or upgraded, it leaves all
//! of that working.
//!
//! A library so that the fuzz targets reach its parsers; the program is `main.rs`, which only calls
//! [`main`].

mod args;
mod config;
mod directory;
mod dns;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod mechanisms;
mod metrics;
mod operators;
mod plan;
mod run;
mod steering;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use culvert_daemon::{Logs, Supervisor};

use args::{Args, Command};
use config::Config;

/// Does what the command line says; prints why it could not.
pub async fn main() -> ExitCode {
    match start(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("culvert-redirector: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start(args: Args) -> anyhow::Result<()> {
    let shared = &args.shared;
    match &args.command {
        None => {
            // hickory reports every question; what matters of them is counted.
            let logs = Logs::init(
                &format!("hickory_server=warn,{}", args.log),
                args.log_format,
            )?;
            return Box::pin(run::run(Config::try_from(args)?, logs)).await;
        }
        Some(Command::Log(command)) => command.run(&args.admin_socket).await?,
        Some(Command::Status) => print!(
            "{}",
            operators::status::status(&shared.bpffs, &shared.state_dir).await?
        ),
        Some(Command::Explain { destination }) => {
            print!(
                "{}",
                operators::explain::explain(shared, destination).await?
            )
        }
        Some(Command::Uninstall { stay }) => {
            print!(
                "{}",
                operators::uninstall::uninstall(&shared.bpffs, &shared.state_dir).await?
            );
            if *stay {
                return until_signal().await;
            }
        }
    }
    Ok(())
}

async fn until_signal() -> anyhow::Result<()> {
    let mut supervisor = Supervisor::new(Duration::ZERO)?;
    let drain = supervisor.drain();
    supervisor.spawn("stay", async move {
        drain.begun().await;
        Ok(())
    });
    supervisor.run().await
}
