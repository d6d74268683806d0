//! Prometheus in a pod on each cloud node, with its own network. Each discovers the nodes of the
//! cluster, and scrapes the kubelets of all.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{page, wait, workspace};
use serde_json::{Value, json};

use crate::cluster::EDGES;
use crate::images::PROMETHEUS;
use crate::pods;
use crate::world::{EDGE_1_ADDRESS, SHOP, World};

/// What the pods share: their account and their ConfigMap have this name, and theirs begin with it.
const PODS: &str = "prometheus";
/// The discovery of nodes in the documented job.
const DISCOVERY: &str = "  kubernetes_sd_configs:\n  - role: node\n";
/// The account's role of deploy/metrics-reader.yaml.
const ROLE: &str = "node-metrics-reader";
/// Time for the targets to be scraped. Prometheus scrapes each second once it has started.
const SCRAPE_TIME: Duration = Duration::from_secs(40);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "Prometheus on each cloud node discovers all nodes by `role: node` and scrapes their \
         kubelets: those of edge nodes by name, edge-1 by address too, each telling of its own pods",
        |world| {
            let manifest = workspace::root().join("deploy/metrics-reader.yaml");
            world
                .cluster
                .ask(&["apply", "--filename", &manifest.display().to_string()])?;
            let mut objects = account();
            objects.push(config()?);
            for host in &world.clouds {
                objects.push(pod(&name(host), PODS, host));
            }
            world.apply("prometheus", &objects)?;
            let targets = targets(world)?;
            world
                .clouds
                .iter()
                .try_for_each(|host| all_up(world, host, &targets))
        },
    )
}

/// What Prometheus must scrape.
struct Target {
    /// Its instance: `role: node` names it after the node.
    instance: String,
    /// The host that is dialled.
    host: String,
    /// A pod that its node must have.
    pod: String,
}

fn targets(world: &World) -> Result<Vec<Target>> {
    let edges = EDGES.map(|node| Target {
        instance: node.to_owned(),
        host: node.to_owned(),
        pod: pods::name(node),
    });
    let by_address = Target {
        instance: format!("{EDGE_1_ADDRESS}:10250"),
        host: EDGE_1_ADDRESS.to_owned(),
        pod: pods::name("edge-1"),
    };
    let clouds = world.clouds.iter().map(|host| {
        Ok(Target {
            instance: (*host).to_owned(),
            host: world.cluster.variable_of(host, "ADDRESS")?.to_owned(),
            pod: name(host),
        })
    });
    let edges = edges.into_iter().chain([by_address]);
    edges.map(Ok).chain(clouds).collect()
}

/// The account of the pods, with the right to discover and to read nodes.
fn account() -> Vec<Value> {
    let subject = json!({"kind": "ServiceAccount", "name": PODS, "namespace": SHOP});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": PODS, "namespace": SHOP}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": PODS},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE}, "subjects": [subject]
        }),
    ]
}

/// The name of the pod on a cloud node.
fn name(host: &str) -> String {
    format!("{PODS}-{host}")
}

/// Waits until all targets of the Prometheus on a cloud node are up.
fn all_up(world: &World, host: &'static str, targets: &[Target]) -> Result<()> {
    let prometheus = Prometheus::started(world, host, &name(host))?;
    wait::until(
        &format!("every target is up on {host}"),
        SCRAPE_TIME,
        || {
            targets
                .iter()
                .try_for_each(|target| prometheus.check(target))
        },
    )
}

/// A Prometheus that runs, and where.
pub(super) struct Prometheus<'world> {
    world: &'world World,
    host: &'static str,
    address: String,
}

impl<'world> Prometheus<'world> {
    /// Waits until a pod of it runs on a cloud node.
    pub(super) fn started(world: &'world World, host: &'static str, pod: &str) -> Result<Self> {
        world.wait_for_phase(pod, "Running")?;
        let address = world.shop(&["get", "pod", pod, "--output", "jsonpath={.status.podIP}"])?;
        Ok(Self {
            world,
            host,
            address,
        })
    }

