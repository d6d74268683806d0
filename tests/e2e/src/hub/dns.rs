//! CoreDNS on the edge node. It asks the hub for services and their endpoints.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::containers::running;
use super::pods::{APP, MAIN};
use super::service::address_of;
use super::volumes::sleeping_pod;
use crate::cluster::KUBECTL_TIME;
use crate::command::output;
use crate::coredns;
use crate::world::{SHOP, World};

pub(super) const POD: &str = "hub-dns";
pub(super) const NAMESPACE: &str = coredns::NAMESPACE;
const COREFILE: &str =
    ".:53 {\n    errors\n    ready\n    kubernetes cluster.local {\n        ttl 1\n    }\n}\n";

/// Starts it. Its account and its rights are those of the cluster's own.
pub(super) fn start(world: &World) -> Result<()> {
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": POD, "namespace": NAMESPACE},
        "data": {"Corefile": COREFILE}
    });
    world.apply(POD, &[config, pod()])
}

fn pod() -> Value {
    let mut pod = sleeping_pod(POD);
    pod["metadata"]["namespace"] = NAMESPACE.into();
    pod["spec"]["serviceAccountName"] = coredns::NAME.into();
    pod["spec"]["dnsPolicy"] = "Default".into();
    pod["spec"]["volumes"] = json!([{"name": "config", "configMap": {"name": POD}}]);
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = coredns::IMAGE.into();
    container["command"] = json!(["/bin/coredns", "-conf", "/etc/coredns/Corefile"]);
    container["volumeMounts"] = json!([{"name": "config", "mountPath": "/etc/coredns"}]);
    pod
}

/// Whether a pod of the node gets the service's address by it.
pub(super) fn answers(world: &World, address: &str) -> Result<()> {
    let server = address_of(&running(world, POD, MAIN)?)?;
    let client = running(world, APP, MAIN)?.pid.to_string();
    let name = format!("{APP}.{SHOP}.svc.cluster.local");
    let mut command = Command::new("nsenter");
    command.args(["--target", &client, "--net", "--mount", "--"]);
    command.args(["/bin/nslookup", &name, &server]);
    let said = output(&mut command, KUBECTL_TIME).context("ask CoreDNS on the node")?;
    ensure!(said.contains(address), "{name} is not {address}: {said}");
    Ok(())
}
