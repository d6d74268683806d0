//! `--hosts-configmap`: names for a CoreDNS that reads a hosts file.

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::json;

use crate::cluster::{DEADLINE, config_map, edge, get, node, with_server};
use crate::proxy::Proxy;

const PLACE: [&str; 2] = ["--hosts-configmap", "kube-system/yurt-tunnel-nodes"];

fn lines(server: &ApiServer) -> Result<Vec<String>> {
    let found = get(
        server,
        &["configmap", "-n", "kube-system", "yurt-tunnel-nodes"],
    )?;
    let text = found["data"]["tunnel-nodes"]
        .as_str()
        .context("no such key")?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn wait_for(server: &ApiServer, wanted: &[&str]) -> Result<()> {
    wait::until(&format!("the lines {wanted:?}"), DEADLINE, || {
        let lines = lines(server)?;
        ensure!(lines == wanted, "{lines:?}");
        Ok(())
    })
}

fn version(server: &ApiServer) -> Result<String> {
    let found = get(
        server,
        &["configmap", "-n", "kube-system", "yurt-tunnel-nodes"],
    )?;
    Ok(found["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

#[test]
fn the_hosts_config_map_has_every_node_once_and_keeps_the_lines_of_others() {
    with_server(|server| hosts(server));
}

fn hosts(server: &ApiServer) -> Result<()> {
    let left_by_yurt_tunnel = "10.0.0.9\tregistry.example\n10.97.3.4\tedge-1";
    let data = json!({"tunnel-nodes": left_by_yurt_tunnel, "other": "kept"});
    config_map(server, "kube-system", "yurt-tunnel-nodes", &data)?;
    edge(server, "edge-1", "10.0.3.7")?;
    node(server, "master", "192.0.2.10", &json!({}))?;
    // A user who may register Nodes must not give pods another address of a foreign name.
    node(server, "registry.example.com", "10.0.8.8", &json!({}))?;
    let _proxies = [
        Proxy::start(server, "proxy-1", &PLACE)?,
        Proxy::start(server, "proxy-2", &PLACE)?,
    ];
    let registry = "10.0.0.9\tregistry.example";
    let edge_1 = "198.18.0.1\tedge-1 # culvert";
    let master = "192.0.2.10\tmaster # culvert";
    let foreign = "10.0.8.8\tregistry.example.com.edge.internal # culvert";
    wait_for(server, &[registry, edge_1, master, foreign])?;

    edge(server, "edge-2", "10.0.3.8")?;
    let edge_2 = "198.18.0.2\tedge-2 # culvert";
    wait_for(server, &[registry, edge_1, edge_2, master, foreign])?;
    let settled = version(server)?;
    // A change that does not affect the hosts is not written. The label causes an event in both
    // proxies' watches.
    workspace::output(server.kubectl().args([
        "label",
        "node",
        "edge-1",
        "node-restriction.kubernetes.io/culvert-ports=8080",
    ]))?;
    workspace::output(server.kubectl().args(["delete", "node", "edge-2"]))?;
    wait_for(server, &[registry, edge_1, master, foreign])?;
    let writes: u64 = count_writes(server, &settled)?;
    ensure!(
        writes == 1,
        "two proxies wrote {writes} times for one change"
    );

    let found = get(
        server,
        &["configmap", "-n", "kube-system", "yurt-tunnel-nodes"],
    )?;
    ensure!(found["data"]["other"] == "kept", "{found}");
    Ok(())
}

/// Successful updates of the ConfigMap after the version `since`, by the audit log.
fn count_writes(server: &ApiServer, since: &str) -> Result<u64> {
    let now = version(server)?;
    ensure!(now != since, "nothing was written");
    let log = std::fs::read_to_string(server.audit_log())?;
    let updates = log
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|event| {
            event["verb"] == "update"
                && event["objectRef"]["name"] == "yurt-tunnel-nodes"
                && event["responseStatus"]["code"] == 200
        });
    let versions = updates.filter_map(|event| {
        event["objectRef"]["resourceVersion"]
            .as_str()?
            .parse::<u64>()
            .ok()
    });
    let since: u64 = since.parse()?;
    Ok(versions.filter(|version| *version >= since).count() as u64)
}
