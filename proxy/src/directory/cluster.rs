//! What a Kubernetes cluster says of its nodes, as plain data.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::node::DEFAULT_PORTS;

/// Ports that are steered on all edge nodes of the cluster, besides each node's kubelet port and own further ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterPorts {
    /// Dialled at the node's address.
    pub(crate) ports: BTreeSet<u16>,
    /// Dialled at the node's 127.0.0.1.
    pub(crate) localhost_ports: BTreeSet<u16>,
}

impl Default for ClusterPorts {
    /// Those that everybody wants.
    fn default() -> Self {
        Self { ports: DEFAULT_PORTS.into(), localhost_ports: BTreeSet::new() }
    }
}
