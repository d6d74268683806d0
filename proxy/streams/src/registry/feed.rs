//! What each reader does not know yet of the tunnels here: one change costs each reader one entry,
//! however many tunnels there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Registered, Registry, State};

/// Tunnels that were registered and removed since the last look.
#[derive(Debug, Default)]
pub struct TunnelChanges {
    /// Keyed by generation.
    pub opened: BTreeMap<u64, Arc<Registered>>,
    /// The generations of those that the reader knows and that are gone.
    pub closed: Vec<u64>,
}

/// The changes for each reader that has not seen them, by its number. A reader that is slow holds no
/// more than it needs.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    last: u64,
    unseen: BTreeMap<u64, TunnelChanges>,
}

/// A reader of the tunnels, which begins with all of them.
pub struct TunnelFeed {
    registry: Registry,
    number: u64,
}

impl Feeds {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.unseen.is_empty()
    }

    pub(super) fn opened(&mut self, tunnel: &Arc<Registered>) {
        for unseen in self.unseen.values_mut() {
            unseen.opened.insert(tunnel.generation, tunnel.clone());
        }
    }

    pub(super) fn closed(&mut self, generation: u64) {
        for unseen in self.unseen.values_mut() {
            if unseen.opened.remove(&generation).is_none() {
                unseen.closed.push(generation);
            }
        }
    }
}

impl Registry {
    /// A reader of the tunnels here. [`Registry::changes`] tells when there is something new.
    pub fn feed(&self) -> TunnelFeed {
        let mut state = self.lock();
        let mut all = TunnelChanges::default();
        for tunnel in state.nodes.values().flatten() {
            all.opened.insert(tunnel.generation, tunnel.clone());
        }
        let State { feeds, .. } = &mut *state;
        feeds.last += 1;
        feeds.unseen.insert(feeds.last, all);
        TunnelFeed {
            registry: self.clone(),
            number: feeds.last,
        }
    }
}

impl TunnelFeed {
    /// What has changed since the last call.
    pub fn unseen_changes(&self) -> TunnelChanges {
        let mut state = self.registry.lock();
        let unseen = state.feeds.unseen.get_mut(&self.number);
        unseen.map(std::mem::take).unwrap_or_default()
    }
}

impl Drop for TunnelFeed {
    fn drop(&mut self) {
        self.registry.lock().feeds.unseen.remove(&self.number);
    }
}
