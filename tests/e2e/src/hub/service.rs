//! A service of the pod, and the node's kube-proxy, which asks the hub with a token of its own.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait;
use serde_json::{Value, json};

use super::containers::{Container, running};
use super::node::{self, KUBE_PROXY, Node};
use super::pods::{APP, MAIN, PORT, object};
use super::{NODE, NOTICED};
use crate::cluster::KUBECTL_TIME;
use crate::command::output;
use crate::world::{SHOP, World};

/// The account of kube-proxy.
const ACCOUNT: &str = "hub-kube-proxy";
const FLAG: &str = "--kubeconfig";

/// The service as clients on the node reach it.
pub(super) struct Service {
    pub(super) address: String,
    /// That of kube-proxy before.
    kubeconfig: String,
}

/// Makes the service, and lets kube-proxy ask the hub.
pub(super) fn start(world: &mut World, node: &mut Node) -> Result<Service> {
    let mut service = object("Service", APP);
    service["spec"] = json!({
        "selector": {"app": APP}, "ports": [{"port": 80, "targetPort": PORT}]
    });
    let group = "rbac.authorization.k8s.io";
    let role = json!({"apiGroup": group, "kind": "ClusterRole", "name": "system:node-proxier"});
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": ACCOUNT},
        "roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SHOP}]
    });
    let account = object("ServiceAccount", ACCOUNT);
    world.apply("hub-service", &[service, account, binding])?;
    let kubeconfig = kubeconfig(world)?;
    let path = "jsonpath={.spec.clusterIP}";
    let service = Service {
        address: world.shop(&["get", "service", APP, "--output", path])?,
        kubeconfig: node.set_flag(KUBE_PROXY, FLAG, kubeconfig)?,
    };
    world.claim(
        "kube-proxy asks the hub with a token of its own, and leads the address of a service to \
         the pod",
        |world| {
            node.kill(world, KUBE_PROXY)?;
            node.start(world, KUBE_PROXY)?;
            wait::until("it asks", NOTICED, || {
                super::asks_only_the_hub(world, KUBE_PROXY)
            })?;
            wait::until("the service answers", NOTICED, || service.answers(world))
        },
    )?;
    Ok(service)
}

impl Service {
    /// Whether the pod answers at the service's address.
    pub(super) fn answers(&self, world: &World) -> Result<()> {
        let url = format!("http://{}/color", self.address);
        let curl = ["curl", "-sS", "--fail", "-m", "2", &url];
        let said = world.cluster.on(NODE, &curl)?;
        ensure!(said == "blue", "{url} said {said}");
        Ok(())
    }

    /// Lets kube-proxy ask whom it asked before.
    pub(super) fn stop(self, world: &World, node: &mut Node) -> Result<()> {
        node.kill(world, KUBE_PROXY)?;
        node.set_flag(KUBE_PROXY, FLAG, self.kubeconfig)?;
        node.start(world, KUBE_PROXY)?;
        world.shop(&["delete", "service", APP])?;
        world.shop(&["delete", "serviceaccount", ACCOUNT])?;
        let binding = ["delete", "clusterrolebinding", ACCOUNT];
        world.cluster.ask(&binding).map(drop)
    }
}

/// The address of the pod.
pub(super) fn pod_address(world: &World) -> Result<String> {
    address_of(&running(world, APP, MAIN)?)
}

/// The address of a container's pod.
pub(super) fn address_of(container: &Container) -> Result<String> {
    let pid = container.pid.to_string();
    let mut command = Command::new("nsenter");
    command
        .args(["--target", &pid, "--net"])
        .args(["ip", "-json", "-4", "address", "show", "scope", "global"]);
    let said = output(&mut command, KUBECTL_TIME)?;
    let interfaces: Value = serde_json::from_str(&said)?;
    let address = &interfaces[0]["addr_info"][0]["local"];
    Ok(address.as_str().context("it has none")?.to_owned())
}

/// A kubeconfig with the hub and a token; returns its path.
fn kubeconfig(world: &World) -> Result<String> {
    let asked =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let file = world.file("hub-token-request.json");
    std::fs::write(&file, asked.to_string())
        .with_context(|| format!("write {}", file.display()))?;
    let path = format!("/api/v1/namespaces/{SHOP}/serviceaccounts/{ACCOUNT}/token");
    let file = file.display().to_string();
    let made = world
        .cluster
        .ask(&["create", "--raw", &path, "--filename", &file])?;
    let made: Value = serde_json::from_str(&made)?;
    let cluster = json!({
        "server": "https://127.0.0.1:7440",
        "certificate-authority": node::state_dir(world).join("local/ca.crt").display().to_string(),
    });
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "hub",
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": ACCOUNT}}],
        "clusters": [{"name": "hub", "cluster": cluster}],
        "users": [{"name": ACCOUNT, "user": {"token": made["status"]["token"]}}]
    });
    let file = world.file("hub-kube-proxy.kubeconfig");
    std::fs::write(&file, kubeconfig.to_string())
        .with_context(|| format!("write {}", file.display()))?;
    Ok(file.display().to_string())
}
