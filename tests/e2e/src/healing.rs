//! What breaks and heals by itself, and what `explain` says meanwhile.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::wait;
use serde_json::json;

use crate::world::{EDGE_1_ADDRESS, World};
use crate::{culvert, install, logs, ports};

/// A pod is deleted with grace, replaced by its controller and connects.
const HEALED: Duration = Duration::from_secs(60);

/// The step: the agent's pod of a node is deleted, and the cluster's state changes.
pub(super) fn run(world: &mut World) -> Result<()> {
    deleted_agent(world)?;
    logs::prove(world, "edge-1")?;
    world.claim("an address of two nodes is an Event of each", |world| {
        wait::until("the Event", HEALED, || {
            let said = world.cluster.ask(&["describe", "node", "edge-2"])?;
            ensure!(said.contains("AddressClaimedTwice"), "not yet: {said}");
            Ok(())
        })
    })?;
    revocation_on_all_proxies(world)?;
    changed_addresses(world)?;
    new_node(world)?;
    invalid_ports(world)?;
    logs::prove(world, "edge-1")
}

/// Deletes the agent's pod of a node.
fn deleted_agent(world: &mut World) -> Result<()> {
    let agent = world.culvert(&[
        "get",
        "pod",
        "--selector",
        "app.kubernetes.io/name=culvert-agent",
        "--field-selector",
        "spec.nodeName=edge-1",
        "--output",
        "name",
    ])?;
    let agent = agent.trim();
    world.claim_once(
        "an agent's pod is deleted: explain says that edge-1 is offline",
        |world| {
            world.culvert(&["delete", "--wait=false", agent])?;
            wait::until("explain says offline", HEALED, || {
                let said = explain(world)?;
                ensure!(said.contains("offline"), "it says {said}");
                Ok(())
            })
        },
    )?;
    world.claim(
        "an agent's pod is deleted: the node is back by itself",
        |world| {
            // The tunnels of the former one are there until its streams have ended.
            world.culvert(&["wait", "--for=delete", "--timeout=60s", agent])?;
            world.wait_for_rollout("culvert-agent")?;
            install::all_online(world)
        },
    )
}

fn revocation_on_all_proxies(world: &mut World) -> Result<()> {
    world.claim_once(
        "a certificate is revoked on all proxies, and the agent of its node enrols again by itself",
        |world| {
            // It is an error, for the Node is still there.
            let said = match world.in_proxys_pod(&["node", "remove", "edge-1"]) {
                Ok(said) => said,
                Err(error) => format!("{error:#}"),
            };
            ensure!(said.contains("revoked on all proxies"), "it says {said}");
            let shared = [
                "get",
                "configmap",
                "culvert-revocations",
                "--output",
                "jsonpath={.data.revocations}",
            ];
            let shared = world.culvert(&shared)?;
            ensure!(shared.contains("edge-1"), "they share {shared}");
            install::all_online(world)
        },
    )
}

fn changed_addresses(world: &mut World) -> Result<()> {
    world.claim_once(
        "addresses that somebody changes in the ConfigMap culvert-agent are put right",
        |world| {
            let proxies = [
                "get",
                "configmap",
                "culvert-agent",
                "--output",
                "jsonpath={.data.proxies}",
            ];
            let before = world.culvert(&proxies)?;
            let wrong = r#"{"data": {"proxies": "203.0.113.99:7400"}}"#;
            world.culvert(&[
                "patch",
                "configmap",
                "culvert-agent",
                "--type",
                "merge",
                "--patch",
                wrong,
            ])?;
            wait::until("the addresses", HEALED, || {
                let now = world.culvert(&proxies)?;
                ensure!(now == before, "they are {now:?}, not {before:?}");
                Ok(())
            })
        },
    )
}

fn new_node(world: &mut World) -> Result<()> {
    world.claim(
        "a node that comes later is known, and forgotten when it is deleted",
        |world| {
            let labels = json!({"node-restriction.kubernetes.io/culvert-edge": ""});
            let metadata = json!({"name": "edge-9", "labels": labels});
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
            world.apply("edge-9", &[node])?;
            wait::until("it is known", HEALED, || {
                ensure!(is_listed(world, "edge-9")?, "not yet");
                Ok(())
            })?;
            world.cluster.ask(&["delete", "node", "edge-9"])?;
            wait::until("it is forgotten", HEALED, || {
                ensure!(!is_listed(world, "edge-9")?, "not yet");
                Ok(())
            })
        },
    )
}

fn is_listed(world: &World, node: &str) -> Result<bool> {
    let nodes = culvert::answer(world, &["nodes"])?;
    let mut nodes = nodes["nodes"].as_array().into_iter().flatten();
    Ok(nodes.any(|listed| listed["node"] == node))
}

fn invalid_ports(world: &mut World) -> Result<()> {
    world.claim(
        "an entry that is not a port is an Event of its ConfigMap, and all goes on",
        |world| {
            ports::set(world, &json!({"ports": "many"}))?;
            wait::until("the Event", HEALED, || {
                let said = world.culvert(&["describe", "configmap", "culvert-ports"])?;
                ensure!(said.contains("InvalidPorts"), "not yet: {said}");
                Ok(())
            })?;
            let said = culvert::found(world)?;
            ensure!(said.contains("failure "), "it finds nothing wrong: {said}");
            ensure!(said.contains("\"many\" is not a port"), "{said}");
            Ok(())
        },
    )
}

/// kube-apiserver has been restarted: what the proxy knew goes on, and what changes afterwards
/// arrives.
pub(super) fn apiserver(world: &mut World) -> Result<()> {
    world.claim(
        "the API server is restarted: a port that a node is given afterwards is known soon",
        |world| {
            world.cluster.ask(&[
                "label",
                "node",
                "edge-1",
                "--overwrite",
                "node-restriction.kubernetes.io/culvert-ports=18999",
            ])?;
            wait::until("explain knows the port", HEALED, || {
                let said = culvert::why(world, &format!("{EDGE_1_ADDRESS}:18999"))?;
                ensure!(
                    said.contains("edge-1") && !said.contains("not steered"),
                    "it says {said}"
                );
                Ok(())
            })
        },
    )
}

fn explain(world: &World) -> Result<String> {
    culvert::why(world, &format!("{EDGE_1_ADDRESS}:10250"))
}
