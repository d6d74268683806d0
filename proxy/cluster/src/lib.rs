//! The Kubernetes cluster as a source of nodes, ports, VIPs and trust, and what is written there for
//! agents and other proxies. Only this crate of the proxy names `kube`, so that the others compile
//! without it: its tasks start in `spawn`, and other futures are boxed, to be compiled here.
#![forbid(unsafe_code)]

mod access;
mod args;
mod authority;
mod bootstrap;
mod config;
mod configmap;
mod daemon_set;
mod debounce;
mod events;
mod follow;
mod forwards;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hosts;
mod identity;
mod last_seen;
mod leases;
mod name_service;
mod nodes;
mod ports;
mod request;
mod revocations;
mod selected;
mod spawn;
mod viewers;
mod vips;

use std::path::Path;
use std::time::Duration;

use culvert_daemon::Backoff;
use culvert_kubeconfig::Source;
use culvert_proxy_core::selector::InvalidSelector;
use futures_util::future::BoxFuture;
use kube::{Client, Config};

pub use access::{ClusterFacts, Serves};
pub use args::KubernetesArgs;
pub use authority::SharedAuthority;
use config::ClusterConfig;
pub use forwards::load as load_forwards;
pub use hosts::HostsAddress;
pub use identity::{AccountError, ServiceAccounts};
pub use leases::MAX_LISTED;
pub use name_service::NameService;
pub use ports::{PortsFacts, UnreadPorts};
pub use request::RequestError;
pub use spawn::Parts;
pub use viewers::{User, VIEW_AUDIENCE, ViewRight, Viewer, ViewerError, Viewers};

/// The file in which a pod finds its own namespace.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The namespace in the manifests.
const DEFAULT_NAMESPACE: &str = "culvert-system";
/// The time limit for a connection to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The API server ends a watch after this time, and the proxy starts another. A connection that is
/// silent for longer is dead.
const WATCH_SECONDS: u32 = 60;
/// The time after which a silent connection counts as dead.
const READ_TIMEOUT: Duration = Duration::from_secs(75);
const _: () = assert!(
    READ_TIMEOUT.as_secs() > WATCH_SECONDS as u64 && READ_TIMEOUT.as_secs() <= 90,
    "noticed in time, with no false alarm"
);

/// The pause between attempts to reach the API server. After an outage it is found again within
/// half a minute.
const fn backoff() -> Backoff {
    Backoff::new(Duration::from_secs(1), Duration::from_secs(30))
}

/// The reason why the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no service account here.
    #[error(
        "--kubernetes: this is not a pod with a service account: give --kubeconfig, or set \
         automountServiceAccountToken"
    )]
    NotInCluster(#[source] kube::config::InClusterError),
    /// The kubeconfig is not usable.
    #[error("--kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file or folder.
        path: std::path::PathBuf,
        /// The cause.
        source: culvert_kubeconfig::Unusable,
    },
    /// No client can be made of the settings.
    #[error("make a client of the API server")]
    Client(#[source] kube::Error),
    /// `--node-selector` is not one.
    #[error("--node-selector")]
    Selector(#[from] InvalidSelector),
}

/// The cluster. Clones share one client.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: String,
    /// The API server's address.
    server: http::Uri,
    config: ClusterConfig,
}

impl Cluster {
    /// Prepares requests to the API server without sending one, so that a proxy starts without it.
    pub fn open(args: &KubernetesArgs) -> BoxFuture<'_, Result<Self, ClusterError>> {
        Box::pin(Self::open_with(args))
    }

    async fn open_with(args: &KubernetesArgs) -> Result<Self, ClusterError> {
        let config = ClusterConfig::try_from(args)?;
        let mut dial = match &config.kubeconfig {
            Some(path) => from_kubeconfig(path).await?,
            None => Config::incluster().map_err(ClusterError::NotInCluster)?,
        };
        dial.connect_timeout = Some(CONNECT_TIMEOUT);
        dial.read_timeout = Some(READ_TIMEOUT);
        let namespace = match &config.namespace {
            Some(namespace) => namespace.clone(),
            None => match pod_namespace() {
                Some(namespace) => namespace,
                None => DEFAULT_NAMESPACE.to_owned(),
            },
        };
        let server = dial.cluster_url.clone();
        let client = Client::try_from(dial).map_err(ClusterError::Client)?;
        Ok(Self {
            client,
            namespace,
            server,
            config,
        })
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

async fn from_kubeconfig(path: &Path) -> Result<Config, ClusterError> {
    let loaded = match culvert_kubeconfig::load(Source::File(path), None).await {
        Ok(loaded) => loaded,
        Err(source) => {
            return Err(ClusterError::Kubeconfig {
                path: path.to_owned(),
                source,
            });
        }
    };
    if loaded.left_out.is_some() {
        tracing::warn!(
            "the API server is dialled directly, not through the proxy that the kubeconfig or \
             HTTPS_PROXY names"
        );
    }
    Ok(loaded.config)
}

fn pod_namespace() -> Option<String> {
    let text = std::fs::read_to_string(POD_NAMESPACE).ok()?;
    let namespace = text.trim();
    if namespace.is_empty() {
        return None;
    }
    Some(namespace.to_owned())
}
