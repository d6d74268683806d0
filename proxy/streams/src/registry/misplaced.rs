//! Which agents are not where their node is, by the tunnels here; and the log of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use culvert_api::{AllowedRange, NodeName};
use culvert_proxy_core::directory::NodeView;

use super::{Registered, Registry};
use crate::copies::{AgentRun, Misplaced, Sighting, judged};

/// What a proxy waits for a silent agent before it is dead, beyond the agent's keepalive: two pings
/// and a round trip of a slow link.
const DEATH: Duration = Duration::from_secs(22);
/// How often the log looks for copies.
const INTERVAL: Duration = Duration::from_secs(30);

impl Registry {
    /// What is wrong with the places of a node's agents.
    pub fn misplaced_of(&self, node: &NodeView) -> Option<Misplaced> {
        let tunnels = self.lock().nodes.get(&node.name).cloned()?;
        let mut sightings = Vec::new();
        for tunnel in &tunnels {
            if !tunnel.tunnel.is_silent() {
                sightings.push(tunnel.sighting(node));
            }
        }
        judged(node, &sightings)
    }

    /// Warns of each node whose agents are misplaced, once for each change.
    pub async fn warn_of_misplaced(self) -> anyhow::Result<()> {
        let mut known: BTreeMap<NodeName, Misplaced> = BTreeMap::new();
        loop {
            tokio::time::sleep(INTERVAL).await;
            let mut now = BTreeMap::new();
            for node in self.0.directory.nodes() {
                let Some(misplaced) = self.misplaced_of(&node) else {
                    continue;
                };
                let node = node.name;
                if known.get(&node) != Some(&misplaced) {
                    let reason = misplaced.to_string();
                    let fix = misplaced.fix(&node);
                    tracing::warn!(%node, reason, fix, "an agent is not where its node is");
                }
                now.insert(node, misplaced);
            }
            known = now;
        }
    }
}

impl Registered {
    fn sighting(&self, node: &NodeView) -> Sighting<'_> {
        let keepalive = match self.described.keepalive_seconds {
            0 => culvert_tunnel::DEFAULT_KEEPALIVE,
            seconds => Duration::from_secs(seconds.into()),
        };
        Sighting {
            instance: &self.rank.instance,
            run: AgentRun {
                from: self.agent.ip().to_canonical(),
                has: self.addresses_of(node),
            },
            age: self.since.elapsed(),
            dead_after: keepalive + DEATH,
            may_lack_them: self.addresses.is_empty() || self.is_allowed_to_dial(node),
        }
    }

    /// Whether the operator lets the agent dial the node's addresses, on whichever machine they
    /// are.
    fn is_allowed_to_dial(&self, node: &NodeView) -> bool {
        let Some(allowed) = &self.described.allowed else {
            return false;
        };
        let mut ranges = Vec::new();
        for text in &allowed.further {
            ranges.extend(text.parse::<AllowedRange>());
        }
        for view in &node.addresses {
            for port in &node.ports {
                let destination = SocketAddr::new(view.ip, *port);
                if ranges.iter().any(|range| range.contains(destination)) {
                    return true;
                }
            }
        }
        false
    }
}
