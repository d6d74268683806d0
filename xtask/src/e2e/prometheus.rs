//! Prometheus in a pod on the master, with a network of its own, scraping the kubelets of edge nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::images::PROMETHEUS;
use super::pods;
use super::world::{MASTER, SHOP, World};
use crate::wait;

/// What is scraped, and the node that must answer.
const TARGETS: [(&str, &str); 4] =
    [("10.0.3.7:10250", "edge-1"), ("edge-1:10250", "edge-1"), ("edge-2:10250", "edge-2"), ("edge-3:10250", "edge-3")];
/// Scraped each second, as soon as Prometheus has started.
const SCRAPE_TIME: Duration = Duration::from_secs(40);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim("Prometheus on the master scrapes the kubelets of edge-1 by address and of all by name, each telling of its own pods", |world| {
        let account = pods::reader("prometheus", &["nodes/metrics"]);
        world.apply("prometheus", &[account, vec![config(), pod()]].concat())?;
        world.wait_for_phase("prometheus", "Running")?;
        let address = world.shop(&["get", "pod", "prometheus", "--output", "jsonpath={.status.podIP}"])?;
        wait::until("every target is up", SCRAPE_TIME, || TARGETS.iter().try_for_each(|(target, node)| check(world, &address, target, node)))
    })
}

/// Fails unless a target is up and what it tells is of its own node.
fn check(world: &World, address: &str, target: &str, node: &str) -> Result<()> {
    let active = ask(world, address, "targets?state=active")?;
    let targets = active["data"]["activeTargets"].as_array().context("no targets yet")?;
    let found = targets.iter().find(|one| one["labels"]["instance"] == target);
    let found = found.with_context(|| format!("Prometheus does not know {target}"))?;
    ensure!(found["health"] == "up", "{target} is {}: {}", found["health"], found["lastError"]);
    let query = format!(
        "query?query=container_memory_working_set_bytes%7Binstance%3D%22{target}%22%2Cnamespace%3D%22{SHOP}%22%7D"
    );
    let answer = ask(world, address, &query)?;
    let series = answer["data"]["result"].as_array().context("no result")?;
    let own = series.iter().any(|one| one["metric"]["pod"] == pods::name(node));
    ensure!(own, "{target} tells of no pod {}", pods::name(node));
    Ok(())
}

fn ask(world: &World, address: &str, path: &str) -> Result<Value> {
    let url = format!("http://{address}:9090/api/v1/{path}");
    let text = world.cluster.on(MASTER, &["curl", "--silent", "--show-error", "--max-time", "5", &url])?;
    serde_json::from_str(&text).with_context(|| format!("{url}: this is not JSON: {text:.200}"))
}

fn config() -> Value {
    let targets: Vec<&str> = TARGETS.iter().map(|(target, _)| *target).collect();
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let config = json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{
            "job_name": "kubelet", "scheme": "https", "metrics_path": "/metrics/resource",
            "authorization": {"credentials_file": format!("{account}/token")},
            "tls_config": {"ca_file": format!("{account}/ca.crt")},
            "static_configs": [{"targets": targets}]
        }]
    });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prometheus", "namespace": SHOP},
        "data": {"prometheus.yml": config.to_string()}
    })
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "prometheus", "namespace": SHOP},
        "spec": {
            "nodeName": MASTER, "tolerations": [{"operator": "Exists"}], "serviceAccountName": "prometheus",
            "terminationGracePeriodSeconds": 1, "dnsPolicy": "None", "dnsConfig": {"nameservers": ["203.0.113.1"]},
            "volumes": [{"name": "config", "configMap": {"name": "prometheus"}}, {"name": "data", "emptyDir": {}}],
            "containers": [{
                "name": "prometheus", "image": PROMETHEUS, "imagePullPolicy": "Never",
                "args": ["--config.file=/config/prometheus.yml", "--storage.tsdb.path=/data"],
                "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}]
            }]
        }
    })
}
