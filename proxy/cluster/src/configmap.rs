//! Follows one ConfigMap by name, and writes one without losing the changes of others.

use futures_util::Stream;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::Cluster;
use super::follow::follow_object;
use super::request::{RequestError, ask};

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
        let api = self.config_maps(&which.namespace);
        let name = which.name.clone();
        follow_object(api, &name, move |reason| {
            tracing::warn!(
                config_map = %which,
                reason,
                "ConfigMap not readable, keeping what it last said"
            );
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
