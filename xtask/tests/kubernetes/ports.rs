//! Ports of the cluster's edge nodes: from `culvert-ports`, and from YurtTunnel's configuration.

use anyhow::{Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::wait;
use serde_json::json;

use crate::cluster::{DEADLINE, config_map, edge, get, with_server};
use crate::proxy::Proxy;

/// The note of the Event with this reason, on the object of this name.
fn told(server: &ApiServer, namespace: &str, reason: &str, name: &str) -> Result<String> {
    let events = get(server, &["events.v1.events.k8s.io", "-n", namespace])?;
    let found = events["items"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|event| {
            event["reason"] == reason
                && event["regarding"]["name"] == name
                && event["reportingController"] == "culvert-proxy"
        });
    let found = found.ok_or_else(|| anyhow::anyhow!("no {reason} on {name} in {events}"))?;
    Ok(found["note"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn ports_follow_the_config_maps_and_a_mistake_is_an_event_that_changes_nothing() {
    with_server(|server| ports(server));
}

fn ports(server: &ApiServer) -> Result<()> {
    edge(server, "edge-1", "10.0.3.7")?;
    let mut proxy = Proxy::start(server, "proxy", &[])?;
    proxy.wait_for_node("edge-1", &["10.0.3.7", "7429,9100,10250,10255"])?;

    config_map(
        server,
        "culvert-system",
        "culvert-ports",
        &json!({"ports": "10250, 8080", "localhost-ports": "8081"}),
    )?;
    proxy.wait_for_node("edge-1", &["8080,8081,10250"])?;

    config_map(
        server,
        "culvert-system",
        "culvert-ports",
        &json!({"ports": "10250, 80x80"}),
    )?;
    wait::until("the Event", DEADLINE, || {
        let note = told(server, "culvert-system", "InvalidPorts", "culvert-ports")?;
        ensure!(note.contains("ports: \"80x80\" is not a port"), "{note}");
        Ok(())
    })?;
    proxy.wait_for_node("edge-1", &["8080,8081,10250"])?;
    ensure!(
        proxy
            .process
            .logged("ConfigMap not used, keeping the last good ports", &[])
            .len()
            == 1,
        "{}",
        proxy.process.log()
    );

    // The same if the broken one is all that it starts with.
    proxy.restart()?;
    proxy.wait_for_node("edge-1", &["8080,8081,10250"])?;

    let yurt_tunnel = json!({"dnat-ports-pair": "9445=10264, 10250=10250, 9446", "localhost-proxy-ports": "10266"});
    config_map(
        server,
        "kube-system",
        "yurt-tunnel-server-cfg",
        &yurt_tunnel,
    )?;
    proxy.wait_for_node("edge-1", &["8080,8081,9445,9446,10250,10266"])?;
    for (namespace, name) in [
        ("culvert-system", "culvert-ports"),
        ("kube-system", "yurt-tunnel-server-cfg"),
    ] {
        culvert_lab::workspace::output(server.kubectl().args([
            "delete",
            "configmap",
            "-n",
            namespace,
            name,
        ]))?;
    }
    proxy.wait_for_node("edge-1", &["7429,9100,10250,10255"])
}
