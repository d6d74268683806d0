//! Follows one ConfigMap by name, and writes one without losing the changes of others.

use culvert_daemon::Problem;
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};

use super::request::{RequestError, ask};
use super::{Cluster, WATCH_SECONDS};

/// The API server's limit for all keys and values of a ConfigMap together.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The namespace and name of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConfigMapName {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl std::fmt::Display for ConfigMapName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Cluster {
    pub(super) fn config_maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The ConfigMap now and after each change. `None`: it does not exist. The stream never ends. While
    /// the API server does not answer, it has no items, and one line is logged.
    pub(super) fn follow(
        &self,
        which: ConfigMapName,
    ) -> impl Stream<Item = Option<ConfigMap>> + Send + use<> {
        let mut problem = Problem::default();
        let by_name = format!("metadata.name={}", which.name);
        let config = watcher::Config::default()
            .fields(&by_name)
            .timeout(WATCH_SECONDS);
        let events = watcher::watcher(self.config_maps(&which.namespace), config).default_backoff();
        // Whether the current list contains it.
        let mut listed = false;
        events.filter_map(move |event| {
            if event.is_ok() {
                problem.news(None);
            }
            let news = match event {
                Ok(Event::Init) => {
                    listed = false;
                    None
                }
                Ok(Event::InitApply(map)) => {
                    listed = true;
                    Some(Some(map))
                }
                Ok(Event::Apply(map)) => Some(Some(map)),
                Ok(Event::Delete(_)) => Some(None),
                Ok(Event::InitDone) => (!listed).then_some(None),
                Err(error) => {
                    if let Some(reason) = problem.news(Some(in_words(&error))) {
                        tracing::warn!(
                            config_map = %which,
                            reason,
                            "ConfigMap not readable, keeping what it last said"
                        );
                    }
                    None
                }
            };
            std::future::ready(news)
        })
    }
}

/// A ConfigMap that does not exist yet.
pub(super) fn empty(name: &str) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    ConfigMap {
        metadata,
        ..ConfigMap::default()
    }
}

/// Replaces the ConfigMap if it is still the version that was read, or creates it if there was
/// none. If another writer was faster, the result is a conflict.
pub(super) async fn write(
    api: &Api<ConfigMap>,
    map: &ConfigMap,
) -> Result<ConfigMap, RequestError> {
    let parameters = PostParams::default();
    match &map.metadata.resource_version {
        Some(_) => {
            ask(api.replace(
                map.metadata.name.as_deref().unwrap_or_default(),
                &parameters,
                map,
            ))
            .await
        }
        None => ask(api.create(&parameters, map)).await,
    }
}

/// The error without kube's internals.
pub(super) fn in_words(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => format!(
            "the API server answered {}: {}",
            status.code, status.message
        ),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => culvert_daemon::chain(error),
    }
}
