//! Programs of other projects that setup and the end-to-end run compile from their Go modules. They
//! are under `target/tools` and never installed.

use std::path::PathBuf;

use crate::workspace;

/// A program compiled from a Go module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// What installs the chart of `deploy/`.
    Helm,
    /// What `kubectl top` asks.
    MetricsServer,
    /// The monitoring server with its discovery by Kubernetes, which Debian's build lacks.
    Prometheus,
}

impl Compiled {
    /// Those that only the end-to-end run needs.
    pub const FOR_E2E: [Self; 2] = [Self::MetricsServer, Self::Prometheus];

    /// Its name, which is also that of its package below `cmd` of the module.
    pub fn name(self) -> &'static str {
        match self {
            Self::Helm => "helm",
            Self::MetricsServer => "metrics-server",
            Self::Prometheus => "prometheus",
        }
    }

    /// The module and its version, as Go's tools take it.
    pub fn module(self) -> &'static str {
        match self {
            Self::Helm => "helm.sh/helm/v3@v3.22.0",
            Self::MetricsServer => "sigs.k8s.io/metrics-server@v0.9.0",
            // Prometheus numbers its release 3.16.0 so.
            Self::Prometheus => "github.com/prometheus/prometheus@v0.316.0",
        }
    }

    /// Build tags. Discovery by any other means needs the SDKs of several clouds, whose compilation
    /// takes many times as long.
    pub fn tags(self) -> &'static str {
        match self {
            Self::Helm | Self::MetricsServer => "",
            Self::Prometheus => "netgo,remove_all_sd,enable_kubernetes_sd",
        }
    }

    /// The folder of the module that the run needs too.
    pub fn manifests(self) -> Option<&'static str> {
        match self {
            Self::MetricsServer => Some("manifests/base"),
            Self::Helm | Self::Prometheus => None,
        }
    }

    /// Its folder. Another version has another one.
    pub fn folder(self) -> PathBuf {
        let (_, version) = self.module().rsplit_once('@').unwrap_or_default();
        workspace::tools_dir().join(format!("{}-{version}", self.name()))
    }

    /// The program, which is static.
    pub fn program(self) -> PathBuf {
        self.folder().join(self.name())
    }

    /// Whether it is compiled.
    pub fn is_there(self) -> bool {
        self.program().is_file()
    }
}
