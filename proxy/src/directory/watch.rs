//! Following the directory: a snapshot first, then every change; a follower that lags gets a new snapshot.

use std::sync::Arc;

use culvert_tunnel::NodeName;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::{Directory, NodeView, VipRanges};

/// One step of the directory's life.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Grows with every change.
    pub(crate) revision: u64,
    /// Nodes that are new or changed, each whole.
    pub(crate) changed: Vec<NodeView>,
    /// Nodes that are gone.
    pub(crate) removed: Vec<NodeName>,
}

/// What a watcher sees.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// All there is; replaces everything seen before.
    Snapshot {
        /// The revision that this is the state of.
        revision: u64,
        /// Where VIPs come from.
        ranges: VipRanges,
        /// All nodes.
        nodes: Vec<NodeView>,
    },
    /// What differs from the state so far.
    Change(Arc<Change>),
}

/// Follows the directory.
#[derive(Debug)]
pub(crate) struct Watcher {
    directory: Directory,
    /// `None` until the (next) snapshot.
    change_rx: Option<broadcast::Receiver<Arc<Change>>>,
}

impl Watcher {
    pub(super) fn new(directory: Directory) -> Self {
        Self { directory, change_rx: None }
    }

    /// Waits for the next event; the first is a snapshot.
    pub(crate) async fn next(&mut self) -> Event {
        if let Some(change_rx) = &mut self.change_rx {
            match change_rx.recv().await {
                Ok(change) => return Event::Change(change),
                // Cannot be closed: this watcher keeps the directory, and with it the sender, alive.
                Err(RecvError::Lagged(_) | RecvError::Closed) => {}
            }
        }
        self.snapshot()
    }

    fn snapshot(&mut self) -> Event {
        // Under one lock, so that no change falls between the snapshot and the subscription.
        let published = self.directory.published();
        let event = Event::Snapshot {
            revision: published.revision,
            ranges: published.view.ranges(),
            nodes: published.view.nodes().cloned().collect(),
        };
        self.change_rx = Some(self.directory.0.change_tx.subscribe());
        event
    }
}
