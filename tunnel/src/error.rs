//! Errors of a whole tunnel.

use std::io::ErrorKind;
use std::time::Duration;

use crate::tcp::TUNNEL_USER_TIMEOUT;

/// Why a tunnel ended.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The HTTP/2 handshake, or a call's first message, did not complete in time.
    #[error("the peer did not finish the HTTP/2 handshake in time")]
    HandshakeTimedOut,
    /// The connection failed, or the peer ended it with an error.
    #[error("HTTP/2")]
    Http2(#[source] h2::Error),
    /// The peer's kernel did not acknowledge what was sent.
    #[error(
        "nothing that was sent was acknowledged for {} s; the link is cut, or it loses large packets \
         (--tunnel-mss)",
        TUNNEL_USER_TIMEOUT.as_secs()
    )]
    Unacknowledged,
    /// The peer closed the connection.
    #[error("the peer closed the tunnel")]
    Closed,
    /// Nothing arrived from the peer for too long.
    #[error("nothing came from the peer for {} s; it is dead or cannot be reached", .0.as_secs())]
    PeerSilent(Duration),
    /// The agent has tunnels enough, and does not want this one.
    #[error("the agent has tunnels enough and does not want this one")]
    Declined,
    /// The agent answered a call with an error.
    #[error("the agent answered {0}")]
    Call(String),
}

impl From<h2::Error> for TunnelError {
    fn from(error: h2::Error) -> Self {
        match error.get_io() {
            Some(io) if io.kind() == ErrorKind::TimedOut => Self::Unacknowledged,
            _ => Self::Http2(error),
        }
    }
}
