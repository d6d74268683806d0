//! Why each node's last tunnel ended, and why its agent was last refused. Operators need this for a
//! node that is offline.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::Directory;
use parking_lot::{Mutex, MutexGuard};

/// Something that happened to a node's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: UnixTime,
    /// The reason, for people.
    pub reason: String,
}

/// The last events of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastEvents {
    /// The end of its last tunnel.
    pub ended: Option<Event>,
    /// The last refusal of its agent, which had a certificate of our authority.
    pub refused: Option<Event>,
}

/// The last events of every node in the directory, since this proxy started. Clones share it.
#[derive(Clone, Debug)]
pub struct History {
    directory: Directory,
    nodes: Arc<Mutex<BTreeMap<NodeName, LastEvents>>>,
}

impl History {
    pub(crate) fn new(directory: Directory) -> Self {
        Self {
            directory,
            nodes: Arc::default(),
        }
    }

    /// The last events of the node.
    pub fn of(&self, node: &NodeName) -> LastEvents {
        self.lock().get(node).cloned().unwrap_or_default()
    }

    /// Records that a tunnel of the node has ended.
    pub fn record_end(&self, node: &NodeName, reason: String) {
        self.record(node, |events, at| events.ended = Some(Event { at, reason }));
    }

    /// Records that an agent of the node was refused.
    pub fn record_refusal(&self, node: &NodeName, reason: String) {
        self.record(node, |events, at| {
            events.refused = Some(Event { at, reason });
        });
    }

    fn record(&self, node: &NodeName, change: impl FnOnce(&mut LastEvents, UnixTime)) {
        if !self.directory.contains(node) {
            return;
        }
        let known = self.directory.census().total();
        let mut nodes = self.lock();
        change(nodes.entry(node.clone()).or_default(), UnixTime::now());
        if nodes.len() > known {
            // Nodes that were removed are dropped, so the history is never larger than the
            // directory.
            nodes.retain(|node, _| self.directory.contains(node));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeName, LastEvents>> {
        self.nodes.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn only_nodes_of_the_directory_have_a_past() {
        let state = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(state.path(), &[name("edge-1"), name("edge-2")]);
        let history = History::new(directory.clone());
        history.record_end(&name("edge-1"), "silent".into());
        history.record_refusal(&name("stranger"), "unknown".into());
        assert_eq!(history.of(&name("edge-1")).ended.unwrap().reason, "silent");
        assert_eq!(history.of(&name("stranger")), LastEvents::default());
        history.record_end(&name("edge-2"), "silent".into());
        directory.editor().remove(&name("edge-1")).unwrap();
        history.record_refusal(&name("edge-2"), "expired".into());
        assert_eq!(
            history.of(&name("edge-1")),
            LastEvents::default(),
            "forgotten with its node"
        );
        assert!(
            history.of(&name("edge-2")).ended.is_some(),
            "a refusal does not hide the end before it"
        );
    }
}
