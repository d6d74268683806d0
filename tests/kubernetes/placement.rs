//! Labels that call pods to nodes: what a real API server lets a kubelet write is what the chart and
//! the programs take for it.

use anyhow::{Result, ensure};
use culvert_api::kubelet_may_write;
use culvert_lab::apiserver::ApiServer;
use culvert_lab::workspace;
use serde_json::json;
use xtask::manifests::chart;

use crate::cluster::with_server;

/// The node that the kubelet of this test is.
const NODE: &str = "edge-1";

/// Labels of every kind that NodeRestriction tells apart, and those that Culvert has ever used.
const LABELS: [&str; 28] = [
    "node-restriction.kubernetes.io/culvert-cloud",
    "node-restriction.kubernetes.io/culvert-edge",
    "site.node-restriction.kubernetes.io/culvert-cloud",
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "kubernetes.io/role",
    "example.kubernetes.io/cloud",
    "example.k8s.io/cloud",
    "node.k8s.io/cloud",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/culvert-cloud",
    "kubelet.kubernetes.io/culvert-cloud",
    "example.node.kubernetes.io/cloud",
    "culvert.dev/cloud",
    "culvert.dev/redirector",
    "openyurt.io/is-edge-worker",
    "mykubernetes.io/cloud",
    "cloud",
];

#[test]
fn the_chart_takes_no_cloud_label_that_a_real_api_server_lets_a_kubelet_write() {
    with_server(|server| every_label(server));
}

fn every_label(server: &ApiServer) -> Result<()> {
    for label in LABELS {
        let registers = registers(server, label)?;
        let changes = may_label(server, &format!("{label}=changed"));
        let removes = may_label(server, &format!("{label}-"));
        let taken = chart_takes(server, label);
        let is_kubelets = kubelet_may_write(label);
        ensure!(
            [registers, changes, removes] == [is_kubelets; 3] && taken != is_kubelets,
            "{label}: a kubelet registers with it: {registers}; changes it: {changes}; removes it: \
             {removes}; the chart takes it: {taken}; the programs take it for a kubelet's: \
             {is_kubelets}"
        );
    }
    Ok(())
}

/// Makes the Node with this label. Returns whether its kubelet may do it itself.
fn registers(server: &ApiServer, label: &str) -> Result<bool> {
    let mut delete = server.kubectl();
    workspace::output(delete.args(["delete", "node", NODE, "--ignore-not-found"]))?;
    let file = server.folder().join("registered.json");
    let labels = json!({label: "first"});
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}});
    std::fs::write(&file, node.to_string())?;
    let mut create = server.kubelet(NODE);
    if workspace::output(create.args(["create", "-f"]).arg(&file)).is_ok() {
        return Ok(true);
    }
    workspace::output(server.kubectl().args(["create", "-f"]).arg(file))?;
    Ok(false)
}

fn may_label(server: &ApiServer, change: &str) -> bool {
    let mut kubelet = server.kubelet(NODE);
    workspace::output(kubelet.args(["label", "--overwrite", "node", NODE, change])).is_ok()
}

fn chart_takes(server: &ApiServer, label: &str) -> bool {
    let mut template = chart::helm(server.folder());
    template.args(["template", "culvert"]).arg(chart::folder());
    template.args(["--namespace", "culvert-system", "--set"]);
    // Helm takes dots of a key for a path, but not those of a value.
    template.arg(format!("cloudNodes.labels={{{label}}}"));
    workspace::output(&mut template).is_ok()
}
