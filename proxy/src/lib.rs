//! The proxy: accepts tunnels from agents on edge nodes, and connects cloud clients through them.
//! Here are its flags, the hand-over from one proxy to the next, and what puts
//! the parts together. The parts are crates in the folders beside `src/`.
#![forbid(unsafe_code)]

mod args;
mod handover;
mod run;

use std::process::ExitCode;

use anyhow::Result;
use culvert_daemon::{Introduction, Logs, run_main};

use args::{Args, Command};

/// What the program says on a terminal without arguments.
const INTRODUCTION: Introduction = Introduction {
    first_commands: &[
        (
            "run",
            "takes tunnels and clients. As a service: systemctl enable --now culvert-proxy",
        ),
        (
            "token create NODE",
            "adds an edge node and prints the command that joins it",
        ),
        ("check", "what is wrong on this host, and the fix"),
        ("status", "the proxies and their tunnels"),
    ],
    pages: "docs/install.md, docs/flags.md, docs/troubleshooting.md",
};

/// Runs the command line; prints the error if it fails.
pub async fn main() -> ExitCode {
    run_main(INTRODUCTION, start).await
}

async fn start(args: Args) -> Result<()> {
    let sockets = args.sockets();
    match args.command {
        Some(Command::Node(command)) => command.run(&args.control_socket).await,
        Some(Command::Token(command)) => command.run(&args.control_socket).await,
        Some(Command::Status(command)) => command.run(&args.control_socket).await,
        Some(Command::Streams(command)) => command.run(&args.control_socket).await,
        Some(Command::Explain(command)) => command.run(&args.control_socket).await,
        Some(Command::Ping(command)) => command.run(&args.control_socket).await,
        Some(Command::Check(command)) => {
            command
                .run(&args.control_socket, args.run.listen.admin_listen)
                .await
        }
        Some(Command::Migrate(command)) => command.run().await,
        Some(Command::ControlStdio(command)) => command.run(&sockets),
        Some(Command::Log(command)) => command.run(&args.admin_socket).await,
        None | Some(Command::Run) => {
            let sockets = run::Sockets {
                control: args.control_socket,
                admin: args.admin_socket,
            };
            Box::pin(run::run(
                args.run,
                sockets,
                Logs::init(&args.log, args.log_format)?,
            ))
            .await
        }
    }
}
