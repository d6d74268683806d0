//! Which tunnels bulk data shares with other streams, and which are free for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use culvert_api::NodeName;
use culvert_daemon::Worker;

use super::tracked::HeavyStreams;
use super::{Registered, Registry};

impl Registry {
    /// The node's tunnels here, in the order in which they were registered.
    pub(crate) fn tunnels_here(&self, node: &NodeName) -> Vec<Arc<Registered>> {
        let state = self.lock();
        state.nodes.get(node).cloned().unwrap_or_default()
    }

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

    /// Its heavy streams, after a look at them. None leaves a tunnel that is worn out: it is closed as
    /// soon as it has no streams, while a part of one that left may wait there.
    pub(crate) fn heavy_streams(&self, now: Instant) -> HeavyStreams {
        let mut heavy = self.streams.heavy(self.tunnel.streams(), now);
        if self.tunnel.is_worn_out() && !heavy.leaving.is_empty() {
            heavy.leaving.clear();
            heavy.some_stay = true;
        }
        heavy
    }

    /// Whether this thread relays its bytes.
    pub(crate) fn is_on(&self, worker: &Worker) -> bool {
        self.worker.handle().id() == worker.handle().id()
    }

    /// Whether it has no streams.
    pub(crate) fn is_free(&self) -> bool {
        self.tunnel.streams() == 0 && self.on_their_way.load(Ordering::Relaxed) == 0
    }

    /// Whether both lead to the same run of the agent.
    pub(crate) fn is_of_run(&self, other: &Self) -> bool {
        self.described.instance == other.described.instance
    }

    /// Whether streams can move to it; `all` are the node's tunnels here.
    pub(crate) fn accepts_moved(&self, all: &[Arc<Self>]) -> bool {
        let tunnel = &self.tunnel;
        tunnel.moves_streams()
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
