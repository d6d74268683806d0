//! The Helm chart at a real API server, by the commands of docs/install-kubernetes.md. No node is
//! there, so no pod of it runs.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::workspace;
use serde_json::{Value, json};
use xtask::manifests::{self, chart};

use crate::cluster::{apply, config_map, get, with_server};

const NAMESPACE: &str = "culvert-system";

/// Runs Helm in [`NAMESPACE`]. `CHART` among the words is the folder of the chart.
fn helm(server: &ApiServer, words: &str) -> Result<String> {
    let mut helm = chart::helm(server.folder());
    helm.env("KUBECONFIG", server.kubeconfig());
    let folder = chart::folder().display().to_string();
    let words = words.split_whitespace();
    helm.args(words.map(|word| if word == "CHART" { &folder } else { word }));
    workspace::output(helm.args(["--namespace", NAMESPACE]))
}

/// The kinds, namespaces and names of everything that the API server has.
fn everything(server: &ApiServer) -> Result<BTreeSet<String>> {
    let mut kinds = server.kubectl();
    let kinds = workspace::output(kinds.args(["api-resources", "--verbs=list", "--output=name"]))?;
    let kinds: Vec<_> = kinds.lines().collect();
    let all = get(server, &[&kinds.join(","), "--all-namespaces"])?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(all["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|object| {
            let metadata = &object["metadata"];
            ["kind"].map(|field| text(&object[field])).join("")
                + &["namespace", "name"]
                    .map(|field| " ".to_owned() + &text(&metadata[field]))
                    .join("")
        })
        .collect())
}

fn of(server: &ApiServer, kind: &str, name: &str) -> Result<Value> {
    get(server, &[kind, name, "--namespace", NAMESPACE])
}

/// The pods that a DaemonSet makes.
fn pods(server: &ApiServer, daemon_set: &str) -> Result<Value> {
    Ok(of(server, "daemonset", daemon_set)?["spec"]["template"]["spec"].take())
}

fn patch(server: &ApiServer, kind: &str, name: &str, patch: &Value) -> Result<()> {
    let mut kubectl = server.kubectl();
    kubectl.args(["patch", kind, name, "--namespace", NAMESPACE]);
    workspace::output(kubectl.args(["--patch", &patch.to_string()])).map(drop)
}

/// What an administrator writes into ConfigMap culvert-ports.
fn open_ports(server: &ApiServer) -> Result<()> {
    patch(
        server,
        "configmap",
        "culvert-ports",
        &json!({"data": {"ports": "9100,10250"}}),
    )
}

fn ports_are_open(server: &ApiServer, when: &str) -> Result<()> {
    let map = of(server, "configmap", "culvert-ports")?;
    ensure!(
        map["data"] == json!({"ports": "9100,10250"}),
        "{when}: {map}"
    );
    Ok(())
}

#[test]
fn a_release_is_upgraded_and_rolled_back_and_keeps_what_others_wrote_into_its_objects() {
    with_server(|server| upgraded(server));
}

