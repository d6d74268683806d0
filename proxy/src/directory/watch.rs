//! Following the directory: a snapshot first, then every change; a follower that lags gets a new
//! snapshot.

use std::sync::Arc;

use culvert_api::NodeName;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::view::Clouds;
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
    /// All cloud nodes, if any of them is new, changed or gone.
    pub(crate) clouds: Option<Clouds>,
}

/// What watchers are told of.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Change(Arc<Change>),
    /// Nothing that came before holds: they take a snapshot.
    Anew,
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
        /// The cluster's cloud nodes.
        clouds: Clouds,
    },
    /// What differs from the state so far.
    Change(Arc<Change>),
}

/// Follows the directory.
#[derive(Debug)]
pub(crate) struct Watcher {
    directory: Directory,
    /// `None` until the (next) snapshot.
    step_rx: Option<broadcast::Receiver<Step>>,
}

impl Watcher {
    pub(super) fn new(directory: Directory) -> Self {
        Self {
            directory,
            step_rx: None,
        }
    }

    /// Waits for the next event; the first is a snapshot, as soon as there is anything to show.
    pub(crate) async fn next(&mut self) -> Event {
        if let Some(step_rx) = &mut self.step_rx {
            match step_rx.recv().await {
                Ok(Step::Change(change)) => return Event::Change(change),
                // Cannot be closed: this watcher keeps the directory, and with it the sender,
                // alive.
                Ok(Step::Anew) | Err(RecvError::Lagged(_) | RecvError::Closed) => {}
            }
        }
        loop {
            let (event, mut step_rx) = self.snapshot();
            if let Some(event) = event {
                self.step_rx = Some(step_rx);
                return event;
            }
            // Whatever it is, there may be something to show now.
            drop(step_rx.recv().await);
        }
    }

    fn snapshot(&self) -> (Option<Event>, broadcast::Receiver<Step>) {
        // Under one lock, so that no change falls between the snapshot and the subscription.
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
