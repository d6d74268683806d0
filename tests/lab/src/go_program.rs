//! Programs in Go that tasks and tests use. `xtask/go` is the Go module that names the versions of all
//! of them: what they have in common is compiled once. They are in `target/tools/bin`, and never
//! installed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::workspace;

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoProgram {
    /// CoreDNS with only the plugins in docs/dns.md. With all plugins, which need the SDKs of several
    /// clouds, the compilation takes many times as long. The version is the oldest that docs/dns.md
    /// allows, which is the first with `failover`.
    CoreDns,
    /// flannel's manager of subnets, which asks the API server.
    Flannel,
    /// What installs the chart of `deploy/`.
    Helm,
    /// client-go's informers in a program of their own.
    Informers,
    /// What renders the manifests of `deploy/`.
    Kustomize,
    /// What `kubectl top` asks.
    MetricsServer,
    /// Checks the files that it is given by the types of Grafana and of the Prometheus Operator.
    MonitoringCheck,
    /// The monitoring server with its discovery by Kubernetes, which Debian's build lacks.
    Prometheus,
    /// Reads requests with the packages that an API server is made of.
    Reading,
    /// Go's HTTP client, which keeps connections by proxy.
    Transport,
}

impl GoProgram {
    /// Programs that the tests need.
    pub const FOR_TESTS: [Self; 7] = [
        Self::CoreDns,
        Self::Helm,
        Self::Informers,
        Self::Kustomize,
        Self::MonitoringCheck,
        Self::Reading,
        Self::Transport,
    ];

    /// Programs that only the end-to-end run needs.
    pub const FOR_E2E: [Self; 3] = [Self::Flannel, Self::MetricsServer, Self::Prometheus];

    /// The name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::CoreDns => "coredns",
            Self::Flannel => "flannel",
            Self::Helm => "helm",
            Self::Informers => "informers",
            Self::Kustomize => "kustomize",
            Self::MetricsServer => "metrics-server",
            Self::MonitoringCheck => "monitoring",
            Self::Prometheus => "prometheus",
            Self::Reading => "reading",
            Self::Transport => "transport",
        }
    }

    /// The package that it is compiled of, as seen from [`module`].
    pub fn package(self) -> &'static str {
        match self {
            Self::CoreDns => "./coredns",
            Self::Flannel => "./flannel",
            Self::Helm => "helm.sh/helm/v3/cmd/helm",
            Self::Informers => "./informers",
            Self::Kustomize => "sigs.k8s.io/kustomize/kustomize/v5",
            Self::MetricsServer => "sigs.k8s.io/metrics-server/cmd/metrics-server",
            Self::MonitoringCheck => "./monitoring",
            Self::Prometheus => "github.com/prometheus/prometheus/cmd/prometheus",
            Self::Reading => "./reading",
            Self::Transport => "./transport",
        }
    }

    /// Where the program is when it is compiled. It is static.
    pub fn path(self) -> PathBuf {
        folder().join(self.name())
    }

    /// The program, if it is compiled.
    pub fn find(self) -> Option<PathBuf> {
        let path = self.path();
        path.is_file().then_some(path)
    }

    /// Whether it is compiled, of what is there now.
    pub fn is_current(self) -> bool {
        self.is_newer_than_its_source().unwrap_or(false)
    }

    fn is_newer_than_its_source(self) -> io::Result<bool> {
        let compiled = self.path().metadata()?.modified()?;
        let module = module();
        let mut newest = newest_file(&module)?;
        if self.package().starts_with('.') {
            newest = newest.max(newest_file(&module.join(self.package()))?);
        }
        Ok(newest <= compiled)
    }
}

/// The folder of the programs.
pub fn folder() -> PathBuf {
    workspace::tools_dir().join("bin")
}

/// The Go module.
pub fn module() -> PathBuf {
    workspace::root().join("xtask/go")
}

/// The manifests of metrics-server, when it is compiled.
pub fn metrics_server_manifests() -> PathBuf {
    workspace::tools_dir().join("metrics-server")
}

/// When the newest file of a folder was written, without those in its folders.
fn newest_file(folder: &Path) -> io::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in folder.read_dir()? {
        let metadata = entry?.metadata()?;
        if metadata.is_file() {
            newest = newest.max(metadata.modified()?);
        }
    }
    Ok(newest)
}
