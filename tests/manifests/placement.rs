//! Where pods run whose kubelet gets more than its own node has. The kubelet of a node may ask the
//! API server for the tokens and Secrets of all pods there. So pods with permissions, and the two
//! programs of cloud nodes, need a label that no kubelet may write, and never run on edge nodes.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use culvert_api::kubelet_may_write;
use culvert_lab::workspace;
use serde_json::Value;
use xtask::manifests::{self, kustomize_build};

use crate::chart::{overlays, render};
use crate::objects::{Objects, objects};

/// The edge label where there are no agents to tell it.
const EDGE_LABEL: &str = "node-restriction.kubernetes.io/culvert-edge";
/// Programs of cloud nodes, with or without permissions.
const CLOUD_PROGRAMS: [&str; 2] = ["culvert-proxy", "culvert-redirector"];
/// Where a pod says which nodes it runs on.
const TERMS: &str =
    "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// Checks all pods that these objects make. Returns how many have to be kept from edge nodes.
pub(crate) fn check(objects: &Objects) -> Result<usize> {
    let bound = bound_accounts(objects)?;
    let edge_label = edge_label(objects)?;
    let mut kept = 0;
    for (id, object) in objects {
        for pod in pods(object) {
            let account = pod["serviceAccountName"].as_str().unwrap_or("default");
            let account = (namespace(object), account.to_owned());
            let is_cloud = CLOUD_PROGRAMS
                .map(Value::from)
                .contains(&object["metadata"]["name"]);
            if is_cloud || bound.contains(&account) || reads_secrets(pod) {
                kept += 1;
                keeps_to_the_cloud(pod, &edge_label).with_context(|| id.clone())?;
            }
        }
    }
    Ok(kept)
}

/// The namespaces and names of service accounts that have any permissions.
fn bound_accounts(objects: &Objects) -> Result<BTreeSet<(String, String)>> {
    let mut accounts = BTreeSet::new();
    for (id, object) in objects {
        for subject in object["subjects"].as_array().into_iter().flatten() {
            // A group of accounts would give permissions to pods that this test takes for harmless.
            ensure!(subject["kind"] == "ServiceAccount", "{id}: {subject}");
            let name = subject["name"].as_str().context("an account has a name")?;
            let namespace = subject["namespace"].as_str().context("and a namespace")?;
            accounts.insert((namespace.to_owned(), name.to_owned()));
        }
    }
    Ok(accounts)
}

fn namespace(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str();
    namespace.unwrap_or_default().to_owned()
}

/// The label that calls agents.
fn edge_label(objects: &Objects) -> Result<String> {
    let agents = objects
        .iter()
        .find(|(id, _)| id.ends_with("/culvert-agent") && id.starts_with("DaemonSet "));
    let Some((_, agents)) = agents else {
        return Ok(EDGE_LABEL.to_owned());
    };
    let term = agents.pointer(&format!("/spec/template/spec{TERMS}/0/matchExpressions/0"));
    let label = term.and_then(|term| term["key"].as_str());
    label.map(str::to_owned).context("agents run everywhere")
}

/// The specs of pods anywhere in an object.
pub(crate) fn pods(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(fields) if fields.contains_key("containers") => vec![value],
        Value::Object(fields) => fields.values().flat_map(pods).collect(),
        Value::Array(items) => items.iter().flat_map(pods).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// Whether it names a Secret, as a volume or as a variable.
fn reads_secrets(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(field, value)| {
            matches!(field.as_str(), "secret" | "secretKeyRef" | "secretRef")
                || reads_secrets(value)
        }),
        Value::Array(items) => items.iter().any(reads_secrets),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn keeps_to_the_cloud(pod: &Value, edge_label: &str) -> Result<()> {
    ensure!(
        pod["nodeName"].is_null(),
        "it names a node: {}",
        pod["nodeName"]
    );
    let terms = pod.pointer(TERMS).and_then(Value::as_array);
    let terms = terms.context("it runs on every node")?;
    ensure!(!terms.is_empty(), "it has no terms");
    // With a kubelet's own label a pod may be kept off its node, and never brought there.
    for term in terms {
        let Some(requirements) = term["matchExpressions"].as_array() else {
            bail!("a term without labels: {term}");
        };
        ensure!(
            requirements.iter().any(needs_an_administrator),
            "a kubelet can fulfil {term}"
        );
        ensure!(
            requirements.iter().any(|it| excludes(it, edge_label)),
            "edge nodes may fulfil {term}"
        );
    }
    Ok(())
}

/// Whether it needs a label that no kubelet may write.
fn needs_an_administrator(requirement: &Value) -> bool {
    let is_needed = requirement["operator"] == "Exists" || requirement["operator"] == "In";
    let key = requirement["key"].as_str().unwrap_or_default();
    is_needed && !kubelet_may_write(key)
}

fn excludes(requirement: &Value, label: &str) -> bool {
    requirement["operator"] == "DoesNotExist" && requirement["key"] == label
}

#[test]
fn no_kubelet_calls_a_pod_with_permissions_to_its_node_by_a_label() {
    let mut folders = Vec::new();
    overlays(&workspace::root().join("deploy/overlays"), &mut folders).expect("the overlays");
    assert!(folders.len() > 15, "{folders:?}");
    for folder in folders {
        let built = kustomize_build(&folder).and_then(|built| check(&objects(&built)?));
        let values = folder.join("values.yaml").display().to_string();
        let rendered = render(&["--values", &values]).and_then(|text| check(&objects(&text)?));
        for kept in [built, rendered] {
            let kept = kept.unwrap_or_else(|error| panic!("{}: {error:#}", folder.display()));
            assert!(kept > 0, "{}: no pods", folder.display());
        }
    }
}

#[test]
fn whatever_labels_the_chart_takes_edge_nodes_get_no_proxy() -> Result<()> {
    let own = "cloudNodes.labels={node-restriction.kubernetes.io/mine,example.k8s.io/cloud}";
    for edge_label in ["example.org/edge", "node-restriction.kubernetes.io/edge"] {
        let edge_label = format!("edgeNodes.label={edge_label}");
        let more = "uninstall=true,nameService=true,agentService.type=NodePort";
        let rendered = render(&["--set", own, "--set", &edge_label, "--set", more])?;
        // The proxy, the redirector, and the pod of `helm test`.
        ensure!(check(&objects(&rendered)?)? == 3, "{rendered}");
    }
    Ok(())
}

#[test]
fn a_label_of_kubelets_or_an_edge_node_that_is_not_excluded_is_noticed() -> Result<()> {
    let file = manifests::committed().join("default.yaml");
    let text = std::fs::read_to_string(file)?;
    check(&objects(&text)?)?;
    let label = "node-restriction.kubernetes.io/culvert-cloud";
    for broken in [
        text.replace(label, "culvert.dev/cloud"),
        text.replace(label, "node.kubernetes.io/culvert-cloud"),
        text.replace("operator: DoesNotExist", "operator: Exists"),
        text.replace(
            "serviceAccountName: culvert-agent",
            "serviceAccountName: culvert-proxy",
        ),
    ] {
        ensure!(broken != text, "nothing was changed");
        ensure!(check(&objects(&broken)?).is_err(), "{broken}");
    }
    Ok(())
}
