//! The load: clients and their backend in one process, with a thread for each connection, so that
//! what is measured is what lies between them.

mod backend;
mod bulk;
mod connects;
mod dns;
mod job;
mod memory;
mod moved;
mod observed;
mod ping;
mod way;

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde_json::{Map, Value, json};

use backend::Backend;
use job::Job;

/// What a client waits for at most.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the connections of one job may take to end.
const AFTERMATH: Duration = Duration::from_secs(5);

/// Where the backend listens.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    listen: SocketAddr,
}

/// Which way bytes go, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Direction {
    Up,
    Down,
}

/// What a backend sends without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sent {
    /// All that it can.
    Bulk,
    /// One byte at a time.
    Bytes,
}

/// What a job found: names and numbers.
type Figures = Vec<(&'static str, f64)>;

/// Runs the jobs of standard input until its end.
pub(crate) fn run(args: &Args) -> Result<()> {
    let backend = Backend::start(args.listen)?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let answer = match answer(&line?, &backend) {
            Ok(figures) => Value::Object(
                figures
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value.into()))
                    .collect::<Map<_, _>>(),
            ),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn answer(line: &str, backend: &Backend) -> Result<Figures> {
    let figures = Job::parse(line)?.run(backend);
    // The next job must not meet what this one left. Under load even direct TCP loses an end now
    // and then, until a probe finds out.
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
