//! Prometheus in a pod on each cloud node, with its own network. Each scrapes the kubelets of all
//! edge nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

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
        "Prometheus on each cloud node scrapes the kubelets of edge-1 by address and of all by \
        name, each telling of its own pods",
        |world| {
            let mut objects = pods::reader("prometheus", &["nodes/metrics"]);
            objects.push(config()?);
            for host in &world.clouds {
                objects.push(pod(host, world.cluster.variable_of(host, "ADDRESS")?));
            }
            world.apply("prometheus", &objects)?;
            world.clouds.iter().try_for_each(|host| all_up(world, host))
        },
    )
}

/// The name of the pod on a cloud node.
fn name(host: &str) -> String {
    format!("prometheus-{host}")
}

/// Waits until all targets of the Prometheus on a cloud node are up.
fn all_up(world: &World, host: &'static str) -> Result<()> {
    world.wait_for_phase(&name(host), "Running")?;
    let address = world.shop(&[
        "get",
        "pod",
        &name(host),
        "--output",
        "jsonpath={.status.podIP}",
    ])?;
    let prometheus = Prometheus {
        world,
        host,
        address,
    };
    wait::until(
        &format!("every target is up on {host}"),
        SCRAPE_TIME,
        || {
            TARGETS
                .iter()
                .try_for_each(|(target, node)| prometheus.check(target, node))
        },
    )
}

/// A Prometheus that runs, and where.
struct Prometheus<'world> {
    world: &'world World,
    host: &'static str,
    address: String,
}

impl Prometheus<'_> {
    /// Fails unless a target is up and its metrics are those of its own node.
    fn check(&self, target: &str, node: &str) -> Result<()> {
        let active = self.ask("targets?state=active")?;
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
        let up = self.series("up", target, "")?;
        ensure!(
            up.len() == 1 && up[0]["value"][1] == "1",
            "up of {target} is {up:?}"
        );
        let of_shop = format!("%2Cnamespace%3D%22{SHOP}%22");
        let series = self.series("container_memory_working_set_bytes", target, &of_shop)?;
        let own = series
            .iter()
            .any(|one| one["metric"]["pod"] == pods::name(node));
        ensure!(own, "{target} tells of no pod {}", pods::name(node));
        Ok(())
    }

    /// The series of a metric of an instance, with further labels in percent-encoding.
    fn series(&self, metric: &str, instance: &str, labels: &str) -> Result<Vec<Value>> {
        let query = format!("query?query={metric}%7Binstance%3D%22{instance}%22{labels}%7D");
        let answer = self.ask(&query)?;
        let series = answer["data"]["result"].as_array();
        series.cloned().context("no result")
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let url = format!("http://{}:9090/api/v1/{path}", self.address);
        let text = self.world.cluster.on(
            self.host,
            &["curl", "--silent", "--show-error", "--max-time", "5", &url],
        )?;
        serde_json::from_str(&text).with_context(|| format!("{url}: this is not JSON: {text:.200}"))
    }
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

/// The pod on a cloud node, which asks the redirector there for names.
fn pod(host: &str, resolver: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(host), "namespace": SHOP},
        "spec": {
            "nodeName": host, "tolerations": [{"operator": "Exists"}], "serviceAccountName": "prometheus",
            "terminationGracePeriodSeconds": 1, "dnsPolicy": "None", "dnsConfig": {"nameservers": [resolver]},
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
