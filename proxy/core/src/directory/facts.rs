//! What proxies that follow this one need to have the same directory: nodes, VIP ranges and VIPs.

use culvert_api::NodeName;
use tokio::sync::watch;

use super::Directory;
use super::error::DirectoryError;
use super::sources::{Facts, Refreshed};

/// Writes what the primary has into the directory of a proxy that follows it. Clones share it.
#[derive(Clone, Debug)]
pub struct FactsWriter(Directory);

impl FactsWriter {
    pub(super) fn new(directory: Directory) -> Self {
        Self(directory)
    }

    /// Takes the facts, and writes them if the disk lets it. Returns the nodes that are gone: their
    /// tunnels must be closed. Facts that make no sense change nothing.
    pub fn replace(&self, facts: Facts) -> Result<Vec<NodeName>, DirectoryError> {
        let mut sources = self.0.sources();
        match sources.replace_facts(facts)? {
            Refreshed::Changed => Ok(self.0.publish(&sources)),
            Refreshed::Unchanged => Ok(Vec::new()),
        }
    }
}

impl Directory {
    /// What proxies that follow this one get; `None`: this proxy has not made its nodes itself.
    pub fn facts(&self) -> Option<Facts> {
        self.sources().facts()
    }

    /// Sees a change whenever nodes or VIPs may have changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changed_tx.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{self, DirectoryConfig, Handles, NodeSpec, NodesFrom, VipRanges};
    use crate::state::StateDir;
    use crate::testing::FullDisk;

    fn open(path: &std::path::Path, nodes_from: NodesFrom) -> Handles {
        let config = DirectoryConfig {
            nodes_from,
            vip6_range: None,
            ..DirectoryConfig::for_tests(StateDir::open(path).unwrap())
        };
        directory::open(&config).unwrap()
    }

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    /// A primary with these nodes, and the folders of both proxies.
    fn primary(nodes: &[&str]) -> (tempfile::TempDir, Handles) {
        let path = tempfile::tempdir().unwrap();
        let primary = open(&path.path().join("primary"), NodesFrom::Operators);
        for name in nodes {
            let put = primary
                .editor
                .put(&node(name), Vec::new(), vec![9100, 10250]);
            put.unwrap();
        }
        (path, primary)
    }

    #[test]
    fn a_follower_has_the_primary_s_nodes_and_vips_also_after_a_restart_without_it() {
        let (path, primary) = primary(&["edge-1", "edge-2", "edge-3"]);
        let at = path.path().join("follower");
        let follower = open(&at, NodesFrom::Primary);
        assert!(!follower.directory.is_known(), "it knows nothing yet");
        let writer = follower.facts.unwrap();
        writer.replace(primary.directory.facts().unwrap()).unwrap();
        primary.editor.remove(&node("edge-1")).unwrap();
        let gone = writer.replace(primary.directory.facts().unwrap()).unwrap();
        assert_eq!(gone, [node("edge-1")]);
        let vips = |directory: &Directory| -> Vec<_> {
            let nodes = directory.nodes().into_iter();
            nodes
                .map(|node| (node.name, node.vip4, node.vip6, node.ports))
                .collect()
        };
        assert_eq!(vips(&follower.directory), vips(&primary.directory));
        drop((follower.directory, follower.editor, writer));
        let restarted = open(&at, NodesFrom::Primary);
        assert!(restarted.directory.is_known());
        assert_eq!(vips(&restarted.directory), vips(&primary.directory));
    }

    #[test]
    fn a_follower_with_a_full_disk_has_the_primary_s_nodes_and_writes_them_later() {
        let (path, primary) = primary(&["edge-1"]);
        let at = path.path().join("follower");
        let follower = open(&at, NodesFrom::Primary);
        let writer = follower.facts.unwrap();
        let editor = follower.editor;
        writer.replace(primary.directory.facts().unwrap()).unwrap();
        primary.editor.remove(&node("edge-1")).unwrap();
        primary
            .editor
            .put(&node("edge-2"), Vec::new(), vec![9100])
            .unwrap();
        let full = FullDisk::of(&at, "directory.json");
        let gone = writer.replace(primary.directory.facts().unwrap()).unwrap();
        assert_eq!(gone, [node("edge-1")], "its tunnels are closed");
        assert!(follower.directory.contains(&node("edge-2")));
        assert!(editor.write_again().is_some(), "it says so");
        drop(full);
        assert_eq!(editor.write_again(), None);
        drop((follower.directory, editor, writer));
        let restarted = open(&at, NodesFrom::Primary);
        let names: Vec<_> = restarted.directory.nodes();
        let names: Vec<_> = names.into_iter().map(|node| node.name).collect();
        assert_eq!(names, [node("edge-2")]);
    }

    #[test]
    fn a_follower_allocates_nothing_and_is_followed_by_nobody() {
        let (path, _primary) = primary(&[]);
        let follower = open(&path.path().join("follower"), NodesFrom::Primary);
        assert!(matches!(
            follower.editor.put(&node("edge-9"), Vec::new(), Vec::new()),
            Err(DirectoryError::Follows)
        ));
        assert!(matches!(
            follower.editor.remove(&node("edge-9")),
            Err(DirectoryError::Follows)
        ));
        assert_eq!(follower.directory.facts(), None);
    }

    #[test]
    fn facts_that_make_no_sense_change_nothing() {
        let (path, primary) = primary(&["edge-1"]);
        let follower = open(&path.path().join("follower"), NodesFrom::Primary);
        let writer = follower.facts.unwrap();
        let good = primary.directory.facts().unwrap();
        writer.replace(good.clone()).unwrap();
        let with = |host_part: u32| {
            let mut facts = good.clone();
            let spec = NodeSpec::with_default_ports();
            facts.nodes.insert(node("edge-2"), (spec, host_part));
            facts
        };
        let (_, taken) = good.nodes[&node("edge-1")].clone();
        for bad in [
            with(taken),
            with(0),
            with(1 << 20),
            Facts {
                ranges: VipRanges {
                    vip4: "127.0.0.0/8".parse().unwrap(),
                    ..good.ranges
                },
                ..good.clone()
            },
        ] {
            writer.replace(bad).unwrap_err();
            assert!(!follower.directory.contains(&node("edge-2")));
        }
        writer.replace(with(9)).unwrap();
        assert!(follower.directory.contains(&node("edge-2")));
    }

    #[test]
    fn a_follower_that_becomes_the_primary_keeps_all_vips_and_gives_none_away_that_rests() {
        let (path, primary) = primary(&["edge-1", "edge-2"]);
        let at = path.path().join("follower");
        let follower = open(&at, NodesFrom::Primary);
        let writer = follower.facts.unwrap();
        writer.replace(primary.directory.facts().unwrap()).unwrap();
        primary.editor.remove(&node("edge-1")).unwrap();
        writer.replace(primary.directory.facts().unwrap()).unwrap();
        drop((follower.directory, follower.editor, writer));
        let heir = open(&at, NodesFrom::Operators);
        heir.editor
            .put(&node("edge-3"), Vec::new(), Vec::new())
            .unwrap();
        let vip = |directory: &Directory, name: &str| directory.node(&node(name)).unwrap().vip4;
        assert_eq!(
            vip(&heir.directory, "edge-2"),
            vip(&primary.directory, "edge-2")
        );
        assert_eq!(
            vip(&heir.directory, "edge-3").to_string(),
            "198.18.0.3",
            "198.18.0.1 rests"
        );
    }
}
