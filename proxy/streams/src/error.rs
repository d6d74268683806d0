//! The reasons why a client gets no connection.

use std::net::SocketAddr;

use culvert_api::NodeName;
use culvert_proxy_core::directory::ResolveError;
use culvert_proxy_core::metrics::UnansweredDial;
use culvert_tunnel::{DialFailure, OpenError, dial_reason};

use crate::limits::{MAX_STREAMS_PER_AGENT, SHARE};

/// The reason why a client gets no connection.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The destination leads to no node.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The node has no tunnel.
    #[error("{node} is offline: its agent has no tunnel to this proxy")]
    Offline {
        /// The node.
        node: NodeName,
    },
    /// The agent has reached its limit of streams.
    #[error("{node} has {MAX_STREAMS_PER_AGENT} streams, as many as one agent may have")]
    TooManyStreams {
        /// The node.
        node: NodeName,
    },
    /// The client has reached its limit of streams to the node.
    #[error("this client has {SHARE} streams to {node}, as many as one address may have")]
    ShareTaken {
        /// The node.
        node: NodeName,
    },
    /// The agent could not connect, with its reason.
    #[error("{node}: {}", .failure.message)]
    Dial {
        /// The node.
        node: NodeName,
        /// The failure.
        failure: DialFailure,
    },
    /// The proxy itself could not dial it.
    #[error("{address}, dialled from the proxy itself: {}", .failure.message)]
    Direct {
        /// The address.
        address: SocketAddr,
        /// The failure.
        failure: DialFailure,
    },
    /// None of the node's tunnels worked.
    #[error("open a stream to {node}")]
    Tunnel {
        /// The node.
        node: NodeName,
        /// The cause.
        source: OpenError,
    },
}

impl RouteError {
    /// Label for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Resolve(error) => error.reason(),
            Self::Offline { .. } => UnansweredDial::Offline.into(),
            Self::TooManyStreams { .. } => "too_many_streams",
            Self::ShareTaken { .. } => "client_share",
            Self::Dial { failure, .. } | Self::Direct { failure, .. } => dial_reason(failure.code),
            Self::Tunnel {
                source: OpenError::TimedOut,
                ..
            } => "timed_out",
            Self::Tunnel {
                source: OpenError::Client(_),
                ..
            } => UnansweredDial::ClientLeft.into(),
            Self::Tunnel { .. } => UnansweredDial::TunnelLost.into(),
        }
    }
}
