//! Why a relay ended early.

use std::io;

use h2::Reason;

use crate::frame::FrameError;

/// Why a relay ended before both directions did.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// This end's socket failed or was reset.
    #[error("this side's connection")]
    Socket(#[source] io::Error),
    /// The other end reset the stream: its connection failed or was reset.
    #[error("the other side's connection was reset ({0})")]
    Reset(Reason),
    /// All that the other side had to say has come, and then its connection was reset.
    #[error("the other side's connection was reset")]
    Aborted,
    /// The tunnel ended.
    #[error("the tunnel was lost")]
    Tunnel(#[source] h2::Error),
    /// This end's socket took nothing for longer than any other, and too much waits for such
    /// sockets.
    #[error(
        "this side took nothing while too many bytes wait in memory for connections like it: see \
         --buffer-budget"
    )]
    Budget,
    /// The other end sent what is no data frame.
    #[error("the other end of the tunnel broke the protocol")]
    Frame(#[from] FrameError),
}

impl RelayError {
    /// Label for metrics and logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Socket(_) => "reset",
            Self::Reset(_) | Self::Aborted => "peer_reset",
            Self::Tunnel(_) => "tunnel_lost",
            Self::Budget => "buffer_budget",
            Self::Frame(_) => "protocol_error",
        }
    }
}

impl From<h2::Error> for RelayError {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_reset() => Self::Reset(reason),
            _ => Self::Tunnel(error),
        }
    }
}
