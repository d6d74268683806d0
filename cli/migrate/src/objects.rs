//! Reads the objects of another tunnel, and asks the API server about manifests without changing
//! anything.

use std::fmt;

use http::Request;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::api_server::{ApiServer, RequestError};

/// The sender of dry runs, as the API server logs it.
const FIELD_MANAGER: &str = "culvert-migrate";
/// The most pods that are read for one label: static pods of control planes.
const MAX_PODS: u32 = 20;
/// Every cluster has it.
const ANY_NAMESPACE: &str = "default";

/// Kinds of objects, where the API server has them: the group and version, and the plural.
const KINDS: [(&str, &str, &str); 9] = [
    ("Namespace", "api/v1", "namespaces"),
    ("ServiceAccount", "api/v1", "serviceaccounts"),
    ("ConfigMap", "api/v1", "configmaps"),
    ("Service", "api/v1", "services"),
    ("DaemonSet", "apis/apps/v1", "daemonsets"),
    ("Role", "apis/rbac.authorization.k8s.io/v1", "roles"),
    (
        "RoleBinding",
        "apis/rbac.authorization.k8s.io/v1",
        "rolebindings",
    ),
    (
        "ClusterRole",
        "apis/rbac.authorization.k8s.io/v1",
        "clusterroles",
    ),
    (
        "ClusterRoleBinding",
        "apis/rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
    ),
];

/// An object of another tunnel, by namespace and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Deployment(&'static str, &'static str),
    DaemonSet(&'static str, &'static str),
    ConfigMap(&'static str, &'static str),
    Service(&'static str, &'static str),
    /// Pods by namespace and label.
    Pods(&'static str, &'static str),
}

impl Lookup {
    fn path(self) -> String {
        match self {
            Self::Deployment(namespace, name) => {
                format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
            }
            Self::DaemonSet(namespace, name) => {
                format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
            }
            Self::ConfigMap(namespace, name) => {
                format!("/api/v1/namespaces/{namespace}/configmaps/{name}")
            }
            Self::Service(namespace, name) => {
                format!("/api/v1/namespaces/{namespace}/services/{name}")
            }
            Self::Pods(namespace, label) => format!(
                "/api/v1/namespaces/{namespace}/pods?limit={MAX_PODS}&labelSelector={}",
                label.replace('=', "%3D")
            ),
        }
    }
}

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, namespace, name) = match self {
            Self::Deployment(namespace, name) => ("Deployment", namespace, name),
            Self::DaemonSet(namespace, name) => ("DaemonSet", namespace, name),
            Self::ConfigMap(namespace, name) => ("ConfigMap", namespace, name),
            Self::Service(namespace, name) => ("Service", namespace, name),
            Self::Pods(namespace, label) => ("Pods", namespace, label),
        };
        write!(f, "{kind} {namespace}/{name}")
    }
}

/// Reads the objects that exist, in the given order.
pub(super) async fn read(
    cluster: &ApiServer,
    lookups: &[Lookup],
) -> Result<Vec<Value>, RequestError> {
    let mut objects = Vec::new();
    for lookup in lookups {
        let request = Request::get(lookup.path());
        match cluster.request(request, Vec::new()).await {
            Ok(mut list) if matches!(lookup, Lookup::Pods(..)) => {
                let Some(Value::Array(items)) = list.get_mut("items") else {
                    continue;
                };
                for mut pod in std::mem::take(items) {
                    // Items of a list do not say their kind.
                    pod["kind"] = "Pod".into();
                    objects.push(pod);
                }
            }
            Ok(object) => objects.push(object),
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(objects)
}

/// The API server's judgement of an object: server-side apply, without changing anything. An
/// object whose namespace does not exist yet is judged in namespace `default`.
pub(super) async fn dry_run(cluster: &ApiServer, mut object: Value) -> Result<(), RequestError> {
    match apply_dry(cluster, &object).await {
        Err(error) if error.is_absent() && object["metadata"]["namespace"].is_string() => {
            object["metadata"]["namespace"] = ANY_NAMESPACE.into();
            apply_dry(cluster, &object).await
        }
        judgement => judgement,
    }
}

async fn apply_dry(cluster: &ApiServer, object: &Value) -> Result<(), RequestError> {
    let path = path(object).ok_or_else(|| RequestError::Answer {
        code: 0,
        message: "it is of a kind that Culvert's manifests do not have".to_owned(),
    })?;
    let request = Request::patch(format!(
        "{path}?dryRun=All&force=true&fieldManager={FIELD_MANAGER}"
    ))
    .header(CONTENT_TYPE, "application/apply-patch+yaml");
    let body = object.to_string().into_bytes();
    cluster.request(request, body).await.map(drop)
}

/// Where the API server has the object.
fn path(object: &Value) -> Option<String> {
    let kind = object["kind"].as_str()?;
    let name = object["metadata"]["name"].as_str()?;
    let (_, api, plural) = KINDS.iter().find(|(known, ..)| *known == kind)?;
    Some(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{api}/namespaces/{namespace}/{plural}/{name}"),
        None => format!("/{api}/{plural}/{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_have_their_places() {
        let object = json!({"kind": "Role", "metadata": {"name": "a", "namespace": "b"}});
        assert_eq!(
            path(&object).unwrap(),
            "/apis/rbac.authorization.k8s.io/v1/namespaces/b/roles/a"
        );
        let object = json!({"kind": "Namespace", "metadata": {"name": "a"}});
        assert_eq!(path(&object).unwrap(), "/api/v1/namespaces/a");
        assert_eq!(
            path(&json!({"kind": "Secret", "metadata": {"name": "a"}})),
            None
        );
        assert_eq!(
            Lookup::Pods("a", "k=v").path(),
            "/api/v1/namespaces/a/pods?limit=20&labelSelector=k%3Dv"
        );
    }
}