fn upgraded(server: &ApiServer) -> Result<()> {
    let notes = helm(
        server,
        "install culvert CHART --set edgeNodes.ranges={10.0.3.0/24}",
    )?;
    for command in [
        "kubectl label node EDGE-NODE node-restriction.kubernetes.io/culvert-edge=",
        "helm test culvert --namespace culvert-system --logs",
    ] {
        ensure!(notes.contains(command), "no {command:?}: {notes}");
    }
    let first = pods(server, "culvert-proxy")?;
    ensure!(
        first.to_string().contains("--edge-range=10.0.3.0/24"),
        "{first}"
    );
    open_ports(server)?;

    let set = "agentService.type=NodePort,nameService=true,image.tag=0.1.1";
    let upgrade = "upgrade culvert CHART --reset-then-reuse-values";
    helm(server, &format!("{upgrade} --set {set}"))?;
    let second = pods(server, "culvert-proxy")?;
    let container = &second["containers"][0];
    ensure!(container["image"] == "culvert-proxy:0.1.1", "{container}");
    let args = container["args"].to_string();
    ensure!(
        args.contains("--edge-range=") && args.contains("--agent-service="),
        "{args}"
    );
    let service = of(server, "service", "culvert-proxy")?;
    ensure!(
        service["spec"]["ports"][0]["nodePort"] == 30740,
        "{service}"
    );
    ports_are_open(server, "after an upgrade")?;

    // As the proxies keep the Service.
    let entry = json!({"name": "p-9100", "protocol": "TCP", "port": 9100, "targetPort": 7451});
    patch(
        server,
        "service",
        "culvert-edge",
        &json!({"spec": {"ports": [entry]}}),
    )?;
    helm(server, &format!("{upgrade} --set image.tag=0.1.2"))?;
    let service = of(server, "service", "culvert-edge")?;
    let names = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| &port["name"]);
    let names: BTreeSet<_> = names.filter_map(Value::as_str).collect();
    ensure!(names == BTreeSet::from(["p-10250", "p-9100"]), "{service}");

    helm(server, "rollback culvert 1")?;
    let back = pods(server, "culvert-proxy")?;
    ensure!(back == first, "{back}\n---\n{first}");
    for service in ["culvert-proxy", "culvert-edge"] {
        let gone = of(server, "service", service);
        ensure!(gone.is_err(), "{service} is still there");
    }
    ports_are_open(server, "after a rollback")
}

#[test]
fn uninstall_leaves_only_the_namespace_and_in_it_what_the_proxies_made() {
    with_server(|server| uninstalled(server));
}

fn uninstalled(server: &ApiServer) -> Result<()> {
    let before = everything(server)?;
    helm(
        server,
        "install culvert CHART --set nameService=true,agentService.type=LoadBalancer --set hosts.configMap=kube-system/culvert-hosts",
    )?;
    // As the proxies make them.
    for name in ["culvert-vips", "culvert-agent", "culvert-revocations"] {
        config_map(server, NAMESPACE, name, &json!({}))?;
    }
    config_map(server, "kube-system", "culvert-hosts", &json!({}))?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": NAMESPACE, "name": "culvert-ca"}});
    apply(server, &secret)?;

    let notes = helm(
        server,
        "upgrade culvert CHART --reset-then-reuse-values --set uninstall=true",
    )?;
    ensure!(
        notes.contains("rollout status daemonset/culvert-uninstall"),
        "{notes}"
    );
    let redirector = pods(server, "culvert-redirector")?;
    ensure!(
        redirector["nodeSelector"]["culvert.dev/redirector"] == "uninstalled",
        "{redirector}"
    );
    let cleaner = pods(server, "culvert-uninstall")?;
    ensure!(
        cleaner["initContainers"][0]["args"] == json!(["uninstall"]),
        "{cleaner}"
    );

    helm(server, "uninstall culvert")?;
    let after = everything(server)?;
    let left: Vec<_> = after.difference(&before).map(String::as_str).collect();
    ensure!(
        left == [
            "ConfigMap culvert-system culvert-agent",
            "ConfigMap culvert-system culvert-revocations",
            "ConfigMap culvert-system culvert-vips",
            "ConfigMap kube-system culvert-hosts",
            "Secret culvert-system culvert-ca",
        ],
        "{left:?}"
    );
    ensure!(before.is_subset(&after), "something else is gone");
    Ok(())
}

#[test]
fn helm_takes_over_what_kubectl_applied() {
    with_server(|server| adopt(server));
}

fn adopt(server: &ApiServer) -> Result<()> {
    let default = manifests::committed().join("default.yaml");
    kubectl_apply(server, &default)?;
    open_ports(server)?;
    let before = pods(server, "culvert-redirector")?;
    let refused = helm(server, "install culvert CHART");
    ensure!(refused.is_err_and(|error| format!("{error:#}").contains("ownership")));
    helm(server, "install culvert CHART --take-ownership")?;
    let after = pods(server, "culvert-redirector")?;
    ensure!(before == after, "{before}\n---\n{after}");
    ports_are_open(server, "after that")
}

fn kubectl_apply(server: &ApiServer, file: &Path) -> Result<()> {
    workspace::output(server.kubectl().args(["apply", "--filename"]).arg(file)).map(drop)
}
