//! Takes a client from its destination to a stream whose backend has answered.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_api::NodeName;
use culvert_daemon::{Quota, Worker};
use culvert_proxy_core::directory::{Destination, Directory, ResolveError, Target};
use culvert_proxy_core::metrics::Metrics;
use culvert_tunnel::proto::tunnel::{DialCode, Open};
use culvert_tunnel::{EarlyClient, OpenError, Stream, dial_reason};

use crate::error::RouteError;
use crate::limits::{ClientKind, MAX_STREAMS_PER_AGENT, SHARE, Share};
use crate::live::{Frontend, StreamRecord, Streams};
use crate::registry::{Candidate, Registered, Registry};

/// Tunnels that are tried for one stream.
const ATTEMPTS: usize = 3;

/// Finds nodes and opens streams to them. Clones share it.
#[derive(Clone)]
pub struct Router(Arc<Shared>);

struct Shared {
    directory: Directory,
    registry: Registry,
    streams: Streams,
    metrics: Metrics,
    next_stream: AtomicU64,
    /// The streams of each client address to each node.
    shares: Quota<(NodeName, IpAddr)>,
}

/// Where a proxy begins to number its streams: an agent sees streams of several proxies, and the
/// numbers of no two of these meet. All are below 2^53, which JSON keeps exactly.
fn first_number() -> u64 {
    u64::from(rand::random::<u32>() >> 12) << 32
}

/// A stream whose backend has answered.
pub struct OpenedStream {
    /// The stream.
    pub stream: Stream,
    /// The way that it took.
    pub(crate) candidate: Candidate,
}

/// The route to a destination.
pub struct Route {
    /// The node and what its agent dials.
    pub target: Target,
    pub(crate) destination: Destination,
    /// The ways to the node in the order in which they are tried.
    pub(crate) candidates: Vec<Candidate>,
}

impl Route {
    /// The worker thread on which the stream is best opened and relayed: the thread of the first
    /// candidate.
    pub(crate) fn worker(&self) -> Option<Worker> {
        let first = self.candidates.first();
        first.map(|candidate| candidate.worker().clone())
    }

    /// The node's tunnels that end here.
    pub fn tunnels(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.candidates.iter().flat_map(Candidate::registered)
    }

    /// What the agent is asked for, by way of `candidate`.
    fn request(&self, number: u64, candidate: &Candidate) -> Open {
        let Target {
            node,
            address,
            instead,
            port,
        } = &self.target;
        let mut open = Open {
            address: address.map(|ip| ip.to_string()).unwrap_or_default(),
            port: (*port).into(),
            original_dst: self.destination.to_string(),
            stream: number,
            instead: instead.iter().map(ToString::to_string).collect(),
            ..Open::default()
        };
        if let Candidate::Peer(_) = candidate {
            open.hops = 1;
            open.node = node.to_string();
        }
        open
    }

    /// Streams in the node's tunnels that end here.
    fn streams(&self) -> u32 {
        self.tunnels()
            .map(|registered| registered.tunnel.streams())
            .sum()
    }
}

impl Router {
    /// Chooses among the tunnels of `registry`.
    pub fn new(
        directory: Directory,
        registry: Registry,
        streams: Streams,
        metrics: Metrics,
    ) -> Self {
        Self(Arc::new(Shared {
            directory,
            registry,
            streams,
            metrics,
            next_stream: AtomicU64::new(first_number()),
            shares: Quota::new(SHARE as usize, usize::MAX),
        }))
    }

