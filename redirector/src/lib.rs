//! `culvert-redirector`: steers connections addressed to edge nodes into the proxy on this host.
//!
//! Control plane only. It configures the kernel (`mechanisms`) from a copy of the proxy's
//! `directory`, and answers the nodes' names (`dns`). When it is killed or upgraded, the kernel
//! keeps steering.
//!
//! It is a library so that the fuzz targets reach its parsers; `main.rs` only calls [`main`].

mod args;
mod config;
mod directory;
mod dns;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod held_sockets;
mod mechanisms;
mod metrics;
mod operators;
mod own_networks;
mod plan;
mod run;
mod steering;

use std::process::ExitCode;
use std::time::Duration;

use culvert_daemon::{Introduction, Supervisor, run_main};

use args::{Args, Command};
use config::Config;
use mechanisms::bpf::usual_scope;

/// What the program says on a terminal without arguments.
const INTRODUCTION: Introduction = Introduction {
    first_commands: &[
        (
            "run",
            "steers this host's connections, as root. As a service: systemctl enable --now culvert-redirector",
        ),
        ("status", "what is installed in the kernel"),
        (
            "explain DESTINATION",
            "what the kernel does with a connection",
        ),
        ("uninstall", "removes all of it from the kernel"),
    ],
    pages: "docs/install.md, docs/flags.md, docs/troubleshooting.md",
};

/// Runs the command line; prints the error if it fails.
pub async fn main() -> ExitCode {
    run_main(INTRODUCTION, start).await
}

async fn start(args: Args) -> anyhow::Result<()> {
    let Args {
        command,
        shared,
        log,
        ..
    } = &args;
    match command {
        None | Some(Command::Run) => {
            let logs = args.init_logs()?;
            return Box::pin(run::run(Config::new(args, usual_scope())?, logs)).await;
        }
        Some(Command::Log(command)) => command.run(&log.admin_socket).await?,
        Some(Command::Status) => print!(
            "{}",
            operators::status::status(&shared.bpffs, &shared.state_dir).await?
        ),
        Some(Command::Explain { destination }) => {
            print!(
                "{}",
                operators::explain::explain(shared.try_into()?, destination).await?
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
