//! Gives heavy streams tunnels of their own. In a tunnel that several streams share they also share
//! one congestion window, and a message waits for the bulk data and for its lost packets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_api::NodeName;
use culvert_daemon::chain;
use culvert_proxy_core::metrics::Metrics;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::registry::{Registered, Registry, StreamOnItsWay, TrackedStream};

/// How often the streams of busy tunnels are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// An agent is asked for tunnels no more often: those that were asked for take some round trips.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// A stream that could not move is left alone for this long.
const PAUSE: Duration = Duration::from_secs(5);

/// Moves streams.
pub struct Mover {
    registry: Registry,
    metrics: Metrics,
    /// When the agents of nodes were last asked for tunnels.
    asked: HashMap<NodeName, Instant>,
    /// Moves that agents have not answered yet, and requests for tunnels.
    tasks: JoinSet<()>,
}

impl Mover {
    /// Moves streams between the tunnels of `registry`.
    pub fn new(registry: Registry, metrics: Metrics) -> Self {
        Self {
            registry,
            metrics,
            asked: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Goes on for ever.
    ///
    /// # Errors
    /// None.
    pub async fn keep_looking(mut self) -> anyhow::Result<()> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            while self.tasks.try_join_next().is_some() {}
            self.asked.retain(|_, asked| asked.elapsed() < ASK_EVERY);
            for (node, tunnels) in self.registry.shared_by_bulk() {
                self.look(node, &tunnels);
            }
        }
    }

    /// Looks at the tunnels of a node of which at least one is busy and has several streams. One
    /// tunnel stays without heavy streams, for those that come.
    fn look(&mut self, node: NodeName, tunnels: &[Arc<Registered>]) {
        let now = Instant::now();
        let mut leaving = Vec::new();
        let mut occupied = 1;
        for tunnel in tunnels {
            let heavy = tunnel.heavy_streams(now);
            occupied += usize::from(heavy.some_stay);
            leaving.extend(heavy.leaving);
        }
        let Some(first) = leaving.first() else {
            return;
        };
        let from = first.tunnel();
        let mut usable = 0_usize;
        let mut targets = Vec::new();
        for tunnel in tunnels {
            if tunnel.takes_moved(&from, tunnels) {
                usable += 1;
                if tunnel.is_free() {
                    targets.push(tunnel);
                }
            }
        }
        targets.truncate(usable.saturating_sub(occupied));
        let mut lacking = 0;
        for stream in leaving {
            if let Some(to) = nearest(&stream.tunnel(), &mut targets) {
                self.move_stream(stream, to);
            } else {
                lacking += 1;
            }
        }
        if lacking > 0 {
            self.ask(node, &from, lacking);
        }
    }

    fn move_stream(&mut self, stream: Arc<TrackedStream>, to: &Arc<Registered>) {
        stream.pause(Instant::now() + PAUSE);
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

    /// Asks the agent of this tunnel for so many further ones. Later looks find them, or ask again.
    fn ask(&mut self, node: NodeName, tunnel: &Arc<Registered>, lacking: u32) {
        if self.asked.contains_key(&node) {
            return;
        }
        self.asked.insert(node.clone(), Instant::now());
        let tunnel = tunnel.tunnel.clone();
        self.tasks.spawn(async move {
            if let Err(error) = tunnel.dial(lacking).await {
                tracing::debug!(%node, reason = chain(&error), "ask for further tunnels");
            }
        });
    }
}

/// Removes the tunnel that a stream of `from` should move to: one on the same thread, where its relay
/// stays, or else any.
fn nearest<'a>(
    from: &Registered,
    targets: &mut Vec<&'a Arc<Registered>>,
) -> Option<&'a Arc<Registered>> {
    for (index, to) in targets.iter().enumerate() {
        if to.is_beside(from) {
            return Some(targets.swap_remove(index));
        }
    }
    targets.pop()
}

#[cfg(test)]
mod tests;
