//! Ports of the cluster's edge nodes: from `culvert-ports`, which agents follow too, and from
//! YurtTunnel's configuration.

use anyhow::{Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::json;

use crate::cluster::{DEADLINE, config_map, edge, get, with_server};
use crate::identity::site::{Agent, agent_token, create_objects};
use crate::loopback::echo_backend;
use crate::proxy::Proxy;

/// The note of the Event with this reason, on the object of this name.
pub(crate) fn event_note(
    server: &ApiServer,
    namespace: &str,
    reason: &str,
    name: &str,
) -> Result<String> {
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
        let note = event_note(server, "culvert-system", "InvalidPorts", "culvert-ports")?;
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
        workspace::output(
            server
                .kubectl()
                .args(["delete", "configmap", "-n", namespace, name]),
        )?;
    }
    proxy.wait_for_node("edge-1", &["7429,9100,10250,10255"])
}

/// What `deploy/cloud/` ships.
fn apply_file(server: &ApiServer, name: &str) -> Result<()> {
    let file = workspace::root().join("deploy/cloud").join(name);
    workspace::output(server.kubectl().args(["apply", "-f"]).arg(file)).map(drop)
}

/// Changes keys of `culvert-ports`, as docs/dns.md tells administrators.
fn patch(server: &ApiServer, data: &serde_json::Value) -> Result<()> {
    let patch = json!({ "data": data }).to_string();
    let line = ["patch", "configmap", "culvert-ports", "--type=merge", "-p"];
    let mut kubectl = server.kubectl();
    workspace::output(kubectl.args(["-n", "culvert-system"]).args(line).arg(patch)).map(drop)
}

fn data(server: &ApiServer) -> Result<serde_json::Value> {
    let found = get(
        server,
        &["configmap", "-n", "culvert-system", "culvert-ports"],
    )?;
    Ok(found["data"].clone())
}

#[test]
fn an_agent_dials_a_port_of_the_config_map_in_the_tunnels_that_it_has() {
    with_server(|server| followed(server));
}

fn followed(server: &ApiServer) -> Result<()> {
    create_objects(server)?;
    apply_file(server, "ports.yaml")?;
    let backend = echo_backend()?;
    let later = format!("edge-1:{}", echo_backend()?);
    let mut proxy = Proxy::start(server, "proxy", &[])?;
    let token = agent_token(server, "agent", "edge-1")?;
    let mut agent = Agent::start(server, "agent", &token, backend)?;
    let address = proxy.agents.to_string();
    agent.mount_until(server, "the proxy", |_, told| told.contains(&address))?;
    agent.mount_ports(server)?;
    proxy.wait_for_stream(&format!("edge-1:{backend}"))?;
    let explained = proxy.why(&later)?;
    ensure!(explained.contains("refuses to dial"), "{explained}");
    let tunnels = proxy.process.logged("tunnel up", &[]).len();

    let (_, port) = later.split_once(':').unwrap_or_default();
    patch(server, &json!({ "localhost-ports": port }))?;
    agent.mount_ports(server)?;
    proxy.wait_for_stream(&later)?;
    let explained = proxy.why(&later)?;
    let dials = format!("dials 127.0.0.1:{port}");
    ensure!(explained.contains(&dials), "{explained}");
    ensure!(
        proxy.process.logged("tunnel up", &[]).len() == tunnels,
        "{}",
        proxy.process.log()
    );

    patch(server, &json!({ "localhost-ports": format!("{port}, x") }))?;
    agent.mount_ports(server)?;
    let kept = "--ports-config not used, keeping the last good ports";
    agent.wait_for_log(kept, &[("reason", "localhost-ports: \"x\" is not a port")])?;
    proxy.wait_for_stream(&later)?;

    patch(server, &json!({ "localhost-ports": null }))?;
    agent.mount_ports(server)?;
    wait::until("the port is closed again", DEADLINE, || {
        let refused = proxy.stream(&later).err();
        let refused = refused.ok_or_else(|| anyhow::anyhow!("it is open"))?;
        ensure!(format!("{refused:#}").contains("403"), "{refused:#}");
        Ok(())
    })
}

#[test]
fn a_taken_over_proxy_opens_no_ports_of_agents() {
    with_server(|server| proxies_rights(server));
}

fn proxies_rights(server: &ApiServer) -> Result<()> {
    apply_file(server, "rbac.yaml")?;
    apply_file(server, "ports.yaml")?;
    patch(server, &json!({ "ports": "9051" }))?;
    let as_proxy = |args: &[&str]| {
        let mut kubectl = server.kubectl();
        kubectl.args(["--as", "system:serviceaccount:culvert-system:culvert-proxy"]);
        workspace::output(kubectl.args(["-n", "culvert-system"]).args(args))
    };
    let own = ["create", "configmap", "its-own"];
    wait::until("the rights of the proxy are in force", DEADLINE, || {
        as_proxy(&own).map(drop)
    })?;
    let create = [
        "create",
        "configmap",
        "culvert-ports",
        "--from-literal=ports=22",
    ];
    let refused = as_proxy(&create).err();
    let refused = refused.map(|error| format!("{error:#}"));
    ensure!(
        refused
            .as_ref()
            .is_some_and(|told| told.contains("already exists")),
        "{refused:?}"
    );
    let may = |verb: &str| as_proxy(&["auth", "can-i", verb, "configmaps/culvert-ports"]).is_ok();
    ensure!(may("list"), "it follows the ConfigMap");
    for verb in ["update", "patch", "delete", "deletecollection"] {
        ensure!(!may(verb), "it may {verb} the ConfigMap");
    }
    // Why the manifests ship it.
    workspace::output(server.kubectl().args([
        "delete",
        "configmap",
        "-n",
        "culvert-system",
        "culvert-ports",
    ]))?;
    as_proxy(&create).map(drop)
}

#[test]
fn applying_the_manifests_again_keeps_the_ports_of_administrators() {
    with_server(|server| {
        apply_file(server, "ports.yaml")?;
        patch(server, &json!({ "ports": "9051" }))?;
        apply_file(server, "ports.yaml")?;
        ensure!(
            data(server)? == json!({ "ports": "9051" }),
            "{}",
            data(server)?
        );
        let file = workspace::root().join("deploy/cloud/ports.yaml");
        let mut kubectl = server.kubectl();
        let by_server = ["apply", "--server-side", "--force-conflicts", "-f"];
        workspace::output(kubectl.args(by_server).arg(file))?;
        ensure!(
            data(server)? == json!({ "ports": "9051" }),
            "{}",
            data(server)?
        );
        // As deploy/cloud/ports.yaml warns.
        let ports = json!({ "ports": "9052" });
        config_map(server, "culvert-system", "culvert-ports", &ports)?;
        apply_file(server, "ports.yaml")?;
        ensure!(data(server)?.is_null(), "{}", data(server)?);
        Ok(())
    });
}
