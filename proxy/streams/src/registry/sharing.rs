//! Which tunnels bulk data shares with other streams, and which are free for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use culvert_api::NodeName;

use super::tracked::TrackedStream;
use super::{Registered, Registry};

impl Registry {
    /// The tunnels here of each node that has a busy one with several streams.
    pub(crate) fn shared_by_bulk(&self) -> Vec<(NodeName, Vec<Arc<Registered>>)> {
        let state = self.lock();
        let mut shared = Vec::new();
        for (node, tunnels) in &state.nodes {
            if tunnels.iter().any(|tunnel| tunnel.is_shared_by_bulk()) {
                shared.push((node.clone(), tunnels.clone()));
            }
        }
        shared
    }
}

impl Registered {
    fn is_shared_by_bulk(&self) -> bool {
        let tunnel = &self.tunnel;
        tunnel.streams() > 1 && tunnel.moves_streams() && tunnel.is_busy()
    }

    /// Its streams that should have other tunnels, after a look at them.
    pub(crate) fn streams_to_move(&self, now: Instant) -> Vec<Arc<TrackedStream>> {
        self.streams.to_move(self.tunnel.streams(), now)
    }

    /// Whether it can have a stream of the tunnel `from`, and has no other; `all` are the node's.
    pub(crate) fn is_free_for(&self, from: &Self, all: &[Arc<Self>]) -> bool {
        let tunnel = &self.tunnel;
        tunnel.streams() == 0
            && self.on_their_way.load(Ordering::Relaxed) == 0
            && self.described.instance == from.described.instance
            && tunnel.moves_streams()
            && tunnel.takes_streams()
            && !tunnel.is_silent()
            && !tunnel.is_worn_out()
            && !self.close.is_cancelled()
            && !all.iter().any(|other| other.supersedes(self))
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("generation", &self.generation)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}
