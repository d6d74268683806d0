//! The hub: the local API endpoint of one edge node. It passes requests on to the API server,
//! remembers its answers, and answers from them while the API server cannot be reached.
//!
//! It is a library so that the fuzz targets reach its parsers. The program is `main.rs`, which only
//! calls [`main`].
#![forbid(unsafe_code)]

mod answers;
mod args;
mod authority;
mod budget;
mod cache;
mod config;
mod copy;
mod crypto;
mod endpoints;
mod event_sender;
mod events;
mod explain;
mod filters;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod growth;
mod guests;
mod hub;
mod identity;
mod install;
mod kubeconfig;
mod limits;
mod list_body;
mod memory;
mod metrics;
mod packed;
mod reads;
mod refill;
mod refusal;
mod relay;
mod request;
mod reviews;
mod run;
mod server;
mod server_order;
mod state_dir;
mod status;
mod store;
#[cfg(test)]
mod test_cluster;
mod turns;
mod upstream;
mod watches;
mod wire;

use std::process::ExitCode;

use anyhow::Result;
use culvert_daemon::{Introduction, run_main};

use args::{Args, Command};

/// What the program says on a terminal without arguments.
const INTRODUCTION: Introduction = Introduction {
    first_commands: &[
        ("check", "what `install` would change; it changes nothing"),
        ("install", "points kubelet to the hub"),
        (
            "run",
            "answers kubelet. As a service: systemctl enable --now culvert-hub",
        ),
        (
            "status",
            "the link, and whether the node would survive a reboot",
        ),
    ],
    pages: "docs/hub.md, docs/flags.md",
};

/// Runs the command line; prints the error if it fails.
pub async fn main() -> ExitCode {
    run_main(INTRODUCTION, start).await
}

async fn start(args: Args) -> Result<()> {
    match args.chosen_command() {
        Command::Run(run) => {
            let logs = args.logs()?;
            run::run(args.config(run)?, logs).await
        }
        Command::Install(kubelet) => install::install(&args.installation(kubelet)),
        Command::Uninstall(kubelet) => install::uninstall(&args.installation(kubelet)),
        Command::Check(kubelet) => install::check(&args.installation(kubelet)),
        Command::Status => status::print(args.admin_address()).await,
        Command::Explain(request) => status::print_explanation(args.admin_address(), request).await,
        Command::Log(command) => command.run(args.admin_socket()).await,
    }
}