    /// A number for a stream, unique in this run of the proxy. The logs of proxy and agent have the
    /// same number.
    pub fn number(&self) -> u64 {
        self.0.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins the record of a client whose destination is known. `client` is its address or a
    /// description.
    pub fn start_record(
        &self,
        frontend: Frontend,
        client: String,
        destination: &Destination,
    ) -> StreamRecord {
        let number = self.number();
        self.0
            .streams
            .start_record(number, frontend, client, destination.clone())
    }

    /// The nodes.
    pub fn directory(&self) -> &Directory {
        &self.0.directory
    }

    /// Resolves `destination`.
    pub fn resolve(&self, destination: &Destination) -> Result<Target, ResolveError> {
        self.0.directory.resolve(destination)
    }

    /// The route to `destination`, with its tunnels.
    pub fn route(&self, destination: Destination) -> Result<Route, ResolveError> {
        let target = self.resolve(&destination)?;
        let candidates = self.0.registry.candidates(&target.node);
        Ok(Route {
            target,
            destination,
            candidates,
        })
    }

    /// Whether some proxy has a tunnel of the node.
    pub fn is_connected(&self, node: &NodeName) -> bool {
        !self.0.registry.candidates(node).is_empty()
    }

    /// Reserves one more stream to the route's node for a client, until the result is dropped.
    pub(super) fn share(&self, route: &Route, client: ClientKind) -> Result<Share, RouteError> {
        let node = &route.target.node;
        let mut share = None;
        if let ClientKind::Address(ip) = client {
            share = self.0.shares.acquire((node.clone(), ip));
            if share.is_none() {
                return Err(RouteError::ShareTaken { node: node.clone() });
            }
        }
        if route.streams() >= client.limit(&route.target) {
            return Err(RouteError::TooManyStreams { node: node.clone() });
        }
        Ok(share)
    }

    /// The tunnels.
    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Opens stream `number`. The first bytes of an `early` client are sent along. Dropping the
    /// future cancels the dial at the agent.
    pub async fn open(
        &self,
        route: &Route,
        number: u64,
        early: Option<EarlyClient<'_>>,
    ) -> Result<OpenedStream, RouteError> {
        let dial = self.0.metrics.dial();
        // Boxed, because a stream's task keeps space for every future that it awaits.
        let opened = Box::pin(open_in_any(&self.0.registry, route, number, early)).await;
        dial.ended(match &opened {
            Ok(_) => dial_reason(DialCode::Ok),
            Err(error) => error.reason(),
        });
        opened
    }
}

async fn open_in_any(
    registry: &Registry,
    route: &Route,
    number: u64,
    early: Option<EarlyClient<'_>>,
) -> Result<OpenedStream, RouteError> {
    let node = &route.target.node;
    if route.streams() >= MAX_STREAMS_PER_AGENT {
        return Err(RouteError::TooManyStreams { node: node.clone() });
    }
    let mut failed = None;
    let mut tried = Vec::new();
    let mut next = route.candidates.first().cloned();
    while let Some(candidate) = next
        && tried.len() < ATTEMPTS
    {
        let open = route.request(number, &candidate);
        let error = match candidate.tunnel().open(open, early).await {
            Ok(stream) => return Ok(OpenedStream { stream, candidate }),
            Err(error) => error,
        };
        // The backend may already have the first bytes of the client: it must not get them twice.
        if let Some(early) = early
            && early.has_gone()
        {
            return Err(open_failed(node, error));
        }
        if !is_offline_at_peer(&candidate, &error) {
            // If the tunnel failed, and not the backend, another tunnel can work. A backend that
            // does not answer is no time-out here, because the agent bounds its dial.
            if !matches!(error, OpenError::Tunnel(_) | OpenError::TimedOut) {
                return Err(open_failed(node, error));
            }
            failed = Some(error);
        }
        tried.push(candidate);
        // A tunnel may have come up meanwhile.
        let mut candidates = registry.candidates(node).into_iter();
        next = candidates.find(|one| !tried.iter().any(|tried| one.is_same(tried)));
    }
    match failed {
        Some(source) => Err(RouteError::Tunnel {
            node: node.clone(),
            source,
        }),
        None => Err(RouteError::Offline { node: node.clone() }),
    }
}

/// Whether the other proxy has no tunnel of the node any more, so that the agent got nothing.
fn is_offline_at_peer(candidate: &Candidate, error: &OpenError) -> bool {
    let OpenError::Refused(failure) = error else {
        return false;
    };
    matches!(candidate, Candidate::Peer(_)) && failure.code == DialCode::Offline
}

fn open_failed(node: &NodeName, error: OpenError) -> RouteError {
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
