//! The cluster of a bare API server: the objects that tests create and read.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::apiserver::{self, ApiServer};
use culvert_lab::workspace;
use serde_json::{Value, json};

/// Time for an API server and some proxies to start on two busy cores.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// Runs a test with an API server that has Culvert's namespace, if the API server's programs are
/// available.
///
/// # Panics
/// The test fails.
pub(crate) fn with_server(test: impl FnOnce(&mut ApiServer) -> Result<()>) {
    let Some(assets) = apiserver::assets() else {
        return;
    };
    let mut server = ApiServer::start(&assets, &[]).expect("the API server");
    for namespace in ["culvert-system", "default", "kube-system"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        apply(&server, &namespace).expect("the namespace");
    }
    if let Err(error) = test(&mut server) {
        panic!("{error:#}");
    }
}

/// Applies a JSON object.
pub(crate) fn apply(server: &ApiServer, object: &Value) -> Result<()> {
    with_file(server, server.kubectl().args(["apply", "-f"]), object).map(drop)
}

/// The objects of a kind, as JSON.
pub(crate) fn get(server: &ApiServer, args: &[&str]) -> Result<Value> {
    let text = workspace::output(server.kubectl().arg("get").args(args).args(["-o", "json"]))?;
    serde_json::from_str(&text).with_context(|| format!("kubectl get {args:?}"))
}

/// A ConfigMap with these values.
pub(crate) fn config_map(
    server: &ApiServer,
    namespace: &str,
    name: &str,
    data: &Value,
) -> Result<()> {
    let metadata = json!({"namespace": namespace, "name": name});
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}),
    )
}

/// A Node with this address, and a kubelet; edge nodes have the label.
pub(crate) fn node(server: &ApiServer, name: &str, address: &str, labels: &Value) -> Result<()> {
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}),
    )?;
    let status = json!({
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}});
    set_status(server, &format!("/api/v1/nodes/{name}"), &status)
}

pub(crate) fn edge(server: &ApiServer, name: &str, address: &str) -> Result<()> {
    node(
        server,
        name,
        address,
        &json!({"node-restriction.kubernetes.io/culvert-edge": ""}),
    )
}

/// Sets the status of the object at this path, as a controller would. kubectl can write statuses
/// only in versions much later than 1.20.
pub(crate) fn set_status(server: &ApiServer, path: &str, status: &Value) -> Result<()> {
    set_status_as(server, server.kubectl(), path, status)
}

/// The same with the permissions of this kubectl.
pub(crate) fn set_status_as(
    server: &ApiServer,
    mut kubectl: Command,
    path: &str,
    status: &Value,
) -> Result<()> {
    let path = format!("{path}/status");
    let current = workspace::output(server.kubectl().args(["get", "--raw", &path]))?;
    let mut object: Value = serde_json::from_str(&current)?;
    object["status"] = status.clone();
    with_file(
        server,
        kubectl.args(["replace", "--raw", &path, "-f"]),
        &object,
    )
    .map(drop)
}

/// Creates a pod as the scheduler leaves it; nothing runs it. Returns its UID.
pub(crate) fn pod(
    server: &ApiServer,
    namespace: &str,
    name: &str,
    account: &str,
    on: &str,
) -> Result<String> {
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "labels": {"app.kubernetes.io/name": account}},
            "spec": {"nodeName": on, "serviceAccountName": account, "automountServiceAccountToken": false,
                "containers": [{"name": account, "image": account}]}}),
    )?;
    let pod = get(server, &["pod", "-n", namespace, name])?;
    Ok(pod["metadata"]["uid"]
        .as_str()
        .context("a pod has a UID")?
        .to_owned())
}

/// A token of a service account, as kubelet requests it: for an audience, or for the API server's
/// A kubeconfig with the permissions of the proxies' service account.
pub(crate) fn proxies_kubeconfig(server: &ApiServer) -> Result<PathBuf> {
    // The account comes with the DaemonSet, of which no pod runs here.
    for file in ["rbac.yaml", "proxy.yaml"] {
        let file = workspace::root().join("deploy/cloud").join(file);
        workspace::output(server.kubectl().args(["apply", "-f"]).arg(file))?;
    }
    let token = token(server, ["culvert-system", "culvert-proxy"], None, None)?;
    server.kubeconfig_of("culvert-proxy", &token)
}

/// own; bound to a pod by name and UID, or unbound.
pub(crate) fn token(
    server: &ApiServer,
    [namespace, account]: [&str; 2],
    audience: Option<&str>,
    pod: Option<(&str, &str)>,
) -> Result<String> {
    let bound =
        pod.map(|(name, uid)| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}));
    let spec = json!({"audiences": audience.into_iter().collect::<Vec<_>>(), "expirationSeconds": 3600, "boundObjectRef": bound});
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let answer = with_file(
        server,
        server.kubectl().args(["create", "--raw", &path, "-f"]),
        &request,
    )?;
    let answer: Value = serde_json::from_str(&answer)?;
    Ok(answer["status"]["token"]
        .as_str()
        .context("no token")?
        .to_owned())
}

/// Runs a kubectl command that ends with a file; returns its output.
fn with_file(server: &ApiServer, command: &mut Command, content: &Value) -> Result<String> {
    let file = server.folder().join("object.json");
    std::fs::write(&file, content.to_string())?;
    workspace::output(command.arg(file))
}
