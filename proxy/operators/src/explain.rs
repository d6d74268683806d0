//! `culvert why`: what would happen to a connection, and why. This module gathers the facts; `words`
//! makes the text.

mod reported_rules;
mod words;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use culvert_api::{Host, HostPort, InvalidHostPort, Query, Zone};
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::{Destination, Directory, NodeView, ResolveError, Target};
use culvert_proxy_streams::copies::Misplaced;
use culvert_proxy_streams::direct::{Direct, DirectTarget};
use culvert_proxy_streams::error::RouteError;
use culvert_proxy_streams::history::LastEvents;
use culvert_proxy_streams::peers::PeerView;
use culvert_proxy_streams::registry::{Registered, Registry};
use culvert_proxy_streams::route::{Route, Router};
use culvert_tunnel::proto::tunnel::DescribeResponse;
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::stream_list::StreamList;
pub(crate) use reported_rules::ReportedRules;
pub(crate) use words::{Explanation, Line};

/// The limit for all attempts of a dial together; less than the command waits for the proxy's
/// answer.
const DIAL_TIME: Duration = Duration::from_secs(9);

/// Whether to dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dial {
    Yes,
    No,
}

/// Answers operators. Clones share what they inspect.
#[derive(Clone)]
pub struct Explainer {
    directory: Directory,
    registry: Registry,
    router: Router,
    direct: Option<Direct>,
    /// The connections under way.
    streams: Option<StreamList>,
    started: UnixTime,
}

/// The reason why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExplainError {
    #[error(transparent)]
    Query(#[from] InvalidHostPort),
    #[error("a dial needs a port, such as {destination}:9100")]
    NoPort { destination: String },
}

/// All facts about a destination.
#[derive(Debug)]
struct Facts {
    query: Query,
    target: Result<Target, ResolveError>,
    /// The address that CONNECT dials without a tunnel.
    direct: Option<DirectTarget>,
    /// The target's node, or the nodes that have the address.
    owners: Vec<NodeView>,
    zone: Zone,
    /// Names that clients reach the target's node by.
    names: Vec<String>,
    tunnels: Vec<TunnelFacts>,
    /// What is wrong with the places of its agents.
    misplaced: Option<Misplaced>,
    /// The peers where tunnels of the target's node end, and whether they can be reached.
    peers: Vec<PeerFacts>,
    past: LastEvents,
    started: UnixTime,
    dial: Option<Result<Accepted, DialError>>,
    /// How long clients of the target wait for it, the longest wait first.
    waits: Vec<Duration>,
}

/// A backend accepted a test connection.
#[derive(Debug)]
struct Accepted {
    time: Duration,
    /// What the agent tried before.
    tried: Option<String>,
}

impl Facts {
    /// Whether no proxy that this one reaches has a tunnel of the node.
    fn is_offline(&self) -> bool {
        self.tunnels.is_empty() && self.peers.iter().all(|peer| peer.links == 0)
    }

    /// The address in the question; `None` for a name.
    fn address(&self) -> Option<IpAddr> {
        match self.query.host {
            Host::Address(ip) => Some(ip),
            Host::Name(_) => None,
        }
    }
}

/// A tunnel of the target's node.
#[derive(Debug)]
struct TunnelFacts {
    agent: SocketAddr,
    described: DescribeResponse,
    up: Duration,
    round_trip: Option<Duration>,
    streams: u32,
    silent: bool,
}

/// A peer where a tunnel of the target's node ends.
#[derive(Debug)]
struct PeerFacts {
    host: String,
    links: usize,
    round_trip: Option<Duration>,
    streams: u32,
}

/// The way in which a test dial failed.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("no tunnel had an answer within {} s", DIAL_TIME.as_secs())]
    TimedOut,
}

impl Explainer {
    /// It dials nothing without a tunnel, and knows no streams.
    pub fn new(directory: Directory, registry: Registry, router: Router) -> Self {
        Self {
            directory,
            registry,
            router,
            direct: None,
            streams: None,
            started: UnixTime::now(),
        }
    }

    /// The same, with the connections under way.
    pub fn with_streams(self, streams: StreamList) -> Self {
        Self {
            streams: Some(streams),
            ..self
        }
    }

    /// The same, with what CONNECT reaches without a tunnel.
    pub fn with_direct(self, direct: Direct) -> Self {
        Self {
            direct: Some(direct),
            ..self
        }
    }

