//! Why a slot has no tunnel.

use std::time::Duration;

use culvert_tunnel::TunnelError;

use crate::dial::connect::ConnectError;
use crate::dial::tls::TlsError;
use crate::metrics::AttemptOutcome;
use crate::tunnels::placement::ProxyId;

/// Why there is no tunnel (any more).
#[derive(Debug, thiserror::Error)]
pub(super) enum SlotError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the proxy does not take this node: {0}")]
    Refused(String),
    #[error("the proxy closed the tunnel before using it; its log says why")]
    Dismissed,
    #[error("the proxy did not begin to use the tunnel in time")]
    Unused,
    #[error("the agent has enough tunnels to proxy {0}, or to others")]
    Declined(ProxyId),
    #[error("the tunnel ended")]
    Tunnel(#[from] TunnelError),
}

impl SlotError {
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_refusal(),
            Self::Tls(error) => matches!(error, TlsError::Refused(_)),
            Self::Refused(_) => true,
            Self::Dismissed | Self::Unused | Self::Declined(_) | Self::Tunnel(_) => false,
        }
    }

    /// From when to when to come again, as a proxy says that has no place.
    pub(super) fn times(&self) -> Option<[Duration; 2]> {
        let (Self::Connect(ConnectError::Tls { source, .. }) | Self::Tls(source)) = self else {
            return None;
        };
        let TlsError::Busy { times, .. } = source else {
            return None;
        };
        *times
    }

    /// Label for metrics; none for a tunnel that was up.
    pub(super) fn outcome(&self) -> Option<AttemptOutcome> {
        match self {
            Self::Tunnel(_) => None,
            _ if self.is_refusal() => Some(AttemptOutcome::Refused),
            Self::Connect(ConnectError::Outbound { .. }) => Some(AttemptOutcome::Unreachable),
            Self::Connect(ConnectError::Tls { .. }) | Self::Tls(_) => Some(AttemptOutcome::Tls),
            Self::Refused(_) => Some(AttemptOutcome::Refused),
            Self::Dismissed => Some(AttemptOutcome::Dismissed),
            Self::Declined(_) => Some(AttemptOutcome::Declined),
            Self::Connect(ConnectError::TimedOut { .. }) | Self::Unused => {
                Some(AttemptOutcome::TimedOut)
            }
        }
    }
}
