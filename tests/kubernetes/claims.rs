//! Kubelets' claims about their own Nodes: none of them makes the redirectors steer an address of
//! the cloud.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, apply, config_map, edge, node, set_status_as, with_server};
use crate::events::of;
use crate::proxy::Proxy;

/// Writes addresses into the status of a kubelet's own Node, as this kubelet.
fn claim(server: &ApiServer, node: &str, addresses: &[&str]) -> Result<()> {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"type": "InternalIP", "address": address}))
        .collect();
    let status =
        json!({"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}});
    set_status_as(
        server,
        server.kubelet(node),
        &format!("/api/v1/nodes/{node}"),
        &status,
    )
}

/// The routing of a node's address and its reason, as redirectors receive them.
fn routing(proxy: &Proxy, node: &str, address: &str) -> Result<(String, String)> {
    let nodes = proxy.json("/debug/nodes")?;
    let found = nodes
        .as_array()
        .into_iter()
        .flatten()
        .find(|found| found["name"] == node);
    let found = found.with_context(|| format!("no {node} in {nodes}"))?;
    let of = found["addresses"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|found| found["ip"] == address);
    let of = of.with_context(|| format!("{node} has no {address}: {found}"))?;
    let text = |key: &str| of[key].as_str().unwrap_or_default().to_owned();
    Ok((text("routing"), text("reason")))
}

fn wait_for_routing(
    proxy: &Proxy,
    node: &str,
    address: &str,
    [wanted, reason]: [&str; 2],
) -> Result<()> {
    wait::until(
        &format!("{address} of {node} is {wanted}: {reason}"),
        DEADLINE,
        || {
            let found = routing(proxy, node, address)?;
            ensure!(found.0 == wanted && found.1.contains(reason), "{found:?}");
            Ok(())
        },
    )
}

/// Creates the objects from which the proxy learns the cluster's own addresses.
fn create_objects(server: &ApiServer) -> Result<()> {
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"namespace": "default", "name": "kubernetes"},
            "subsets": [{"addresses": [{"ip": "198.51.100.77"}], "ports": [{"name": "https", "port": 443}]}]}),
    )?;
    let configuration = "networking:\n  podSubnet: 10.244.0.0/16\n  serviceSubnet: 10.96.0.0/16\n";
    config_map(
        server,
        "kube-system",
        "kubeadm-config",
        &json!({"ClusterConfiguration": configuration}),
    )
}

#[test]
fn a_kubelets_own_word_makes_no_address_of_the_clouds_an_edge_nodes() {
    with_server(claimed_by_an_edge);
}

fn claimed_by_an_edge(server: &mut ApiServer) -> Result<()> {
    create_objects(server)?;
    edge(server, "edge-1", "10.0.3.7")?;
    node(server, "master", "192.0.2.10", &json!({}))?;
    let external = json!({"addresses": [
        {"type": "InternalIP", "address": "192.0.2.10"}, {"type": "ExternalIP", "address": "198.51.100.9"}]});
    set_status_as(server, server.kubectl(), "/api/v1/nodes/master", &external)?;
    let mut proxy = Proxy::start_as(server, &server.kubeconfig(), "proxy", &[])?;
    wait_for_routing(&proxy, "edge-1", "10.0.3.7", ["routed", ""])?;

    let claims = [
        ("198.51.100.77", "also an address of the API server"),
        (
            "10.96.0.1",
            "also in the cluster's Service range 10.96.0.0/16",
        ),
        (
            "10.244.7.9",
            "also in the cluster's pod range 10.244.0.0/16",
        ),
        ("198.51.100.9", "also the address of the cloud node master"),
        ("192.0.2.10", "also the address of the cloud node master"),
        ("198.18.0.9", "also in the VIP range 198.18.0.0/15"),
    ];
    let addresses: Vec<&str> = ["10.0.3.7"]
        .into_iter()
        .chain(claims.map(|(address, _)| address))
        .collect();
    claim(server, "edge-1", &addresses)?;
    let refused = |proxy: &Proxy| {
        claims.iter().try_for_each(|(address, reason)| {
            wait_for_routing(proxy, "edge-1", address, ["protected", reason])?;
            let explained = proxy.why(&format!("{address}:443"))?;
            let is_vip = address.starts_with("198.18.");
            let passes = explained.contains("never steered")
                || explained.contains("passes: the client dials it itself");
            ensure!(is_vip || passes, "{explained}");
            Ok(())
        })?;
        wait_for_routing(proxy, "edge-1", "10.0.3.7", ["routed", ""])
    };
    refused(&proxy)?;

    // The last known state protects it after a restart, before any API server answers.
    server.stop()?;
    proxy.restart()?;
    wait::until("the last state serves", DEADLINE, || {
        proxy.nodes().map(drop)
    })?;
    refused(&proxy)
}

#[test]
fn a_proxy_that_does_not_know_the_clusters_ranges_steers_no_address_and_says_which_flag_helps() {
    with_server(unknown_ranges);
}

