//! Small clients and servers for the demo and the whole-chain tests, run as processes of a lab's
//! hosts: a connect hook sees processes by their cgroup, so a thread of the test itself would not
//! do.
//!
//! A client prints its result as one line on standard output; a failure is `error <phase> <kind>`
//! and exit code 1.

mod bytes;
mod client;
mod held;
mod server;

use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;

/// What a client waits for at most, wherever it waits: longer than any pause that the tests make on
/// purpose.
const PATIENCE: Duration = Duration::from_secs(90);

/// A client or server.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    probe: Probe,
}

#[derive(Subcommand)]
enum Probe {
    /// Serves ports; prints `ready`
    Serve {
        /// `PORT=echo`, `PORT=sink`, `PORT=source:BYTES`, `PORT=hasty:BYTES`, `PORT=greet`,
        /// `PORT=silent`, `PORT=endless`, `PORT=farewell`, `PORT=forward:ADDRESS` or
        /// `PORT=http-proxy`
        #[arg(required = true)]
        services: Vec<server::Service>,
    },
    /// Sends a text, ends its direction, prints all that comes back
    Talk {
        target: String,
        #[arg(long, default_value = "")]
        send: String,
    },
    /// Only connects, waiting no longer than that; prints `connected`
    Dial { target: String, milliseconds: u64 },
    /// Sends bytes that the server may not want while reading what it says; prints how much it said
    /// and the digest
    Overrun { target: String, bytes: u64 },
    /// Reads until the server closes; prints how many bytes and their digest
    Download { target: String },
    /// Sends bytes to a sink; prints how many and their digest, then what the sink received
    Upload { target: String, bytes: u64 },
    /// Sends a message when the answer to the one before has come; prints how many
    PingPong { target: String, rounds: u32 },
    /// Opens connections to a source without reading; prints `stalled` once data wait in all. After
    /// a line of input it reads all of them to the end and prints how many bytes came
    Stall { target: String, count: usize },
    /// Opens connections to an echo; prints `held`, then `ok` or the failures for each line of
    /// input; ends with its input
    Hold { target: String, count: usize },
    /// Opens connections to an echo; prints `held`; sends one byte in each and reads it back, again
    /// after each pause; prints `ok`
    Drip {
        target: String,
        count: usize,
        milliseconds: u64,
        rounds: usize,
    },
    /// Sends a text, ends its direction and waits for that many lines; prints them one by one, then
    /// holds on until its input ends
    HalfClose { target: String, lines: usize },
    /// Reads to the server's end, then sends bytes and ends; prints what the server said, how much
    /// was sent and the digest
    OutLive { target: String, bytes: u64 },
    /// Opens connections at once, waits a little for an answer and leaves; prints how many were
    /// answered
    GiveUp {
        target: String,
        count: usize,
        milliseconds: u64,
    },
}

/// Runs one client or server.
///
/// # Errors
/// Those of a server or a client's set-up; a client's result is printed.
pub fn run(args: &Args) -> Result<()> {
    let outcome = match &args.probe {
        Probe::Serve { services } => return server::serve(services),
        Probe::Talk { target, send } => client::talk(target, send.as_bytes()),
        Probe::Dial {
            target,
            milliseconds,
        } => client::dial(target, Duration::from_millis(*milliseconds)),
        Probe::Overrun { target, bytes } => client::overrun(target, *bytes),
        Probe::Download { target } => client::download(target),
        Probe::Upload { target, bytes } => client::upload(target, *bytes),
        Probe::PingPong { target, rounds } => client::ping_pong(target, *rounds),
        Probe::Stall { target, count } => held::stall(target, *count),
        Probe::Hold { target, count } => held::hold(target, *count),
        Probe::Drip {
            target,
            count,
            milliseconds,
            rounds,
        } => held::drip(
            target,
            *count,
            Duration::from_millis(*milliseconds),
            *rounds,
        ),
        Probe::HalfClose { target, lines } => held::half_close(target, *lines),
        Probe::OutLive { target, bytes } => client::out_live(target, *bytes),
        Probe::GiveUp {
            target,
            count,
            milliseconds,
        } => held::give_up(target, *count, Duration::from_millis(*milliseconds)),
    };
    match outcome {
        Ok(line) => println!("{line}"),
        Err(failure) => {
            println!("{failure}");
            std::process::exit(1);
        }
    }
    Ok(())
}
