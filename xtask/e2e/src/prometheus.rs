//! Prometheus in a pod on the master, with its own network. It scrapes the kubelets of edge nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use crate::cluster::MASTER;
use crate::images::PROMETHEUS;
use crate::pods;
use crate::world::{SHOP, World};

/// The instances, and the node that must answer: edge-1 by its address, and all nodes as `role:
/// node` discovers and relabels them.
const TARGETS: [(&str, &str); 4] = [
    ("10.0.3.7:10250", "edge-1"),
    ("edge-1:10250", "edge-1"),
    ("edge-2:10250", "edge-2"),
    ("edge-3:10250", "edge-3"),
];
/// The discovery of nodes, which Debian's build lacks. The test replaces it by what it would find.
const DISCOVERY: &str = "  kubernetes_sd_configs:\n  - role: node\n";
/// Time for the targets to be scraped. Prometheus scrapes each second once it has started.
const SCRAPE_TIME: Duration = Duration::from_secs(40);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "Prometheus on the master scrapes the kubelets of edge-1 by address and of all by \
        name, each telling of its own pods",
        |world| {
            let account = pods::reader("prometheus", &["nodes/metrics"]);
            world.apply("prometheus", &[account, vec![config()?, pod()]].concat())?;
            world.wait_for_phase("prometheus", "Running")?;
            let address = world.shop(&[
                "get",
                "pod",
                "prometheus",
                "--output",
                "jsonpath={.status.podIP}",
            ])?;
            wait::until("every target is up", SCRAPE_TIME, || {
                TARGETS
                    .iter()
                    .try_for_each(|(target, node)| check(world, &address, target, node))
            })
        },
    )
}

/// Fails unless a target is up and its metrics are those of its own node.
fn check(world: &World, address: &str, target: &str, node: &str) -> Result<()> {
    let active = ask(world, address, "targets?state=active")?;
    let targets = active["data"]["activeTargets"]
        .as_array()
        .context("no targets yet")?;
    let found = targets
        .iter()
        .find(|one| one["labels"]["instance"] == target);
    let found = found.with_context(|| format!("Prometheus does not know {target}"))?;
    ensure!(
        found["health"] == "up",
        "{target} is {}: {}",
        found["health"],
        found["lastError"]
    );
    let query = format!(
        "query?query=container_memory_working_set_bytes%7Binstance%3D%22{target}%22%2Cnamespace%3D%22{SHOP}%22%7D"
    );
    let answer = ask(world, address, &query)?;
    let series = answer["data"]["result"].as_array().context("no result")?;
    let own = series
        .iter()
        .any(|one| one["metric"]["pod"] == pods::name(node));
    ensure!(own, "{target} tells of no pod {}", pods::name(node));
    Ok(())
}

fn ask(world: &World, address: &str, path: &str) -> Result<Value> {
    let url = format!("http://{address}:9090/api/v1/{path}");
    let text = world.cluster.on(
        MASTER,
        &["curl", "--silent", "--show-error", "--max-time", "5", &url],
    )?;
    serde_json::from_str(&text).with_context(|| format!("{url}: this is not JSON: {text:.200}"))
}

/// The documented scrape job, with discovered nodes and one node by its address.
fn config() -> Result<Value> {
    let page = workspace::root().join("docs/install-kubernetes.md");
    let page =
        std::fs::read_to_string(&page).with_context(|| format!("read {}", page.display()))?;
    let found =
        [("edge-1", "10.0.3.7"), ("edge-2", "192.168.1.10"), ("edge-3", "192.168.1.10")].map(|(node, address)| {
            let labels = format!(
                "{{__meta_kubernetes_node_name: \
                 {node}, __meta_kubernetes_node_labelpresent_node_restriction_kubernetes_io_culvert_edge: 'true'}}"
            );
            format!("  - targets: ['{address}:10250']\n    labels: {labels}\n")
        });
    let found = format!(
        "  static_configs:\n{}  - targets: ['10.0.3.7:10250']\n",
        found.concat()
    );
    let job = documented_job(&page)?.replacen(DISCOVERY, &found, 1);
    let config = format!("global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n{job}");
    Ok(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prometheus", "namespace": SHOP},
        "data": {"prometheus.yml": config}
    }))
}

/// The part of the page that discovers nodes.
fn documented_job(page: &str) -> Result<&str> {
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(block, _)| block);
    blocks
        .into_iter()
        .find(|block| block.contains(DISCOVERY))
        .context("the page shows no scrape job with `role: node`")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_of_the_installation_guide_is_found() {
        let config = config().unwrap();
        let text = config["data"]["prometheus.yml"].as_str().unwrap();
        assert!(
            text.contains("relabel_configs") && !text.contains("role: node"),
            "{text}"
        );
    }
}
