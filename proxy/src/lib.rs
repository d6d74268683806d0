//! The proxy: accepts tunnels from agents on edge nodes, and connects cloud clients through them.
//! Here are its flags, the hand-over from one proxy to the next, and what puts
//! the parts together. The parts are crates in the folders beside `src/`.
#![forbid(unsafe_code)]

mod args;
mod config;
mod handover;
mod run;

use std::process::ExitCode;

use anyhow::Result;
use culvert_daemon::{Introduction, raise_open_file_limit, run_main};

use args::{Args, Command};

/// What the program says on a terminal without arguments.
const INTRODUCTION: Introduction = Introduction {
    first_commands: &[(
        "run",
        "takes tunnels and clients. As a service: systemctl enable --now culvert-proxy",
    )],
    pages: "`culvert` asks and changes a running proxy; docs/install.md, docs/flags.md",
};

/// Runs the command line; prints the error if it fails.
pub async fn main() -> ExitCode {
    run_main(INTRODUCTION, start).await
}

async fn start(args: Args) -> Result<()> {
    let sockets = args.sockets();
    let Args {
        command,
        control_socket,
        log,
        run,
    } = args;
    match command {
        Some(Command::CheckHost(command)) => {
            command
                .run(&control_socket, run.listen.admin.admin_listen)
                .await;
            Ok(())
        }
        Some(Command::ControlStdio(command)) => command.run(&sockets),
        Some(Command::Log(command)) => command.run(&log.admin_socket).await,
        None | Some(Command::Run) => {
            let logs = log.init()?;
            let sockets = run::Sockets {
                control: control_socket,
                admin: log.admin_socket,
            };
            raise_open_file_limit();
            Box::pin(run::run(run.try_into()?, sockets, logs)).await
        }
    }
}
