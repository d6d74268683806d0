//! Gives heavy streams tunnels of their own. In a tunnel that several streams share they also share
//! one congestion window, and a message waits for the bulk data and for its lost packets. A stream by
//! way of another proxy is encrypted and copied twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_api::NodeName;
use culvert_daemon::chain;
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::metrics::Metrics;
use culvert_tunnel::Tunnel;
use culvert_tunnel::proto::tunnel::DialProxyRequest;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::registry::{Candidate, Registered, Registry, StreamOnItsWay, TrackedStream};

/// How often the streams of busy tunnels are looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// An agent is asked for tunnels no more often: those that were asked for take some round trips.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The same by way of another proxy: perhaps the agent cannot reach this one.
const ASK_BY_PEER_EVERY: Duration = Duration::from_secs(10);
/// A stream that could not move is left alone for this long.
const PAUSE: Duration = Duration::from_secs(5);

/// Moves streams.
pub struct Mover {
    registry: Registry,
    /// Agents know this proxy by it.
    own: Instance,
    metrics: Metrics,
    /// When the agents of nodes may be asked for tunnels again.
    not_before: HashMap<NodeName, Instant>,
    /// Moves that agents have not answered yet, and requests for tunnels.
    tasks: JoinSet<()>,
}

impl Mover {
    /// Moves streams to tunnels of `registry`, which are those of the proxy `own`.
    pub fn new(registry: Registry, own: Instance, metrics: Metrics) -> Self {
        Self {
            registry,
            own,
            metrics,
            not_before: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Looks for heavy streams until it is dropped.
    ///
    /// # Errors
    /// None.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let mut look = tokio::time::interval(CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            while self.tasks.try_join_next().is_some() {}
            let now = Instant::now();
            self.not_before.retain(|_, not_before| *not_before > now);
            self.look(now);
        }
    }

    /// Looks at the nodes with a busy tunnel here that several streams share, and at those with heavy
    /// streams by way of other proxies.
    fn look(&mut self, now: Instant) {
        let mut by_peer = self.registry.heavy_by_peer(now);
        for (node, tunnels) in self.registry.shared_by_bulk() {
            let arriving = by_peer.remove(&node).unwrap_or_default();
            self.look_at(&node, &tunnels, arriving, now);
        }
        for (node, arriving) in by_peer {
            let tunnels = self.registry.tunnels_here(&node);
            self.look_at(&node, &tunnels, arriving, now);
        }
    }

    /// Gives the heavy streams of a node tunnels of their own: those that leave a tunnel here, and
    /// those that go by way of other proxies, `by_peer`. One tunnel stays without heavy streams, for
    /// those that come.
    fn look_at(
        &mut self,
        node: &NodeName,
        tunnels: &[Arc<Registered>],
        by_peer: Vec<Arc<TrackedStream>>,
        now: Instant,
    ) {
        let mut moving = by_peer;
        let mut occupied = 1;
        for tunnel in tunnels {
            let heavy = tunnel.heavy_streams(now);
            occupied += usize::from(heavy.some_stay);
            moving.extend(heavy.leaving);
        }
        let mut usable = 0_usize;
        let mut targets = Vec::new();
        for tunnel in tunnels {
            if tunnel.accepts_moved(tunnels) {
                usable += 1;
                if tunnel.is_free() {
                    targets.push(tunnel);
                }
            }
        }
        targets.truncate(usable.saturating_sub(occupied));
        let mut lacking = Vec::new();
        for stream in moving {
            let Some(from) = stream.way() else {
                continue;
            };
            match best_target(&from, &mut targets) {
                Some(to) => self.move_stream(stream, to, now),
                None => lacking.push(from),
            }
        }
        self.ask(node, tunnels, &lacking, now);
    }

    fn move_stream(&mut self, stream: Arc<TrackedStream>, to: &Arc<Registered>, now: Instant) {
        stream.pause(now + PAUSE);
        let to = to.clone();
        let reserved = StreamOnItsWay::to(&to);
        let metrics = self.metrics.clone();
        self.tasks.spawn(async move {
            let moved = stream.move_to(&to).await;
            drop(reserved);
            if let Err(error) = moved {
                tracing::debug!(
                    stream = stream.number(),
                    reason = chain(&error),
                    "a heavy stream stays in its tunnel"
                );
            } else {
                metrics.moved_streams.inc();
            }
        });
    }

    /// Asks the node's agent for tunnels, one for each of the `lacking` streams. Later looks find
    /// them, or ask again. An agent that has no tunnel here is asked by way of the other proxy, and
    /// for one tunnel more, which stays without heavy streams.
    fn ask(
        &mut self,
        node: &NodeName,
        tunnels: &[Arc<Registered>],
        lacking: &[Candidate],
        now: Instant,
    ) {
        let Some(first) = lacking.first() else {
            return;
        };
        if self.not_before.contains_key(node) {
            return;
        }
        let count = u32::try_from(lacking.len()).unwrap_or(u32::MAX);
        let mut here = tunnels.iter();
        let pause = if let Some(usable) = here.find(|tunnel| tunnel.accepts_moved(tunnels)) {
            self.ask_agent(node, usable.tunnel.clone(), count);
            ASK_EVERY
        } else if let Candidate::Agent(registered) = first {
            self.ask_agent(node, registered.tunnel.clone(), count);
            ASK_EVERY
        } else {
            self.ask_by_peer(node, first.tunnel().clone(), count.saturating_add(1));
            ASK_BY_PEER_EVERY
        };
        self.not_before.insert(node.clone(), now + pause);
    }

    fn ask_agent(&mut self, node: &NodeName, tunnel: Tunnel, count: u32) {
        let node = node.clone();
        self.tasks.spawn(async move {
            if let Err(error) = tunnel.dial(count).await {
                tracing::debug!(%node, reason = chain(&error), "ask for further tunnels");
            }
        });
    }

    fn ask_by_peer(&mut self, node: &NodeName, link: Tunnel, count: u32) {
        let request = DialProxyRequest {
            node: node.to_string(),
            proxy: self.own.to_string(),
            count,
        };
        self.tasks.spawn(async move {
            if let Err(error) = link.dial_proxy(&request).await {
                let node = &request.node;
                tracing::debug!(node, reason = chain(&error), "ask a peer for tunnels here");
            }
        });
    }
}

/// Removes the tunnel that a stream should move to: one on the same thread, where its relay stays, or
/// else any of the same run of the agent. Which run a stream is of that goes by way of another proxy
/// only the agent knows.
fn best_target<'a>(
    from: &Candidate,
    targets: &mut Vec<&'a Arc<Registered>>,
) -> Option<&'a Arc<Registered>> {
    let mut best = None;
    for (index, to) in targets.iter().enumerate() {
        if let Candidate::Agent(registered) = from
            && !to.is_of_run(registered)
        {
            continue;
        }
        best = Some(index);
        if to.is_on(from.worker()) {
            break;
        }
    }
    Some(targets.swap_remove(best?))
}

#[cfg(test)]
mod tests;
