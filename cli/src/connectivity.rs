//! Which nodes are reached from which cloud hosts. Pure.

use culvert_site::host_path::HostPath;
use serde::Serialize;

/// The answer.
#[derive(Debug, Serialize)]
pub(crate) struct Connectivity {
    pub(crate) port: u16,
    /// Pairs of a host and a node that were tried, and those without a connection.
    pub(crate) tried: usize,
    pub(crate) failed: usize,
    pub(crate) nodes: Vec<NodeReach>,
}

/// From where a node is reached.
#[derive(Debug, Serialize)]
pub(crate) struct NodeReach {
    pub(crate) node: String,
    pub(crate) from: Vec<Trial>,
}

/// A dial from one host.
#[derive(Debug, Serialize)]
pub(crate) struct Trial {
    pub(crate) host: String,
    pub(crate) reachable: bool,
    /// The first hop that is broken, and what it says; empty: none is.
    pub(crate) broken: String,
    /// What to do then.
    pub(crate) fix: String,
}

impl Connectivity {
    /// Adds what was tried with one node.
    pub(crate) fn add(&mut self, reach: NodeReach) {
        self.tried += reach.from.len();
        self.failed += reach.from.iter().filter(|trial| !trial.reachable).count();
        self.nodes.push(reach);
    }
}

impl Trial {
    /// What a dial from one host has shown.
    pub(crate) fn of(path: HostPath) -> Self {
        let mut broken = String::new();
        if let Some(hop) = path.hops.iter().find(|hop| !hop.ok) {
            broken = format!("{}: {}", hop.hop, hop.text);
        }
        Self {
            host: path.host,
            reachable: path.reachable,
            broken,
            fix: path.fixes.into_iter().next().unwrap_or_default(),
        }
    }
}
