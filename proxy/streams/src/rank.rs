//! Which of an agent's tunnels count, wherever they end. Pure.

use culvert_api::proto::peer;
use culvert_tunnel::proto::tunnel::DescribeResponse;

/// What an agent says about the order of its tunnels. An agent can only mislead about its own node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// Random for each run of the agent.
    pub instance: String,
    /// The slot of the agent that it fills.
    pub slot: String,
    /// The place among all tunnels of the run; 0: not known.
    pub sequence: u64,
    /// When the run began, in milliseconds since 1970; 0: not known.
    pub started: u64,
}

impl Rank {
    pub(crate) fn of(described: &DescribeResponse) -> Self {
        Self {
            instance: described.instance.clone(),
            slot: described.slot.clone(),
            sequence: described.sequence,
            started: described.started,
        }
    }

    /// Whether the agent set up this tunnel in place of `other`, which may be dead: in the same
    /// slot, or in a later run.
    pub(crate) fn supersedes(&self, other: &Self) -> bool {
        if self.instance == other.instance {
            self.slot == other.slot && self.sequence > other.sequence
        } else {
            self.started > other.started && other.started > 0
        }
    }
}

impl From<peer::Tunnel> for Rank {
    fn from(tunnel: peer::Tunnel) -> Self {
        Self {
            instance: tunnel.instance,
            slot: tunnel.slot,
            sequence: tunnel.sequence,
            started: tunnel.started,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(instance: &str, slot: &str, sequence: u64, started: u64) -> Rank {
        Rank {
            instance: instance.to_owned(),
            slot: slot.to_owned(),
            sequence,
            started,
        }
    }

    #[test]
    fn a_later_tunnel_of_the_slot_or_of_a_later_run_counts_and_no_other() {
        let first = rank("a", "0", 1, 1000);
        assert!(rank("a", "0", 2, 1000).supersedes(&first));
        assert!(!first.supersedes(&rank("a", "0", 2, 1000)));
        assert!(!rank("a", "1", 2, 1000).supersedes(&first), "another slot");
        assert!(rank("b", "7", 1, 1001).supersedes(&first));
        assert!(!first.supersedes(&rank("b", "7", 1, 1001)));
    }

    #[test]
    fn of_agents_that_do_not_tell_none_counts_less() {
        let old = rank("a", "0", 0, 0);
        let other = rank("b", "0", 0, 0);
        assert!(!old.supersedes(&other) && !other.supersedes(&old));
        assert!(!old.supersedes(&old));
        assert!(
            !rank("b", "0", 1, 1000).supersedes(&old),
            "nobody knows which run is later"
        );
    }
}
