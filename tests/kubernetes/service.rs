//! `--agent-service`: the addresses that agents dial, taken from the Service, with only the
//! permissions in the manifests.

use anyhow::{Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::json;
use xtask::manifests;

use crate::cluster::{
    DEADLINE, apply, get, node, pod, set_status, set_status_as, token, with_server,
};
use crate::proxy::Proxy;

const SERVICE: &str = "/api/v1/namespaces/culvert-system/services/culvert-proxy";
const PODS: &str = "/api/v1/namespaces/culvert-system/pods";

#[test]
fn agents_are_told_the_node_ports_of_ready_proxies_or_the_load_balancers_addresses() {
    with_server(|server| addresses(server));
}

fn addresses(server: &ApiServer) -> Result<()> {
    node(server, "master-1", "192.0.2.10", &json!({}))?;
    node(server, "master-2", "192.0.2.20", &json!({}))?;
    let rendered = |name: &str| manifests::committed().join(format!("{name}.yaml"));
    workspace::output(
        server
            .kubectl()
            .args(["apply", "-f"])
            .arg(rendered("nodeport")),
    )?;
    for (name, on) in [("proxy-1", "master-1"), ("proxy-2", "master-2")] {
        pod(server, "culvert-system", name, "culvert-proxy", on)?;
    }
    let ready = |pod: &str, ready: &str| {
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        set_status(server, &format!("{PODS}/{pod}"), &status)
    };
    ready("proxy-1", "True")?;
    ready("proxy-2", "False")?;
    let token = token(server, ["culvert-system", "culvert-proxy"], None, None)?;
    let kubeconfig = server.kubeconfig_of("culvert-proxy", &token)?;
    let mut proxy = Proxy::start_as(
        server,
        &kubeconfig,
        "proxy",
        &["--agent-service", "culvert-proxy"],
    )?;

    wait_for(server, &mut proxy, "192.0.2.10:30740\n")?;
    pretend(server)?;
    ready("proxy-2", "True")?;
    wait_for(server, &mut proxy, "192.0.2.10:30740\n192.0.2.20:30740\n")?;

    let all = seventeen(server)?;
    wait_for(server, &mut proxy, &all)?;

    workspace::output(
        server
            .kubectl()
            .args(["apply", "-f"])
            .arg(rendered("loadbalancer")),
    )?;
    let ingress = json!([{"ip": "203.0.113.9"}, {"hostname": "agents.example"}]);
    set_status(
        server,
        SERVICE,
        &json!({"loadBalancer": {"ingress": ingress}}),
    )?;
    wait_for(
        server,
        &mut proxy,
        "203.0.113.9:7400\nagents.example:7400\n",
    )?;
    ensure!(
        !proxy.process.log().contains("answered 403"),
        "{}",
        proxy.process.log()
    );

    workspace::output(server.kubectl().args([
        "delete",
        "service",
        "-n",
        "culvert-system",
        "culvert-proxy",
    ]))?;
    proxy.process.wait_logged(
        "the proxies' addresses for agents are not published",
        &[("reason", "there is no such Service")],
        DEADLINE,
    )?;
    wait_for(
        server,
        &mut proxy,
        "203.0.113.9:7400\nagents.example:7400\n",
    )
}

/// The kubelet of worker-1 makes a ready pod that has the labels of a proxy.
fn pretend(server: &ApiServer) -> Result<()> {
    node(server, "worker-1", "192.0.2.99", &json!({}))?;
    let owner = get(server, &["node", "worker-1"])?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "culvert-system", "name": "pretended",
            "labels": {"app.kubernetes.io/name": "culvert-proxy"},
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "worker-1",
                "uid": owner["metadata"]["uid"], "controller": true}]},
        "spec": {"nodeName": "worker-1", "hostNetwork": true,
            "containers": [{"name": "any", "image": "any"}]}});
    let file = server.folder().join("pretended.json");
    std::fs::write(&file, pod.to_string())?;
    let mut create = server.kubelet("worker-1");
    workspace::output(create.args(["create", "-f"]).arg(file))?;
    let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let path = format!("{PODS}/pretended");
    set_status_as(server, server.kubelet("worker-1"), &path, &status)
}

/// Makes ready proxies on fifteen further nodes. Returns what agents are told then.
fn seventeen(server: &ApiServer) -> Result<String> {
    let names: Vec<u8> = (3..=17).collect();
    let nodes: Vec<_> = names
        .iter()
        .map(|number| {
            let address = format!("192.0.2.{}", 100 + number);
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("master-{number}")},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
        })
        .collect();
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "List", "items": nodes}),
    )?;
    for number in &names {
        let name = format!("proxy-{number}");
        let on = format!("master-{number}");
        pod(server, "culvert-system", &name, "culvert-proxy", &on)?;
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        set_status(server, &format!("{PODS}/{name}"), &status)?;
    }
    let mut addresses: Vec<String> = names
        .iter()
        .map(|number| format!("192.0.2.{}:30740\n", 100 + number))
        .collect();
    addresses.extend(["192.0.2.10:30740\n", "192.0.2.20:30740\n"].map(str::to_owned));
    addresses.sort_unstable();
    Ok(addresses.concat())
}

/// Waits until the agents' ConfigMap has exactly these addresses.
fn wait_for(server: &ApiServer, proxy: &mut Proxy, wanted: &str) -> Result<()> {
    wait::until(&format!("agents are told {wanted:?}"), DEADLINE, || {
        proxy.process.check()?;
        let told = get(
            server,
            &["configmap", "-n", "culvert-system", "culvert-agent"],
        )?;
        ensure!(
            told["data"]["proxies"] == wanted,
            "{}\n{}",
            told["data"]["proxies"],
            proxy.process.log()
        );
        Ok(())
    })
}
