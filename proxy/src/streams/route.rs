//! From what a client dialled to a stream whose backend has answered.

mod shares;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_api::NodeName;
use culvert_daemon::Worker;
use culvert_tunnel::proto::tunnel::{DialCode, Open};
use culvert_tunnel::{DEFAULT_MAX_STREAMS, DialFailure, Early, OpenError, Stream, dial_reason};

use crate::directory::{Destination, Directory, ResolveError, Target};
use crate::metrics::Metrics;
use crate::streams::registry::Registry;
pub(crate) use shares::Client;
use shares::{SHARE, Share, Shares};

/// Streams that one agent relays at once, whatever the number of its tunnels: what its stream
/// windows may hold must be bounded.
pub(crate) const MAX_STREAMS_PER_AGENT: u32 = DEFAULT_MAX_STREAMS;

/// Tunnels that are tried for one stream before its client is told that there is no way.
const ATTEMPTS: usize = 3;

/// Finds nodes and opens streams to them. Clones share it.
#[derive(Clone)]
pub(crate) struct Router(Arc<Shared>);

struct Shared {
    directory: Directory,
    registry: Registry,
    metrics: Metrics,
    next_stream: AtomicU64,
    shares: Shares,
}

/// Why a client gets no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    /// The destination leads to no node.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The node has no tunnel.
    #[error("{node} is offline: its agent has no tunnel to this proxy")]
    Offline { node: NodeName },
    /// The agent has all the streams it may have.
    #[error("{node} has {MAX_STREAMS_PER_AGENT} streams, as many as one agent may have")]
    TooManyStreams { node: NodeName },
    /// The client has all the streams to the node that it may have.
    #[error("this client has {SHARE} streams to {node}, as many as one address may have")]
    ShareTaken { node: NodeName },
    /// The agent says that there is no connection, and why.
    #[error("{node}: {}", .failure.message)]
    Dial {
        node: NodeName,
        failure: DialFailure,
    },
    /// The proxy itself could not dial it.
    #[error("{address}, dialled from the proxy itself: {}", .failure.message)]
    Direct {
        address: SocketAddr,
        failure: DialFailure,
    },
    /// No tunnel of the node could be used.
    #[error("open a stream to {node}")]
    Tunnel { node: NodeName, source: OpenError },
}

impl RouteError {
    /// Label for metrics and logs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Resolve(error) => error.reason(),
            Self::Offline { .. } => "offline",
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
            } => "client_left",
            Self::Tunnel { .. } => "tunnel_lost",
        }
    }
}

impl Router {
    pub(crate) fn new(directory: Directory, registry: Registry, metrics: Metrics) -> Self {
        Self(Arc::new(Shared {
            directory,
            registry,
            metrics,
            next_stream: AtomicU64::default(),
            shares: Shares::default(),
        }))
    }

    /// A number for a stream, unique in this run of the proxy, the same in its log and the agent's.
    pub(crate) fn number(&self) -> u64 {
        self.0.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// Where `destination` leads.
    pub(crate) fn resolve(&self, destination: &Destination) -> Result<Target, ResolveError> {
        self.0.directory.resolve(destination)
    }

    /// The thread on which a stream to `node` is best opened and relayed: that of the tunnel which
    /// it will take.
    pub(crate) fn worker(&self, node: &NodeName) -> Option<Worker> {
        self.0
            .registry
            .candidates(node)
            .first()
            .map(|registered| registered.worker.clone())
    }

    /// Lets `client` have one more stream to the target's node, as long as it holds what is
    /// returned.
    pub(crate) fn share(&self, target: &Target, client: Client) -> Result<Share, RouteError> {
        let node = || target.node.clone();
        let share = self
            .0
            .shares
            .take(&target.node, client)
            .ok_or_else(|| RouteError::ShareTaken { node: node() })?;
        if self.streams(&target.node) >= client.limit(target) {
            Err(RouteError::TooManyStreams { node: node() })
        } else {
            Ok(share)
        }
    }

    fn streams(&self, node: &NodeName) -> u32 {
        self.0
            .registry
            .candidates(node)
            .iter()
            .map(|registered| registered.tunnel.streams())
            .sum()
    }

    /// Opens stream `number` to `target`; an `early` client's first bytes go ahead. Dropping the
    /// future cancels the dial at the agent.
    pub(crate) async fn open(
        &self,
        target: &Target,
        destination: &Destination,
        number: u64,
        early: Option<Early<'_>>,
    ) -> Result<Stream, RouteError> {
        let dial = self.0.metrics.dial();
        let open = || Open {
            address: target
                .address
                .map(|address| address.to_string())
                .unwrap_or_default(),
            port: target.port.into(),
            original_dst: destination.to_string(),
            stream: number,
            ..Open::default()
        };
        // Boxed: a stream's task keeps room for all that it ever awaits.
        let opened = Box::pin(self.open_in_any(&target.node, open, early)).await;
        dial.ended(
            opened
                .as_ref()
                .map_or_else(RouteError::reason, |_| dial_reason(DialCode::Ok)),
        );
        opened
    }

    async fn open_in_any(
        &self,
        node: &NodeName,
        open: impl Fn() -> Open,
        early: Option<Early<'_>>,
    ) -> Result<Stream, RouteError> {
        let tunnels = self.0.registry.candidates(node);
        if tunnels
            .iter()
            .map(|registered| registered.tunnel.streams())
            .sum::<u32>()
            >= MAX_STREAMS_PER_AGENT
        {
            return Err(RouteError::TooManyStreams { node: node.clone() });
        }
        let mut failed = None;
        for registered in tunnels.iter().take(ATTEMPTS) {
            match registered.tunnel.open(open(), early).await {
                Ok(stream) => return Ok(stream),
                // The tunnel failed, not the backend, whose dial the agent bounds: another one may
                // do. What the client has said may be at the backend already, and must not be said
                // twice.
                Err(error @ (OpenError::Tunnel(_) | OpenError::TimedOut))
                    if !early.is_some_and(Early::has_gone) =>
                {
                    failed = Some(error);
                }
                Err(error) => return Err(refused(node, error)),
            }
        }
        match failed {
            Some(source) => Err(RouteError::Tunnel {
                node: node.clone(),
                source,
            }),
            None => Err(RouteError::Offline { node: node.clone() }),
        }
    }
}

fn refused(node: &NodeName, error: OpenError) -> RouteError {
    let node = node.clone();
    match error {
        OpenError::TooManyStreams(_) => RouteError::TooManyStreams { node },
        OpenError::Refused(failure) => RouteError::Dial { node, failure },
        source @ (OpenError::Tunnel(_)
        | OpenError::TimedOut
        | OpenError::Answer(_)
        | OpenError::Client(_)) => RouteError::Tunnel { node, source },
    }
}

#[cfg(test)]
mod tests;
