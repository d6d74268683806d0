//! The kubelet's own pages: read directly, as metrics-server does for `kubectl top`, and through
//! the API server's node proxy.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use crate::cluster::{EDGES, MASTER};
use crate::images::CURL;
use crate::pods;
use crate::world::{EDGE_1_ADDRESS, SHOP, World, WrongData};

/// The permission that the kubelet requires of clients that read its metrics.
const RIGHT: &str = "nodes/metrics";

/// Time for the token of an account.
const DEADLINE: Duration = Duration::from_secs(30);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    let mut hosts = vec![(EDGE_1_ADDRESS, "edge-1")];
    hosts.extend(EDGES.map(|node| (node, node)));
    read_by_pod(world, &hosts)?;
    refused_by_kubelet(world)?;
    read_from_outside(world)
}

/// The page of a kubelet's metrics.
fn url_of(host: &str) -> String {
    format!("https://{host}:10250/metrics/resource")
}

/// Proves it for hosts, each with the node that it is.
fn read_by_pod(world: &mut World, hosts: &[(&str, &str)]) -> Result<()> {
    let urls: Vec<String> = hosts.iter().map(|(host, _)| url_of(host)).collect();
    world.claim_once(
        "a pod with a network of its own and the right to nodes/metrics reads \
        /metrics/resource of every edge, its certificate verified",
        |world| {
            world.apply(
                "metrics-reader",
                &[
                    pods::reader("metrics-reader", &[RIGHT]),
                    vec![pod("metrics-reader", &urls)],
                ]
                .concat(),
            )?;
            world.wait_for_phase("metrics-reader", "Succeeded")?;
            let said = world.shop(&["logs", "metrics-reader"])?;
            let mut rest = said.as_str();
            for (url, (_, node)) in urls.iter().zip(hosts) {
                let (page, after) = rest
                    .split_once(&format!("== 200 {url}\n"))
                    .with_context(|| format!("no page of {url}: {rest}"))?;
                let own = format!("pod=\"{}\"", pods::name(node));
                ensure!(page.contains(&own), "{url} tells of no {own}");
                rest = after;
            }
            Ok(())
        },
    )
}

fn refused_by_kubelet(world: &mut World) -> Result<()> {
    let urls = [url_of(EDGE_1_ADDRESS)];
    world.claim_once(
        "a pod without that right is refused by the kubelet itself",
        |world| {
            let stranger = pods::reader("metrics-stranger", &["nodes/spec"]);
            world.apply(
                "metrics-stranger",
                &[stranger, vec![pod("metrics-stranger", &urls)]].concat(),
            )?;
            world.wait_for_phase("metrics-stranger", "Failed")?;
            let said = world.shop(&["logs", "metrics-stranger"])?;
            ensure!(
                said.contains("== 403 ")
                    && said.contains("system:serviceaccount:shop:metrics-stranger"),
                "{said}"
            );
            Ok(())
        },
    )
}

fn read_from_outside(world: &mut World) -> Result<()> {
    world.claim(
        "a caller outside of pods reads them with the token of deploy/metrics-reader.yaml, and \
         without it nothing",
        |world| {
            let url = url_of(EDGE_1_ADDRESS);
            let curl = [
                "curl",
                "-sS",
                "--fail-with-body",
                "--insecure",
                "-m",
                "10",
                &url,
            ];
            let refused = world.cluster.on(MASTER, &curl).is_err();
            ensure!(refused, "{url} answers everybody");
            let token = token_of_reader(world)?;
            let header = format!("Authorization: Bearer {token}");
            let page = world
                .cluster
                .on(MASTER, &[&curl[..], &["--header", &header]].concat())?;
            let own = format!("pod=\"{}\"", pods::name("edge-1"));
            ensure!(page.contains(&own), "it has no {own}");
            Ok(())
        },
    )
}

/// Applies the account as the guide says; returns its token.
fn token_of_reader(world: &World) -> Result<String> {
    let manifest = workspace::root().join("deploy/metrics-reader.yaml");
    let manifest = manifest.display().to_string();
    world.cluster.ask(&["apply", "-f", &manifest])?;
    let template = "{{.data.token | base64decode}}";
    wait::until("the token of the account", DEADLINE, || {
        let token = world.cluster.ask(&[
            "--namespace",
            "kube-system",
            "get",
            "secret",
            "node-metrics-reader",
            "--output",
            &format!("go-template={template}"),
        ])?;
        ensure!(token.starts_with("ey"), "none yet");
        Ok(token)
    })
}

/// Proves `/stats/summary` through the API server.
pub(super) fn prove_summary(world: &mut World, node: &str) -> Result<()> {
    world.claim(
        &format!("/stats/summary of {node} through the API server's node proxy"),
        |world| {
            let page = world.cluster.ask(&[
                "get",
                "--raw",
                &format!("/api/v1/nodes/{node}/proxy/stats/summary"),
            ])?;
            let page: Value = serde_json::from_str(&page)
                .with_context(|| format!("this is not JSON: {page:.200}"))?;
            let of = &page["node"]["nodeName"];
            ensure!(of == node, WrongData(format!("it is of {of}")));
            Ok(())
        },
    )
}

/// A pod on the master with its own network, which uses Culvert's DNS.
fn pod(name: &str, urls: &[String]) -> Value {
    let account = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
    let fixed = [
        "--silent",
        "--show-error",
        "--fail-with-body",
        "--max-time",
        "20",
        "--cacert",
        account,
        "--header",
        "@/shared/header",
    ];
    let fixed = fixed
        .into_iter()
        .chain(["--write-out", "== %{http_code} %{url_effective}\n"])
        .map(str::to_owned);
    let args: Vec<String> = fixed.chain(urls.iter().cloned()).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP},
        "spec": {
            "nodeName": MASTER, "tolerations": [{"operator": "Exists"}], "restartPolicy": "Never", "serviceAccountName": name,
            "dnsPolicy": "None", "dnsConfig": {"nameservers": ["203.0.113.1"]},
            "volumes": [{"name": "shared", "emptyDir": {}}],
            "initContainers": [pods::header_writer()],
            "containers": [{
                "name": "curl", "image": CURL, "imagePullPolicy": "Never", "args": args,
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]
            }]
        }
    })
}
