//! The pods that are reached: one on each node. Each reports its node's name.

use anyhow::Result;
use culvert_lab::wait;
use serde_json::{Value, json};

use crate::cluster::{EDGES, MASTER};
use crate::world::{PODS_TIME, SHOP, World};

/// The pods' image, which the cluster's nodes have.
const IMAGE: &str = "local/busybox:1";
/// The port on which `main` serves its files.
pub(super) const HTTP: u16 = 8080;

/// Prints its node's name, then counts seconds; serves `/www`.
const MAIN: &str = r#"echo "hello from $0"; mkdir -p /www; echo "page of $0" > /www/page; httpd -p 8080 -h /www
n=0; while :; do n=$((n+1)); echo "tick $n"; sleep 1; done"#;
/// Repeats its input.
const EAR: &str = r#"while read -r line; do echo "$0 heard $line"; done; sleep 1000000"#;

/// The pod on a node.
pub(super) fn name(node: &str) -> String {
    format!("on-{node}")
}

/// Starts them and waits until all are ready.
pub(super) fn start(world: &World) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}});
    world.apply("namespace", &[namespace])?;
    // A controller makes it, and without it no pod is accepted.
    wait::until("the namespace's account", PODS_TIME, || {
        world.shop(&["get", "serviceaccount", "default"]).map(drop)
    })?;
    let pods: Vec<Value> = [&[MASTER][..], &EDGES]
        .concat()
        .into_iter()
        .map(pod)
        .collect();
    world.apply("pods", &pods)?;
    world.shop_within(
        PODS_TIME,
        &[
            "wait",
            "--for",
            "condition=Ready",
            "pod",
            "--all",
            "--timeout",
            "230s",
        ],
    )?;
    Ok(())
}

fn container(name: &str, script: &str, node: &str) -> Value {
    json!({"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script, node]})
}

fn pod(node: &str) -> Value {
    let mut ear = container("ear", EAR, node);
    ear["stdin"] = true.into();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name(node), "namespace": SHOP, "annotations": {"kubectl.kubernetes.io/default-container": "main"}},
        "spec": {
            "nodeName": node, "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false, "containers": [container("main", MAIN, node), ear]
        }
    })
}

/// A service account with permissions on subresources of nodes. It shares its name with its role
/// and its binding.
pub(super) fn reader(name: &str, resources: &[&str]) -> Vec<Value> {
    let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": SHOP});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SHOP}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["get"]}]
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}, "subjects": [subject]
        }),
    ]
}

/// A container that writes its service account's token as a header for curl.
pub(super) fn header_writer() -> Value {
    let script = r#"printf 'Authorization: Bearer ' > /shared/header && cat /var/run/secrets/kubernetes.io/serviceaccount/token >> /shared/header"#;
    json!({
        "name": "header", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]
    })
}
