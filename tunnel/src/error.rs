//! Errors of a whole tunnel.

use std::io::ErrorKind;
use std::time::Duration;

use crate::io::SocketState;
use crate::proto::tunnel::TunnelEnd;
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
        "nothing that was sent was acknowledged for {} s; the link is cut",
        TUNNEL_USER_TIMEOUT.as_secs()
    )]
    Unacknowledged,
    /// It ended while the peer's kernel had acknowledged small packets and never a large one.
    #[error(
        "small packets were acknowledged, and not one large one: something on the way loses packets \
         below the MTU of this host's route; give --tunnel-mss, such as 1200, or set \
         net.ipv4.tcp_mtu_probing=1"
    )]
    LargePacketsLost,
    /// The peer closed the connection.
    #[error("the peer closed the tunnel")]
    Closed,
    /// Nothing arrived from the peer for too long.
    #[error("nothing came from the peer for {} s; it is dead or cannot be reached", .0.as_secs())]
    PeerSilent(Duration),
    /// The agent has enough tunnels, and does not want this one.
    #[error("the agent has enough tunnels and does not want this one")]
    Declined,
    /// The agent answered a call with an error.
    #[error("the agent answered {0}")]
    Call(String),
}

impl TunnelError {
    /// What an agent reports of it on the next tunnel, since its proxy may not know.
    #[must_use]
    pub fn reported(&self) -> TunnelEnd {
        match self {
            Self::LargePacketsLost => TunnelEnd::LargePacketsLost,
            Self::Unacknowledged => TunnelEnd::Unacknowledged,
            Self::PeerSilent(_) => TunnelEnd::Silent,
            Self::HandshakeTimedOut
            | Self::Http2(_)
            | Self::Closed
            | Self::Declined
            | Self::Call(_) => TunnelEnd::Unspecified,
        }
    }

    /// The same, with what is known about the tunnel's socket.
    pub(crate) fn on(self, socket: &SocketState) -> Self {
        let is_lost = matches!(self, Self::Unacknowledged | Self::Http2(_) | Self::Closed);
        if is_lost && socket.has_lost_large_packets() {
            return Self::LargePacketsLost;
        }
        self
    }
}

impl From<h2::Error> for TunnelError {
    fn from(error: h2::Error) -> Self {
        match error.get_io() {
            Some(io) if io.kind() == ErrorKind::TimedOut => Self::Unacknowledged,
            _ => Self::Http2(error),
        }
    }
}
