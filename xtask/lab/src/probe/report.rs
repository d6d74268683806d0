//! What clients report.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use serde::{Deserialize, Serialize};

use super::Passed;

/// One line of a client's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// What the server said.
    Answer(String),
    /// The server took the connection.
    Connected,
    /// All that the server sent.
    Received(Passed),
    /// All that was sent, and what the server said of it.
    Uploaded {
        /// By the client.
        sent: Passed,
        /// The server's text.
        answer: String,
    },
    /// So many messages there and back.
    Exchanged(u32),
    /// What the server said before it ended its direction, and what was sent after that.
    OutLived {
        /// The server's text.
        answer: String,
        /// By the client.
        sent: Passed,
    },
    /// So many connections were answered.
    Answered(usize),
    /// Data wait in all connections.
    Stalled,
    /// So many bytes were read from all connections.
    Drained(u64),
    /// All connections are up.
    Held,
    /// All connections still work.
    AllServed,
    /// Some connections do not work any more.
    Broken {
        /// How many.
        count: usize,
        /// What the first of them met.
        first: Failure,
    },
    /// The client has ended its direction.
    HalfClosed,
    /// The client's input has ended.
    Left,
    /// The client failed.
    Failed(Failure),
}

impl Report {
    pub(super) fn print(&self) -> io::Result<()> {
        let mut out = io::stdout();
        writeln!(out, "{}", serde_json::to_string(self)?)?;
        out.flush()
    }
}

/// What a client was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Asking for the address of a name.
    Resolve,
    /// Connecting.
    Connect,
    /// Writing.
    Write,
    /// Ending its direction.
    End,
    /// Reading.
    Read,
    /// Comparing what came back.
    Compare,
    /// Talking to the test.
    Report,
}

/// Why a client failed, as far as tests tell causes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Nobody listens, or the kernel said so.
    Refused,
    /// The other end broke the connection.
    Reset,
    /// Nothing came in time.
    TimedOut,
    /// There is no way to the host.
    Unreachable,
    /// Anything else.
    Other,
}

impl From<ErrorKind> for Cause {
    fn from(kind: ErrorKind) -> Self {
        if kind == ErrorKind::ConnectionRefused {
            Self::Refused
        } else if kind == ErrorKind::ConnectionReset {
            Self::Reset
        } else if [ErrorKind::TimedOut, ErrorKind::WouldBlock].contains(&kind) {
            Self::TimedOut
        } else if [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable].contains(&kind) {
            Self::Unreachable
        } else {
            Self::Other
        }
    }
}

/// What went wrong, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What the client was doing.
    pub phase: Phase,
    /// Why it failed.
    pub cause: Cause,
    /// The error's text.
    pub text: String,
}

impl Failure {
    /// Whether this happened in that phase for that cause.
    #[must_use]
    pub fn is(&self, phase: Phase, cause: Cause) -> bool {
        (self.phase, self.cause) == (phase, cause)
    }

    /// For `map_err`: the failure of a phase.
    pub(super) fn of(phase: Phase) -> impl Fn(io::Error) -> Self {
        move |error| Self {
            phase,
            cause: error.kind().into(),
            text: error.to_string(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}: {}", self.phase, self.cause, self.text)
    }
}

impl std::error::Error for Failure {}
