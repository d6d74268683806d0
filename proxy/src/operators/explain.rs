//! `culvert-proxy explain`: what would happen to a connection, and why. What is known is gathered
//! here; the words are found in [`words`].

mod reported_rules;
mod words;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use culvert_api::{Host, HostPort, InvalidHostPort, NodeName, Query, Zone};
use culvert_tunnel::proto::tunnel::DescribeResponse;
use tokio::time::timeout;

use crate::clients::direct::{Direct, DirectTarget};
use crate::clock::UnixTime;
use crate::directory::{Destination, Directory, NodeView, ResolveError, Target};
use crate::streams::history::Past;
use crate::streams::registry::{Registered, Registry};
use crate::streams::route::{RouteError, Router};
pub(crate) use reported_rules::ReportedRules;
pub(crate) use words::{Explanation, Line};

/// All attempts of a dial together; less than the command waits for the proxy's answer.
const DIAL_TIME: Duration = Duration::from_secs(9);

/// Whether to try it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dial {
    Yes,
    No,
}

/// Answers operators. Clones share what they look at.
#[derive(Clone)]
pub(crate) struct Explainer {
    directory: Directory,
    registry: Registry,
    router: Router,
    direct: Option<Direct>,
    started: UnixTime,
}

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExplainError {
    #[error(transparent)]
    Query(#[from] InvalidHostPort),
    #[error("a dial needs a port, such as {destination}:9100")]
    NoPort { destination: String },
}

/// All that is known of a destination.
#[derive(Debug)]
struct Facts {
    query: Query,
    target: Result<Target, ResolveError>,
    /// What CONNECT dials in place of a node.
    direct: Option<DirectTarget>,
    /// The target's node, or those that have the address.
    owners: Vec<NodeView>,
    zone: Zone,
    tunnels: Vec<TunnelFacts>,
    past: Past,
    started: UnixTime,
    dial: Option<Result<Duration, DialError>>,
}

impl Facts {
    /// The address that was asked about; `None` for a name.
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

/// How a dial that was tried went wrong.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("no tunnel had an answer within {} s", DIAL_TIME.as_secs())]
    TimedOut,
}

impl Explainer {
    pub(crate) fn new(directory: Directory, registry: Registry, router: Router) -> Self {
        Self {
            directory,
            registry,
            router,
            direct: None,
            started: UnixTime::now(),
        }
    }

    /// The same, knowing what CONNECT reaches without a tunnel.
    pub(crate) fn with_direct(self, direct: Direct) -> Self {
        Self {
            direct: Some(direct),
            ..self
        }
    }

    /// Explains what `text` asks about; dials it if told to, and sends nothing.
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
        let mut facts = self.facts(query);
        if let (Dial::Yes, Ok(target)) = (dial, &facts.target) {
            facts.dial = Some(self.dial(target, &facts.query).await);
        } else if let (Dial::Yes, Some(target), Some(direct)) = (dial, &facts.direct, &self.direct)
        {
            let started = Instant::now();
            facts.dial = Some(
                direct
                    .dial(target)
                    .await
                    .map(|_| started.elapsed())
                    .map_err(DialError::Route),
            );
        }
        Ok(words::explanation(&facts))
    }

    fn facts(&self, query: Query) -> Facts {
        let destination = destination(&query);
        let target = self.router.resolve(&destination);
        let owners = match &target {
            Ok(target) => vec![target.node.clone()],
            Err(
                ResolveError::Shared { owners, .. }
                | ResolveError::Protected { owners, .. }
                | ResolveError::Contested { owners, .. },
            ) => owners.clone(),
            Err(
                ResolveError::UnknownAddress { .. }
                | ResolveError::UnknownName { .. }
                | ResolveError::UnassignedVip { .. },
            ) => Vec::new(),
        };
        let node: Option<&NodeName> = target.as_ref().ok().map(|target| &target.node);
        let direct = target
            .as_ref()
            .err()
            .and_then(|error| self.direct.as_ref()?.target(&destination, error));
        Facts {
            direct,
            owners: owners
                .iter()
                .filter_map(|node| self.directory.node(node))
                .collect(),
            zone: self.directory.zone(),
            tunnels: node
                .map(|node| self.registry.candidates(node))
                .unwrap_or_default()
                .iter()
                .map(seen)
                .collect(),
            past: node
                .map(|node| self.registry.history().of(node))
                .unwrap_or_default(),
            started: self.started,
            dial: None,
            query,
            target,
        }
    }

    async fn dial(&self, target: &Target, query: &Query) -> Result<Duration, DialError> {
        let (started, number) = (Instant::now(), self.router.number());
        tracing::info!(
            stream = number,
            node = %target.node,
            original_dst = %query,
            "dialled for `explain`"
        );
        let opened = timeout(
            DIAL_TIME,
            self.router.open(target, &destination(query), number, None),
        )
        .await;
        // The stream is dropped, and with it reset, before anything was sent.
        opened.map_err(|_| DialError::TimedOut)?.map(drop)?;
        Ok(started.elapsed())
    }
}

/// Where a question without a port is asked for any, port 0 stands, which nobody can dial.
fn destination(query: &Query) -> Destination {
    Destination::from(HostPort {
        host: query.host.clone(),
        port: query.port.unwrap_or_default(),
    })
}

fn seen(registered: &std::sync::Arc<Registered>) -> TunnelFacts {
    TunnelFacts {
        agent: registered.agent,
        described: registered.described.clone(),
        up: registered.since.elapsed(),
        round_trip: registered.tunnel.round_trip(),
        streams: registered.tunnel.streams(),
        silent: registered.tunnel.is_silent(),
    }
}

#[cfg(test)]
mod tests;
