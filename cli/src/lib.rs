//! `culvert`, also `kubectl culvert`: what proxies, redirectors and agents do, for people. It asks
//! all proxies at once: those of this host by their sockets, others by ssh, those of a cluster by
//! exec in their pods. It is one command each time, keeps no state, and listens nowhere but on
//! loopback, for `dashboard` and `forward`.
//!
//! A command (`commands/`) asks all `hosts` at once with a deadline each (`session`), puts the
//! answers together, and prints them as text or as JSON from the same types. How answers of hosts become
//! one, what is wrong, and pages for a browser are in `culvert-site`. `dashboard` and `top` ask again and
//! again (`watch`), and show the same board: as pages (`board_server`) and on a terminal (`top`).
#![forbid(unsafe_code)]

mod args;
mod board_server;
mod bundle;
mod client_certificate;
mod cloud_host;
mod commands;
mod completion;
mod connectivity;
mod control;
mod hops;
mod hosts;
mod nearest;
mod node_stream;
mod pages;
mod program_name;
mod screen;
mod session;
mod table;
mod top;
mod unknown_node;
mod watch;

use std::process::ExitCode;

use culvert_daemon::{Introduction, run_main};

/// What the program says on a terminal without arguments.
const INTRODUCTION: Introduction = Introduction {
    first_commands: &[
        (
            "status",
            "what is wrong and its fix; proxies, nodes, streams",
        ),
        ("why NODE:PORT", "what happens to a connection, hop by hop"),
        ("nodes", "the edge nodes"),
        ("streams", "who is connected, and who waits for an answer"),
    ],
    pages: "docs/culvert.md",
};

/// Runs the command line, or completes it for a shell; prints the error if it fails.
pub async fn main() -> ExitCode {
    if let Some(done) = completion::answer() {
        return done;
    }
    run_main(INTRODUCTION, commands::run).await
}
