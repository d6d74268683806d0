//! flannel's own manager of subnets on the edge node. It asks the hub for nodes, and writes the file
//! that flannel's CNI plugin reads.

use anyhow::{Result, ensure};
use culvert_lab::go_program::GoProgram;
use serde_json::{Value, json};

use super::NODE;
use super::containers::running;
use super::pods::{MAIN, object};
use super::volumes::sleeping_pod;
use crate::images;
use crate::world::{SHOP, World};

pub(super) const POD: &str = "hub-flannel";
const IMAGE: &str = "local/flannel:1";
const RBAC: &str = "rbac.authorization.k8s.io";
/// What it writes, in memory as `/run` is.
const FILE: &str = "/run/flannel/subnet.env";
/// The pods of the node.
const SUBNET: &str = "10.244.1.0/24";
const SUBNET_IN_FILE: &str = "FLANNEL_SUBNET=10.244.1.1/24";

/// Starts it, with the rights of its own manifest.
pub(super) fn start(world: &World) -> Result<()> {
    images::load_static(world, IMAGE, &GoProgram::Flannel.path())?;
    let cidr = json!({"spec": {"podCIDR": SUBNET, "podCIDRs": [SUBNET]}}).to_string();
    world
        .cluster
        .ask(&["patch", "node", NODE, "--patch", &cidr])?;
    world.apply(POD, &[&permissions()[..], &[config(), pod()]].concat())
}

fn config() -> Value {
    let mut config = object("ConfigMap", POD);
    let network = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}});
    config["data"] = json!({"net-conf.json": network.to_string()});
    config
}

fn permissions() -> [Value; 3] {
    let subject = json!({"kind": "ServiceAccount", "name": POD, "namespace": SHOP});
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}
    ]);
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": POD}, "rules": rules
    });
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": POD},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": POD}, "subjects": [subject]
    });
    [object("ServiceAccount", POD), role, binding]
}

fn pod() -> Value {
    let mut pod = sleeping_pod(POD);
    pod["spec"]["serviceAccountName"] = POD.into();
    pod["spec"]["volumes"] = json!([
        {"name": "config", "configMap": {"name": POD}},
        {"name": "run", "emptyDir": {"medium": "Memory"}}
    ]);
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = IMAGE.into();
    container["command"] = json!([
        "/bin/flannel",
        "/etc/flannel/net-conf.json",
        FILE,
        "198.51.100.5"
    ]);
    container["env"] = json!([
        {"name": "POD_NAME", "value": POD}, {"name": "POD_NAMESPACE", "value": SHOP}
    ]);
    container["volumeMounts"] = json!([
        {"name": "config", "mountPath": "/etc/flannel"}, {"name": "run", "mountPath": "/run/flannel"}
    ]);
    pod
}

/// Whether it has written the node's subnet since its container began.
pub(super) fn has_subnet(world: &World) -> Result<()> {
    let text = running(world, POD, MAIN)?.read(FILE)?;
    ensure!(text.contains(SUBNET_IN_FILE), "{FILE}: {text}");
    Ok(())
}
