//! Small clients and servers for the demo and the whole-chain tests, run as processes of a lab's
//! hosts: a connect hook sees processes by their cgroup, so a thread of the test itself would not
//! do.
//!
//! A [`Client`] goes in as JSON on the command line; its [`Report`]s come out as JSON, one a line.

mod bytes;
mod client;
mod held;
mod report;
mod server;

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use serde::{Deserialize, Serialize};

pub use bytes::Passed;
pub use report::{Cause, Failure, Phase, Report};

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
    /// Is a client, and prints what it reports
    Client {
        /// JSON
        #[arg(value_parser = client_of_json)]
        client: Client,
    },
}

/// What a client does at `target`, which is `host:port`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Client {
    /// Sends a text, ends its direction and reads all that comes back; without a text it reads one
    /// line. [`Report::Answer`].
    Talk {
        /// Host and port.
        target: String,
        /// The text; may be empty.
        send: String,
    },
    /// Connects and leaves. [`Report::Connected`].
    Dial {
        /// Host and port.
        target: String,
        /// How long it waits at most.
        patience: Duration,
    },
    /// Sends bytes that the server may not want while reading what it says. [`Report::Received`].
    Overrun {
        /// Host and port.
        target: String,
        /// How many.
        bytes: u64,
    },
    /// Reads until the server closes. [`Report::Received`].
    Download {
        /// Host and port.
        target: String,
    },
    /// Sends bytes to a sink. [`Report::Uploaded`].
    Upload {
        /// Host and port.
        target: String,
        /// How many.
        bytes: u64,
    },
    /// Sends a message when the answer to the one before has come. [`Report::Exchanged`].
    PingPong {
        /// Host and port.
        target: String,
        /// How many messages.
        rounds: u32,
    },
    /// Opens connections to a source without reading; [`Report::Stalled`] once data wait in all.
    /// After a line of input it reads all of them to the end; [`Report::Drained`].
    Stall {
        /// Host and port.
        target: String,
        /// How many connections.
        count: usize,
    },
    /// Opens connections to an echo; [`Report::Held`], then [`Report::AllServed`] or
    /// [`Report::Broken`] for each line of input.
    Hold {
        /// Host and port.
        target: String,
        /// How many connections.
        count: usize,
    },
    /// Opens connections to an echo; [`Report::Held`]; sends one byte in each and reads it back,
    /// again after each pause; [`Report::AllServed`].
    Drip {
        /// Host and port.
        target: String,
        /// How many connections.
        count: usize,
        /// Between two bytes.
        pause: Duration,
        /// How many pauses.
        rounds: usize,
    },
    /// Sends a text and ends its direction; [`Report::HalfClosed`], then [`Report::Answer`] for
    /// each line that comes; holds on until its input ends.
    HalfClose {
        /// Host and port.
        target: String,
        /// How many lines it waits for.
        lines: usize,
    },
    /// Reads to the server's end, then sends bytes and ends. [`Report::OutLived`].
    OutLive {
        /// Host and port.
        target: String,
        /// How many.
        bytes: u64,
    },
    /// Opens connections at once, waits a little for an answer and leaves. [`Report::Answered`].
    GiveUp {
        /// Host and port.
        target: String,
        /// How many connections.
        count: usize,
        /// How long each waits.
        patience: Duration,
    },
}

impl Client {
    /// [`Client::Talk`] that listens for one line.
    pub fn listen(target: impl Into<String>) -> Self {
        Self::talk(target, "")
    }

    /// See [`Client::Talk`].
    pub fn talk(target: impl Into<String>, send: impl Into<String>) -> Self {
        Self::Talk {
            target: target.into(),
            send: send.into(),
        }
    }

    /// See [`Client::Dial`].
    pub fn dial(target: impl Into<String>, patience: Duration) -> Self {
        Self::Dial {
            target: target.into(),
            patience,
        }
    }

    /// See [`Client::Hold`].
    pub fn hold(target: impl Into<String>, count: usize) -> Self {
        Self::Hold {
            target: target.into(),
            count,
        }
    }

    /// See [`Client::Stall`].
    pub fn stall(target: impl Into<String>, count: usize) -> Self {
        Self::Stall {
            target: target.into(),
            count,
        }
    }

    /// See [`Client::Upload`].
    pub fn upload(target: impl Into<String>, bytes: u64) -> Self {
        Self::Upload {
            target: target.into(),
            bytes,
        }
    }

    /// Completes a command line that ends in the program with [`Args`]' subcommand `probe`.
    ///
    /// # Errors
    /// None, in truth: JSON takes every client.
    pub fn complete<'a>(&self, command: &'a mut Command) -> Result<&'a mut Command> {
        Ok(command
            .args(["probe", "client"])
            .arg(serde_json::to_string(self)?))
    }

    fn run(&self) -> Result<Report, Failure> {
        match self {
            Self::Talk { target, send } => client::talk(target, send.as_bytes()),
            Self::Dial { target, patience } => client::dial(target, *patience),
            Self::Overrun { target, bytes } => client::overrun(target, *bytes),
            Self::Download { target } => client::download(target),
            Self::Upload { target, bytes } => client::upload(target, *bytes),
            Self::PingPong { target, rounds } => client::ping_pong(target, *rounds),
            Self::OutLive { target, bytes } => client::out_live(target, *bytes),
            Self::Stall { target, count } => held::stall(target, *count),
            Self::Hold { target, count } => held::hold(target, *count),
            Self::Drip {
                target,
                count,
                pause,
                rounds,
            } => held::drip(target, *count, *pause, *rounds),
            Self::HalfClose { target, lines } => held::half_close(target, *lines),
            Self::GiveUp {
                target,
                count,
                patience,
            } => held::give_up(target, *count, *patience),
        }
    }
}

fn client_of_json(text: &str) -> Result<Client, serde_json::Error> {
    serde_json::from_str(text)
}

/// Runs one client or server.
///
/// # Errors
/// Those of a server; a client's are reported.
pub fn run(args: &Args) -> Result<()> {
    let client = match &args.probe {
        Probe::Serve { services } => return server::serve(services),
        Probe::Client { client } => client,
    };
    match client.run() {
        Ok(report) => report.print()?,
        Err(failure) => {
            Report::Failed(failure).print()?;
            std::process::exit(1);
        }
    }
    Ok(())
}
