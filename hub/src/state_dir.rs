//! The state directory of the hub.

use std::path::{Path, PathBuf};

/// The files of the hub.
#[derive(Clone, Debug)]
pub(crate) struct StateDir(PathBuf);

impl StateDir {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Certificates and keys of the local authority.
    pub(crate) fn local(&self, name: &str) -> PathBuf {
        self.0.join("local").join(name)
    }

    /// Addresses of API servers that the cluster has named.
    pub(crate) fn servers(&self) -> PathBuf {
        self.0.join("servers.json")
    }

    /// The uids by which the cluster is known.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.0.join("cluster.json")
    }

    /// Kubelet's kubeconfig as `install` found it.
    pub(crate) fn cloud_kubeconfig(&self) -> PathBuf {
        self.0.join("cloud.kubeconfig")
    }

    /// Names the kubeconfig that `uninstall` has put back: pods that were led to the hub still need
    /// it, after a restart too.
    pub(crate) fn uninstalled(&self) -> PathBuf {
        self.0.join("uninstalled")
    }
}
