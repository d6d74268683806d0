//! Follows the directory: a snapshot first, then every change. A watcher that lags too far behind
//! gets a new snapshot.

use std::sync::Arc;

use culvert_api::NodeName;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::view::Clouds;
use super::{Directory, NodeView, VipRanges};

/// One change of the directory.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// It increases with every change.
    pub revision: u64,
    /// Nodes that are new or changed, each completely.
    pub changed: Vec<NodeView>,
    /// Nodes that were deleted.
    pub removed: Vec<NodeName>,
    /// All cloud nodes, if any of them is new, changed or deleted.
    pub clouds: Option<Clouds>,
}

/// A notification for watchers.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Change(Arc<Change>),
    /// All earlier events are void. Watchers take a snapshot.
    Reset,
}

/// An event for a watcher.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The complete state. It replaces everything before.
    Snapshot {
        /// The revision of this state.
        revision: u64,
        /// The ranges of the VIPs.
        ranges: VipRanges,
        /// All nodes.
        nodes: Vec<NodeView>,
        /// The cluster's cloud nodes.
        clouds: Clouds,
    },
    /// The differences from the state so far.
    Change(Arc<Change>),
}

/// A watcher of the directory.
#[derive(Debug)]
pub struct Watcher {
    directory: Directory,
    /// `None` until the first or next snapshot.
    step_rx: Option<broadcast::Receiver<Step>>,
}

impl Watcher {
    pub(super) fn new(directory: Directory) -> Self {
        Self {
            directory,
            step_rx: None,
        }
    }

    /// Waits for the next event. The first one is a snapshot, as soon as there is content.
    pub async fn next(&mut self) -> Event {
        if let Some(step_rx) = &mut self.step_rx {
            match step_rx.recv().await {
                Ok(Step::Change(change)) => return Event::Change(change),
                // The channel cannot close: this watcher keeps the directory alive, which has the
                // sender.
                Ok(Step::Reset) | Err(RecvError::Lagged(_) | RecvError::Closed) => {}
            }
        }
        loop {
            let (event, mut step_rx) = self.snapshot();
            if let Some(event) = event {
                self.step_rx = Some(step_rx);
                return event;
            }
            // After any notification there can be content.
            drop(step_rx.recv().await);
        }
    }

    fn snapshot(&self) -> (Option<Event>, broadcast::Receiver<Step>) {
        // Both under one lock, so that no change falls between the snapshot and the subscription.
        let published = self.directory.published();
        let event = Event::Snapshot {
            revision: published.revision,
            ranges: published.view.ranges(),
            nodes: published.view.nodes().cloned().collect(),
            clouds: published.view.clouds().clone(),
        };
        (
            published.is_known.then_some(event),
            self.directory.0.step_tx.subscribe(),
        )
    }
}
