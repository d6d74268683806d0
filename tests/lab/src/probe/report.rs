//! The reports of clients.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use serde::{Deserialize, Serialize};

use super::Passed;

/// One line of a client's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The server's text.
    Answer(String),
    /// The server accepted the connection.
    Connected,
    /// Everything that the server sent.
    Received(Passed),
    /// Everything that was sent, and the server's answer.
    Uploaded {
        /// What the client sent.
        sent: Passed,
        /// The server's text.
        answer: String,
    },
    /// The number of messages that were sent and answered.
    Exchanged(u32),
    /// The server's text before it ended its direction, and what was sent after that.
    OutLived {
        /// The server's text.
        answer: String,
        /// What the client sent.
        sent: Passed,
    },
    /// The number of connections that were answered.
    Answered(usize),
    /// Data waits in all connections.
    Stalled,
    /// The number of bytes read from all connections.
    Drained(u64),
    /// All connections are up.
    Held,
    /// All connections still work.
    AllServed,
    /// Some connections no longer work.
    Broken {
        /// The number of broken connections.
        count: usize,
        /// The failure of the first one.
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

/// The phase in which a client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Looking up a name.
    Resolve,
    /// Connecting.
    Connect,
    /// Writing.
    Write,
    /// Ending its direction.
    End,
    /// Reading.
    Read,
    /// Comparing the answer.
    Compare,
    /// Reporting to the test.
    Report,
}

/// Why a client failed, as far as the tests distinguish causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The connection was refused.
    Refused,
    /// The peer reset the connection.
    Reset,
    /// Nothing arrived in time.
    TimedOut,
    /// There is no route to the host.
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

/// A failure and its phase.
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
    /// Whether it has this phase and cause.
    #[must_use]
    pub fn is(&self, phase: Phase, cause: Cause) -> bool {
        (self.phase, self.cause) == (phase, cause)
    }

    /// For `map_err`: makes a failure in `phase`.
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