    fn active_target(&self, instance: &str) -> Result<Value> {
        let active = self.ask("/api/v1/targets?state=active")?;
        let targets = active["activeTargets"]
            .as_array()
            .context("no targets yet")?;
        let found = targets
            .iter()
            .find(|one| one["labels"]["instance"] == instance);
        found
            .cloned()
            .with_context(|| format!("Prometheus does not know {instance}"))
    }

    /// Fails unless a target is up and its metrics are those of its own node.
    fn check(&self, target: &Target) -> Result<()> {
        let Target {
            instance,
            host,
            pod,
        } = target;
        let found = self.active_target(instance)?;
        ensure!(
            found["health"] == "up",
            "{instance} is {}: {}",
            found["health"],
            found["lastError"]
        );
        let url = format!("https://{host}:10250/metrics/resource");
        ensure!(found["scrapeUrl"] == url, "it dials {}", found["scrapeUrl"]);
        let up = self.series("up", instance, "")?;
        ensure!(
            up.len() == 1 && up[0]["value"][1] == "1",
            "up of {instance} is {up:?}"
        );
        let of_shop = format!("%2Cnamespace%3D%22{SHOP}%22");
        let series = self.series("container_memory_working_set_bytes", instance, &of_shop)?;
        let own = series.iter().any(|one| one["metric"]["pod"] == *pod);
        ensure!(own, "{instance} tells of no pod {pod}");
        Ok(())
    }

    /// The series of a metric of an instance, with further labels in percent-encoding.
    fn series(&self, metric: &str, instance: &str, labels: &str) -> Result<Vec<Value>> {
        let query =
            format!("/api/v1/query?query={metric}%7Binstance%3D%22{instance}%22{labels}%7D");
        let answer = self.ask(&query)?;
        let series = answer["result"].as_array();
        series.cloned().context("no result")
    }

    /// The data of its answer to a request of its API.
    pub(super) fn ask(&self, path: &str) -> Result<Value> {
        let url = format!("http://{}:9090{path}", self.address);
        let curl = ["curl", "-sS", "--globoff", "--max-time", "5", &url];
        let text = self.world.cluster.on(self.host, &curl)?;
        let answer: Value = serde_json::from_str(&text)
            .with_context(|| format!("{url}: this is not JSON: {text:.200}"))?;
        ensure!(answer["status"] == "success", "{url}: {answer}");
        Ok(answer["data"].clone())
    }
}

/// The documented scrape job, and the same with one node by its address.
fn config() -> Result<Value> {
    let page = page::read("install-kubernetes.md")?;
    let job = documented_job(&page)?;
    let (_, again) = job
        .split_once("scrape_configs:\n")
        .context("no list of jobs")?;
    let target = format!("  static_configs:\n  - targets: ['{EDGE_1_ADDRESS}:10250']\n");
    let again = again
        .replacen("job_name: ", "job_name: address-of-", 1)
        .replacen(DISCOVERY, &target, 1);
    let config = format!("global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n{job}{again}");
    Ok(settings(PODS, &json!({"prometheus.yml": config})))
}

/// The part of the page that discovers nodes.
fn documented_job(page: &str) -> Result<&str> {
    page::blocks(page, "yaml")
        .into_iter()
        .find(|block| block.contains(DISCOVERY))
        .context("the page shows no scrape job with `role: node`")
}

/// The ConfigMap of pods, which has their `prometheus.yml`.
pub(super) fn settings(name: &str, files: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": SHOP}, "data": files
    })
}

/// A pod on a cloud node. `settings` is the name of its ConfigMap and of its account.
pub(super) fn pod(name: &str, settings: &str, host: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP},
        "spec": {
            "nodeName": host, "tolerations": [{"operator": "Exists"}], "serviceAccountName": settings,
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "config", "configMap": {"name": settings}}, {"name": "data", "emptyDir": {}}],
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
            text.matches("relabel_configs").count() == 2
                && text.matches("role: node").count() == 1
                && text.contains("job_name: address-of-kubelet"),
            "{text}"
        );
    }
}