    /// Explains what `text` asks about. Dials it if asked to, and sends nothing.
    pub(crate) async fn explain(
        &self,
        text: &str,
        dial: Dial,
    ) -> Result<Explanation, ExplainError> {
        let query: Query = text.parse()?;
        if dial == Dial::Yes && query.port.is_none() {
            return Err(ExplainError::NoPort {
                destination: text.to_owned(),
            });
        }
        let destination = destination(&query);
        let route = self.router.route(destination.clone());
        let direct = match (&route, &self.direct) {
            (Err(error), Some(direct)) => direct.target(&destination, error),
            (Ok(_), _) | (Err(_), None) => None,
        };
        let dialled = match (dial, &route, &direct) {
            (Dial::No, ..) | (Dial::Yes, Err(_), None) => None,
            (Dial::Yes, Ok(route), _) => Some(self.dial(route, &destination).await),
            (Dial::Yes, Err(_), Some(target)) => self.dial_directly(target).await,
        };
        Ok(words::explanation(&Facts {
            direct,
            dial: dialled,
            ..self.facts(query, route).await
        }))
    }

    async fn facts(&self, query: Query, route: Result<Route, ResolveError>) -> Facts {
        match route {
            Ok(route) => self.route_facts(query, route).await,
            Err(error) => self.error_facts(query, error),
        }
    }

    async fn route_facts(&self, query: Query, route: Route) -> Facts {
        let tunnels = route.tunnels().map(|tunnel| tunnel_facts(tunnel));
        let tunnels = join_all(tunnels).await;
        let node = route.target.node.clone();
        let port = route.target.port;
        let mut facts = self.bare_facts(query, Ok(route.target));
        facts.tunnels = tunnels;
        facts.names = self.directory.names_of(&node);
        facts.peers = self
            .registry
            .holders(&node)
            .iter()
            .map(peer_facts)
            .collect();
        facts.past = self.registry.history().of(&node);
        if let Some(view) = self.directory.node(&node) {
            facts.misplaced = self.registry.misplaced_of(&view);
            facts.owners.push(view);
        }
        if let Some(streams) = &self.streams {
            facts.waits = streams.waits_for(&node, port);
        }
        facts
    }

    fn error_facts(&self, query: Query, error: ResolveError) -> Facts {
        let mut owners = Vec::new();
        for node in error.owners() {
            owners.extend(self.directory.node(node));
        }
        let mut facts = self.bare_facts(query, Err(error));
        facts.owners = owners;
        facts
    }

    fn bare_facts(&self, query: Query, target: Result<Target, ResolveError>) -> Facts {
        Facts {
            query,
            target,
            direct: None,
            owners: Vec::new(),
            zone: self.directory.zone(),
            names: Vec::new(),
            tunnels: Vec::new(),
            misplaced: None,
            peers: Vec::new(),
            past: LastEvents::default(),
            started: self.started,
            dial: None,
            waits: Vec::new(),
        }
    }

    async fn dial(&self, route: &Route, destination: &Destination) -> Result<Accepted, DialError> {
        let started = Instant::now();
        let number = self.router.number();
        tracing::info!(
            stream = number,
            node = %route.target.node,
            original_dst = %destination,
            "dialled for `explain`"
        );
        let opened = timeout(DIAL_TIME, self.router.open(route, number, None)).await;
        // Dropping the stream resets it before anything was sent.
        let Ok(opened) = opened else {
            return Err(DialError::TimedOut);
        };
        let opened = opened?;
        Ok(Accepted {
            time: started.elapsed(),
            tried: opened.stream.tried().map(str::to_owned),
        })
    }

    async fn dial_directly(&self, target: &DirectTarget) -> Option<Result<Accepted, DialError>> {
        let started = Instant::now();
        let dialled = self.direct.as_ref()?.dial(target).await;
        let taken = dialled.map(|_| Accepted {
            time: started.elapsed(),
            tried: None,
        });
        Some(taken.map_err(DialError::Route))
    }
}

/// Port 0, which cannot be dialled, stands for a question without a port.
fn destination(query: &Query) -> Destination {
    Destination::from(HostPort {
        host: query.host.clone(),
        port: query.port.unwrap_or_default(),
    })
}

fn peer_facts(peer: &PeerView) -> PeerFacts {
    PeerFacts {
        host: peer.info.host.clone(),
        links: peer.links,
        round_trip: peer.round_trip,
        streams: peer.streams,
    }
}

async fn tunnel_facts(registered: &Registered) -> TunnelFacts {
    TunnelFacts {
        agent: registered.agent,
        described: registered.described_now().await,
        up: registered.since.elapsed(),
        round_trip: registered.tunnel.round_trip(),
        streams: registered.tunnel.streams(),
        silent: registered.tunnel.is_silent(),
    }
}

#[cfg(test)]
mod tests;
