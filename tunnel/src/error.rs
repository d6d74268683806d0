//! Why a tunnel, as a whole, ended or could not be used.

use std::time::Duration;

/// Why a tunnel ended.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// HTTP/2 was not set up in time.
    #[error("the peer did not finish the HTTP/2 handshake in time")]
    HandshakeTimedOut,
    /// The connection failed, or the peer ended it with an error.
    #[error("HTTP/2")]
    Http2(#[source] h2::Error),
    /// The peer closed the connection.
    #[error("the peer closed the tunnel")]
    Closed,
    /// Nothing came from the peer for too long.
    #[error("nothing came from the peer for {} s; it is dead or cannot be reached", .0.as_secs())]
    PeerSilent(Duration),
    /// A call to the agent was answered with an error.
    #[error("the agent answered {0}")]
    Call(String),
}