fn unknown_ranges(server: &mut ApiServer) -> Result<()> {
    edge(server, "edge-1", "10.0.3.7")?;
    edge(server, "edge-2", "10.0.4.8")?;
    let kubeconfig = server.kubeconfig();
    let bare = Proxy::start_as(server, &kubeconfig, "bare", &[])?;
    wait_for_routing(
        &bare,
        "edge-1",
        "10.0.3.7",
        ["protected", "give --edge-range, or "],
    )?;
    let by_name = bare.why("edge-1:10250")?;
    ensure!(
        by_name.contains("name of edge-1; every port of its VIPs"),
        "{by_name}"
    );
    let bounded = Proxy::start_as(
        server,
        &kubeconfig,
        "bounded",
        &["--edge-range", "10.0.3.0/24"],
    )?;
    wait_for_routing(&bounded, "edge-1", "10.0.3.7", ["routed", ""])?;
    wait_for_routing(
        &bounded,
        "edge-2",
        "10.0.4.8",
        ["protected", "outside every --edge-range"],
    )
}

#[test]
fn a_cloud_nodes_claim_takes_nothing_from_an_edge_node_and_vetoes_nothing() {
    with_server(claimed_by_a_cloud_node);
}

fn claimed_by_a_cloud_node(server: &mut ApiServer) -> Result<()> {
    edge(server, "edge-1", "10.0.3.7")?;
    node(server, "worker-1", "192.0.2.11", &json!({}))?;
    let mut proxy = Proxy::start(server, "proxy", &[])?;
    wait_for_routing(&proxy, "edge-1", "10.0.3.7", ["routed", ""])?;

    claim(
        server,
        "worker-1",
        &["192.0.2.11", "10.0.3.7", "198.18.0.9"],
    )?;
    let contested = [
        "shared",
        "also the address of the cloud node worker-1, which claims it since",
    ];
    wait_for_routing(&proxy, "edge-1", "10.0.3.7", contested)?;
    // A claimed address in the VIP range does not exclude other nodes.
    edge(server, "edge-2", "10.0.3.8")?;
    proxy.wait_for_node("edge-2", &["10.0.3.8", "198.18.0.2"])?;
    let refused = proxy
        .stream("10.0.3.7:10250")
        .err()
        .context("it is dialled")?;
    ensure!(format!("{refused:#}").contains("403"), "{refused:#}");

    server.stop()?;
    proxy.restart()?;
    wait::until("the last state serves", DEADLINE, || {
        proxy.nodes().map(drop)
    })?;
    wait_for_routing(&proxy, "edge-1", "10.0.3.7", contested)?;
    server.resume()?;
    claim(server, "worker-1", &["192.0.2.11"])?;
    wait_for_routing(&proxy, "edge-1", "10.0.3.7", ["routed", ""])
}

#[test]
fn what_is_behind_a_node_is_no_kubelets_word_and_two_claims_are_refused_with_an_event() {
    with_server(|server| behind(server));
}

fn behind(server: &ApiServer) -> Result<()> {
    edge(server, "edge-1", "10.0.3.7")?;
    edge(server, "edge-2", "10.0.3.8")?;
    let mut proxy = Proxy::start(server, "proxy", &[])?;
    let label = "node-restriction.kubernetes.io/culvert-behind-plc=192.168.7.20_502";
    let labels = |mut kubectl: Command, node: &str| {
        workspace::output(kubectl.args(["label", "node", node, label]))
    };
    labels(server.kubectl(), "edge-2")?;
    proxy.wait_for_node("edge-2", &["10.0.3.8,192.168.7.20:502 "])?;

    let refused = labels(server.kubelet("edge-1"), "edge-1").err();
    let refused = refused.map(|error| format!("{error:#}"));
    let is_forbidden = |told: &String| told.contains("is not allowed to modify labels");
    ensure!(refused.as_ref().is_some_and(is_forbidden), "{refused:?}");
    // NodeRestriction does not guard annotations.
    let annotation = "culvert.dev/behind=192.168.7.21:502";
    let mut kubelet = server.kubelet("edge-1");
    workspace::output(kubelet.args(["annotate", "node", "edge-1", annotation]))?;
    wait::until("the annotation is left out", DEADLINE, || {
        let left_out = "culvert.dev/behind is not read, for a kubelet may write it";
        ensure!(proxy.process.log().contains(left_out), "not yet");
        Ok(())
    })?;
    ensure!(!proxy.nodes()?.contains("192.168.7.21"), "it counts");

    labels(server.kubectl(), "edge-1")?;
    for node in ["edge-1", "edge-2"] {
        proxy.wait_for_node(node, &["192.168.7.20:502*"])?;
    }
    let both = "192.168.7.20:502 belongs to edge-1 and edge-2";
    ensure!(proxy.nodes()?.contains(both), "{}", proxy.nodes()?);
    for node in ["edge-1", "edge-2"] {
        wait::until(&format!("the Event on {node}"), DEADLINE, || {
            let events = of(server, "AddressClaimedTwice", node)?;
            let told = |event: &Value| event["note"].as_str().is_some_and(|it| it.contains(both));
            ensure!(events.iter().any(told), "{events:?}");
            Ok(())
        })?;
    }
    Ok(())
}
