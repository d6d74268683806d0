//! What a running proxy reports of itself, and `culvert check` judges.

use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A client that waits for longer is worth a look.
pub const LONG_WAIT: Duration = Duration::from_secs(30);

/// The settings that decide which of the nodes' own claims count, as `/debug/claims` shows them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Claims {
    /// `--edge-range`; empty: addresses anywhere.
    pub edge_ranges: Vec<IpNet>,
    /// `--trust-node-annotations`.
    pub annotations: bool,
    /// Labels of `--node-selector` that a kubelet may write of its own Node.
    #[serde(default)]
    pub labels_of_kubelets: Vec<String>,
}
