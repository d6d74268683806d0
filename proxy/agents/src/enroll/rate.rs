//! How often a node gets a certificate: GCRA, one bucket for each node. An agent renews a few times
//! in a certificate's life; one that asks without end would keep processors and disk busy for
//! nothing. Pure: the clock is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use culvert_api::NodeName;
use parking_lot::Mutex;

/// Certificates that a node may get at once: far more than an agent that is reinstalled or crashes
/// needs.
const BURST: u32 = 16;
/// Certificates that a node gets in the lifetime of one, after its burst.
const PER_LIFETIME: u32 = 24;
/// The longest interval, for certificates that live long.
const MAX_INTERVAL: Duration = Duration::from_secs(600);
/// Above this number of nodes, those that have used nothing up are forgotten.
const PRUNE_ABOVE: usize = 256;

/// Counts the certificates of each node.
#[derive(Debug)]
pub(super) struct CertificateRate {
    interval: Duration,
    nodes: Mutex<Nodes>,
}

#[derive(Debug)]
struct Nodes {
    /// When all that a node has used up is given back.
    restored: HashMap<NodeName, Instant>,
    prune_above: usize,
}

/// The node had too many certificates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{node} was given too many certificates lately: it gets the next one in {} s. Does more than \
     one agent run as this node, or lose its --state-dir?",
    .wait.as_secs().max(1)
)]
pub(crate) struct TooOften {
    node: NodeName,
    wait: Duration,
}

impl CertificateRate {
    /// For certificates with this lifetime.
    pub(super) fn new(lifetime: Duration) -> Self {
        Self {
            interval: (lifetime / PER_LIFETIME).min(MAX_INTERVAL),
            nodes: Mutex::new(Nodes {
                restored: HashMap::new(),
                prune_above: PRUNE_ABOVE,
            }),
        }
    }

    /// Uses up one certificate of the node.
    pub(super) fn spend(&self, node: &NodeName, now: Instant) -> Result<(), TooOften> {
        let mut nodes = self.nodes.lock();
        let mut restored = now;
        if let Some(later) = nodes.restored.get(node) {
            restored = now.max(*later);
        }
        let latest = now + self.interval * (BURST - 1);
        if restored > latest {
            return Err(TooOften {
                node: node.clone(),
                wait: restored - latest,
            });
        }
        nodes
            .restored
            .insert(node.clone(), restored + self.interval);
        if nodes.restored.len() > nodes.prune_above {
            nodes.restored.retain(|_, restored| *restored > now);
            nodes.prune_above = PRUNE_ABOVE + 2 * nodes.restored.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn node(number: u32) -> NodeName {
        format!("edge-{number}").parse().unwrap()
    }

    #[test]
    fn a_node_that_asks_without_end_gets_a_bounded_number_and_its_neighbour_all() {
        let rate = CertificateRate::new(DAY);
        let start = Instant::now();
        let seconds = 24 * 3600;
        let given = (0..seconds)
            .filter(|second| {
                let now = start + Duration::from_secs(*second);
                rate.spend(&node(1), now).is_ok()
            })
            .count();
        assert_eq!(given, BURST as usize + 24 * 6 - 1);
        rate.spend(&node(1), start + DAY).unwrap();
        let refused = rate.spend(&node(1), start + DAY).unwrap_err();
        assert!(refused.wait <= MAX_INTERVAL, "{refused}");
        assert_eq!(rate.spend(&node(2), start + DAY), Ok(()));
    }

    #[test]
    fn agents_of_short_certificates_may_renew_each_time() {
        let life = Duration::from_secs(3);
        let rate = CertificateRate::new(life);
        let start = Instant::now();
        for renewal in 0..1000 {
            assert_eq!(rate.spend(&node(1), start + life * renewal * 2 / 3), Ok(()));
        }
    }

    #[test]
    fn nodes_that_asked_long_ago_take_no_memory() {
        let rate = CertificateRate::new(DAY);
        let start = Instant::now();
        for number in 0..10_000 {
            let now = start + MAX_INTERVAL * number;
            rate.spend(&node(number), now).unwrap();
        }
        assert!(rate.nodes.lock().restored.len() <= 2 * PRUNE_ABOVE);
    }
}
