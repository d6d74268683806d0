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
    /// All data of the other side has arrived, and then its connection was reset.
    #[error("the other side's connection was reset")]
    Aborted,
    /// The tunnel ended.
    #[error("the tunnel was lost")]
    Tunnel(#[source] h2::Error),
    /// This end's socket was stalled, and was evicted because stalled sockets held too much.
    #[error("this side's connection was stalled while more than --buffer-budget waited in memory")]
    Budget,
    /// The client dialled an address or a name that is another node's now.
    #[error("the address or name that was dialled is another node's now")]
    Moved,
    /// The other end sent an invalid data frame.
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
            Self::Moved => "address_moved",
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
