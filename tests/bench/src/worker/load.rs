//! The load: clients and their backend in one process. Each connection has a thread, so that the
//! load itself costs little compared with what is measured.

mod backend;
mod bulk;
mod connects;
mod copies;
mod dns;
mod endpoint;
mod fairness;
mod job;
mod memory;
mod moved;
pub(crate) mod observed;
mod ping;
mod scrape;
mod tls;

use std::io::BufRead;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::figures::{self, Figures};
use backend::Backend;
use job::Job;

/// Limit of every wait of a client. The kernel lets a client write again once a third of its socket's
/// buffer is free: over a slow link, 1 MiB of it can take half a minute.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long the connections of a job may take to end.
const AFTERMATH: Duration = Duration::from_secs(5);

/// Arguments: where the backend listens.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    listen: SocketAddr,
    /// The network namespace of the backend, if it is not that of the clients
    #[arg(long)]
    netns: Option<PathBuf>,
}

/// The direction of bytes, from the client's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Direction {
    Up,
    Down,
}

/// What a backend sends endlessly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sent {
    /// As many bytes as possible.
    Bulk,
    /// One byte at a time.
    Bytes,
}

/// Runs the jobs from standard input until its end.
pub(crate) fn run(args: &Args) -> Result<()> {
    let backend = Backend::start(args.listen, args.netns.as_deref())?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        figures::print(answer(&line?, &backend))?;
    }
    Ok(())
}

fn answer(line: &str, backend: &Backend) -> Result<Figures> {
    let figures = Job::parse(line)?.run(backend);
    // The next job must not be affected by this one's connections. Under load even direct TCP
    // sometimes loses an end until a probe finds out.
    let started = Instant::now();
    while backend.connections() > 0 {
        if started.elapsed() > AFTERMATH {
            eprintln!(
                "    {} connections did not end after `{line}`: ended by force",
                backend.connections()
            );
            backend.end_all();
        }
        ensure!(
            started.elapsed() < AFTERMATH * 2,
            "{} connections do not end",
            backend.connections()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    figures
}
