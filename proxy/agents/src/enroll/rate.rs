//! How often a node gets a certificate: a token bucket for each node (GCRA). An agent renews a few
//! times in a certificate's life; one that asks without end would keep processors and disk busy for
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
/// Above this number of nodes, those with a full bucket are forgotten.
const PRUNE_ABOVE: usize = 256;

/// Limits the certificates of each node.
#[derive(Debug)]
pub(super) struct CertificateRate {
    /// The time in which a bucket gets one certificate back.
    interval: Duration,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    /// When the bucket of a node is full again. A node that is not here has a full one.
    full_at: HashMap<NodeName, Instant>,
    prune_above: usize,
}

/// The node's bucket is empty.
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
    /// The limits for certificates with this lifetime.
    pub(super) fn new(lifetime: Duration) -> Self {
        Self {
            interval: (lifetime / PER_LIFETIME).min(MAX_INTERVAL),
            buckets: Mutex::new(Buckets {
                full_at: HashMap::new(),
                prune_above: PRUNE_ABOVE,
            }),
        }
    }

    /// Spends one certificate of the node's bucket.
    pub(super) fn spend(&self, node: &NodeName, now: Instant) -> Result<(), TooOften> {
        let mut buckets = self.buckets.lock();
        let mut full_at = now;
        if let Some(later) = buckets.full_at.get(node) {
            full_at = now.max(*later);
        }
        // A bucket that is full later than this has no certificate now.
        let latest = now + self.interval * (BURST - 1);
        if full_at > latest {
            return Err(TooOften {
                node: node.clone(),
                wait: full_at - latest,
            });
        }
        buckets
            .full_at
            .insert(node.clone(), full_at + self.interval);
        if buckets.full_at.len() > buckets.prune_above {
            buckets.full_at.retain(|_, full_at| *full_at > now);
            buckets.prune_above = PRUNE_ABOVE + 2 * buckets.full_at.len();
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
        assert!(rate.buckets.lock().full_at.len() <= 2 * PRUNE_ABOVE);
    }
}
