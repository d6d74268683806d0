//! Prometheus in a pod with the configuration and the alerts of `deploy/monitoring`: it scrapes all
//! of Culvert's programs, and answers what the dashboards ask.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::monitoring::{self, path_of};
use culvert_lab::wait;
use serde_json::{Value, json};

use crate::cluster::{EDGES, MASTER};
use crate::prometheus::{self, Prometheus};
use crate::world::{CULVERT, SHOP, World};

/// The name of the pod, of its account, its rights and its ConfigMap.
const NAME: &str = "monitoring";
/// Time for the targets to be scraped. Prometheus scrapes each second once it has started.
const DEADLINE: Duration = Duration::from_secs(60);
/// What has no value while nothing is wrong, without a hub, and without connect hooks, which count.
const ABSENT: [&str; 4] = [
    " > 0",
    " == 0",
    "culvert_hub_",
    "culvert_redirector_kernel_connections_total",
];
/// What only a cluster has, and a lab of one proxy has not.
const CLUSTER_METRICS: [&str; 2] = ["culvert_proxy_directory_age_seconds", "culvert_proxy_peers"];

/// States what Prometheus finds. The component `metrics` is applied.
pub(super) fn prove(world: &mut World) -> Result<()> {
    world.claim(
        "a stock Prometheus with deploy/monitoring/prometheus-kubernetes.yaml scrapes the proxy and \
         the redirector of every cloud node, and every agent through its tunnel",
        |world| {
            let mut objects = account();
            objects.push(files()?);
            objects.push(prometheus::pod(NAME, NAME, MASTER));
            world.apply(NAME, &objects)?;
            let prometheus = Prometheus::started(world, MASTER, NAME)?;
            wait::until("every target is up", DEADLINE, || all_up(world, &prometheus))
        },
    )?;
    world.claim(
        "it has loaded all alerts; it answers each query of the dashboards, and no node is missing \
         in the list of nodes",
        |world| {
            let prometheus = Prometheus::started(world, MASTER, NAME)?;
            wait::until("the alerts are evaluated", DEADLINE, || {
                alerts_are_loaded(&prometheus)
            })?;
            wait::until("the dashboards", DEADLINE, || dashboards(&prometheus))
        },
    )?;
    world
        .shop(&["delete", "pod", NAME, "--wait=false"])
        .map(drop)
}

/// The account of the pod, with the right to discover Culvert's pods.
fn account() -> Vec<Value> {
    let api = "rbac.authorization.k8s.io";
    let subject = json!({"kind": "ServiceAccount", "name": NAME, "namespace": SHOP});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": SHOP}}),
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": {"name": NAME, "namespace": CULVERT},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
        }),
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": {"name": NAME, "namespace": CULVERT},
            "roleRef": {"apiGroup": api, "kind": "Role", "name": NAME}, "subjects": [subject]
        }),
    ]
}

/// The files as they are shipped, at the pace of a test.
fn files() -> Result<Value> {
    let pace = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n";
    // Two nodes of the cluster share an address, so agents are scraped by the names of their nodes.
    let config = monitoring::read("prometheus-kubernetes.yaml")?;
    let by_name = "# - {source_labels: [job, node], regex: culvert-agent;(.+)";
    ensure!(config.contains(by_name), "no {by_name} in {config}");
    let config = pace.to_owned() + &config.replace(by_name, by_name.trim_start_matches("# "));
    let files = json!({"prometheus.yml": config, "rules.yaml": monitoring::read("rules.yaml")?});
    Ok(prometheus::settings(NAME, &files))
}

fn all_up(world: &World, prometheus: &Prometheus<'_>) -> Result<()> {
    let data = prometheus.ask("/api/v1/targets?state=active")?;
    let targets = monitoring::list(&data["activeTargets"]);
    let clouds = &world.clouds[..];
    for (program, nodes) in [
        ("culvert-proxy", clouds),
        ("culvert-redirector", clouds),
        ("culvert-agent", &EDGES[..]),
    ] {
        for node in nodes {
            let found = targets.iter().find(|target| {
                target["labels"]["job"] == program && target["labels"]["node"] == **node
            });
            let found = found.with_context(|| format!("no {program} of {node}: {targets:?}"))?;
            let said = &found["lastError"];
            ensure!(found["health"] == "up", "{program} of {node}: {said}");
        }
    }
    Ok(())
}

fn alerts_are_loaded(prometheus: &Prometheus<'_>) -> Result<()> {
    let data = prometheus.ask("/api/v1/rules")?;
    let rules = monitoring::list(&data["groups"][0]["rules"]);
    let count = monitoring::read("rules.yaml")?.matches("- alert: ").count();
    ensure!(rules.len() == count, "{} of {count} alerts", rules.len());
    for rule in rules {
        // Not known yet, or wrong.
        ensure!(rule["health"] == "ok", "{rule}");
    }
    Ok(())
}

fn dashboards(prometheus: &Prometheus<'_>) -> Result<()> {
    let mut asked = 0;
    for query in monitoring::queries()? {
        let expr = query.of_node(EDGES[0]);
        let data = prometheus.ask(&path_of(&expr))?;
        let may_be_absent = ABSENT.iter().any(|part| expr.contains(part));
        let has_data = !monitoring::list(&data["result"]).is_empty();
        ensure!(
            has_data || may_be_absent,
            "{}: no data: {expr}",
            query.title
        );
        asked += usize::from(CLUSTER_METRICS.contains(&expr.as_str()));
    }
    ensure!(asked == CLUSTER_METRICS.len(), "a panel is gone");
    for path in monitoring::paths_of_variables()? {
        let values = prometheus.ask(&path)?;
        ensure!(values == json!(EDGES), "{path}: {values}");
    }
    Ok(())
}
