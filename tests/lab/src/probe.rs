//! Small clients and servers for the demo and the whole-chain tests. They run as processes of a
//! lab's hosts: a connect hook sees processes by their cgroup, so a thread of the test itself would
//! not be steered.
//!
//! A [`Client`] is passed as JSON on the command line; its [`Report`]s are printed as JSON, one per
//! line.

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

/// Limit of every wait of a client: longer than any pause that the tests make on purpose.
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

/// What a client does with `target`, which is `host:port`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Client {
    /// Sends a text, ends its direction and reads everything until the server ends. Without a text
    /// it reads one line. [`Report::Answer`].
    Talk {
        /// Host and port.
        target: String,
        /// The text; may be empty.
        send: String,
    },
    /// Connects and closes. [`Report::Connected`].
    Dial {
        /// Host and port.
        target: String,
        /// Limit for the connect.
        patience: Duration,
    },
    /// Sends bytes that the server may not read, and reads the answer meanwhile.
    /// [`Report::Received`].
    Overrun {
        /// Host and port.
        target: String,
        /// The number of bytes.
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
        /// The number of bytes.
        bytes: u64,
    },
    /// Sends each message after the answer to the previous one. [`Report::Exchanged`].
    PingPong {
        /// Host and port.
        target: String,
        /// The number of messages.
        rounds: u32,
    },
    /// Opens connections to a source without reading. [`Report::Stalled`] once data waits in all.
    /// After a line of input it reads all of them to the end. [`Report::Drained`].
    Stall {
        /// Host and port.
        target: String,
        /// The number of connections.
        count: usize,
    },
    /// Opens connections to an echo; [`Report::Held`], then [`Report::AllServed`] or
    /// [`Report::Broken`] for each line of input.
    Hold {
        /// Host and port.
        target: String,
        /// The number of connections.
        count: usize,
    },
    /// Opens connections to an echo. [`Report::Held`]. Sends one byte on each and reads it back,
    /// again after each pause. [`Report::AllServed`].
    Drip {
        /// Host and port.
        target: String,
        /// The number of connections.
        count: usize,
        /// The pause between two bytes.
        pause: Duration,
        /// The number of pauses.
        rounds: usize,
    },
    /// Sends a text and ends its direction. [`Report::HalfClosed`], then [`Report::Answer`] for
    /// each received line. It stays connected until its input ends.
    HalfClose {
        /// Host and port.
        target: String,
        /// The number of lines that it waits for.
        lines: usize,
    },
    /// Reads until the server ends, then sends bytes and ends. [`Report::OutLived`].
    OutLive {
        /// Host and port.
        target: String,
        /// The number of bytes.
        bytes: u64,
    },
    /// Opens connections at once, waits a little for an answer and closes. [`Report::Answered`].
    GiveUp {
        /// Host and port.
        target: String,
        /// The number of connections.
        count: usize,
        /// How long each connection waits.
        patience: Duration,
    },
}

impl Client {
    /// [`Client::Talk`] that reads one line.
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
    pub fn hold_open(target: impl Into<String>, count: usize) -> Self {
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

    /// Completes a command line that ends with the program and its subcommand `probe`, which takes
    /// [`Args`].
    ///
    /// # Errors
    /// Never in practice: every client can be written as JSON.
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
            Self::Hold { target, count } => held::hold_open(target, *count),
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
            } => held::count_answered(target, *count, *patience),
        }
    }
}

fn client_of_json(text: &str) -> Result<Client, serde_json::Error> {
    serde_json::from_str(text)
}

/// Runs one client or server.
///
/// # Errors
/// A server fails. Errors of a client are reported on its output.
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
