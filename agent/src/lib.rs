//! The agent: runs on an edge node, dials out to the proxies, and lets clients in the cloud reach
//! what its allow-list names.
//!
//! The program is `main.rs`, which only calls [`main`].
#![forbid(unsafe_code)]

mod admin;
mod args;
mod backends;
mod certificate;
mod config;
mod crypto;
mod dial;
mod identity;
mod metrics;
mod run;
mod service;
#[cfg(test)]
mod test_pki;
#[cfg(test)]
mod test_proxy;
mod tunnels;

use std::process::ExitCode;

use anyhow::Result;
use culvert_daemon::{Introduction, run_main};

use args::{Args, Command};
use config::Config;

/// What the program says on a terminal without arguments.
const INTRODUCTION: Introduction = Introduction {
    first_commands: &[
        (
            "join ...",
            "gets a certificate: `culvert token create` in the cloud prints the whole command. With \
             --service it also starts the agent as a service",
        ),
        (
            "run",
            "dials the proxies and keeps tunnels up. As a service: systemctl enable --now culvert-agent",
        ),
    ],
    pages: "docs/install.md, docs/flags.md, docs/troubleshooting.md",
};

/// Runs the command line; prints the error if it fails.
pub async fn main() -> ExitCode {
    run_main(INTRODUCTION, start).await
}

async fn start(args: Args) -> Result<()> {
    let Args {
        command,
        state_dir,
        log,
        run,
    } = args;
    match command {
        Some(Command::Log(command)) => command.run(&log.admin_socket).await,
        Some(Command::Join(join)) => {
            log.init()?;
            certificate::join::run(&state_dir, &log.admin_socket, join).await
        }
        None | Some(Command::Run) => {
            let logs = log.init()?;
            run::run(Config::new(run, &state_dir, log.admin_socket)?, logs).await
        }
    }
}
