//! The Service `culvert-edge`: pods of a cloud node without a redirector reach edge nodes by name,
//! through three proxies (docs/clients-without-redirector.md).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use crate::cluster::EDGES;
use crate::command::Running;
use crate::images::CURL;
use crate::world::{SHOP, World};
use crate::{dns, install, pods, ports, prometheus, uninstall};

/// The cloud node that loses its redirector.
const BARE: &str = "cloud-3";
/// This label means that the redirector is a systemd unit there, and no pod. Here nothing starts
/// it.
const NO_POD: &str = "culvert.dev/redirector";
/// Two nodes with one address.
const TWINS: [&str; 2] = ["edge-2", "edge-3"];
/// A port that the ConfigMap leaves out at first, and that every agent allows.
const ADDED: u16 = 9100;
/// Connections that find each of three proxies, unless chance has one in a hundred thousand.
const MANY: u32 = 40;
const DEADLINE: Duration = Duration::from_secs(40);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "cloud-3 loses its redirector, with all that it steered by; the Service is applied",
        |world| {
            without_redirector(world)?;
            ports::set(world, &json!({"ports": "7429,10250,10255"}))?;
            world.apply_overlay("e2e/name-service")?;
            world.wait_for_rollout("culvert-proxy")?;
            install::all_online(world)
        },
    )?;
    let address = address_of_all(world)?;
    world.claim(
        "the ConfigMap of hosts has that address for every edge node",
        |world| wait::until("the address", DEADLINE, || in_hosts(world, &address)),
    )?;
    world.claim("CoreDNS reads that ConfigMap", dns::with_hosts)?;
    world.claim(
        "a stock Prometheus there scrapes the kubelets of all edge nodes, two with one address, \
         by names that lead to the Service",
        scrape,
    )?;
    added_port(world)?;
    world.claim("each of the three proxies has taken connections", |world| {
        for node in &world.clouds {
            let taken = connections(world, node)?;
            ensure!(taken > 0.0, "the proxy of {node} has taken none");
        }
        Ok(())
    })?;
    world.claim_once(
        "without the Service everything is as before, the redirector of cloud-3 too",
        as_before,
    )
}

/// Proves what is behind the Service, and returns its address.
fn address_of_all(world: &mut World) -> Result<String> {
    world.claim(
        "its ports are those of ConfigMap culvert-ports, and all three proxies are behind it",
        |world| {
            wait::until("the Service's ports", DEADLINE, || {
                let names = entries(world)?;
                ensure!(names == ["p-10250", "p-10255", "p-7429"], "{names:?}");
                let ready = world.culvert(&[
                    "get",
                    "endpoints",
                    "culvert-edge",
                    "--output",
                    "jsonpath={.subsets[*].addresses[*].ip}",
                ])?;
                ensure!(ready.split_whitespace().count() == 3, "{ready}");
                Ok(())
            })?;
            let ask = ["get", "service", "culvert-edge", "--output"];
            world.culvert(&[&ask[..], &["jsonpath={.spec.clusterIP}"]].concat())
        },
    )
}

fn added_port(world: &mut World) -> Result<()> {
    let mut pages = Vec::new();
    for node in TWINS {
        pages.push(page(world, node)?);
    }
    world.claim(
        "a port that is added is in the Service at once, and curl in a pod there reaches both nodes",
        |world| {
            let with = format!("7429,10250,10255,{ADDED}");
            ports::set(world, &json!({ "ports": with }))?;
            wait::until("the added port", DEADLINE, || {
                let names = entries(world)?;
                ensure!(names.contains(&format!("p-{ADDED}")), "{names:?}");
                Ok(())
            })?;
            TWINS.iter().try_for_each(|node| curl(world, node))
        },
    )
}

fn without_redirector(world: &World) -> Result<()> {
    let label = format!("{NO_POD}=unit");
    world
        .cluster
        .ask(&["label", "node", BARE, "--overwrite", &label])?;
    wait::until("the redirector's pod is gone", DEADLINE, || {
        let pods = world.pods("culvert-redirector")?;
        ensure!(!pods.contains_key(BARE), "{pods:?}");
        Ok(())
    })?;
    let program = workspace::image_program("culvert-redirector");
    let program = program.display().to_string();
    wait::until("nothing is left on cloud-3", DEADLINE, || {
        world.cluster.on(BARE, &[&program, "uninstall"])?;
        let left = uninstall::left(world, BARE)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// The names of the Service's entries, sorted.
fn entries(world: &World) -> Result<Vec<String>> {
    let names = world.culvert(&[
        "get",
        "service",
        "culvert-edge",
        "--output",
        "jsonpath={.spec.ports[*].name}",
    ])?;
    let mut names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    names.sort_unstable();
    Ok(names)
}

fn in_hosts(world: &World, address: &str) -> Result<()> {
    let hosts = world.cluster.ask(&[
        "--namespace",
        "kube-system",
        "get",
        "configmap",
        "culvert-hosts",
        "--output",
        "jsonpath={.data.hosts}",
    ])?;
    for node in EDGES {
        let line = format!("{address}\t{node} # culvert");
        ensure!(hosts.lines().any(|found| found == line), "{hosts}");
    }
    Ok(())
}

/// Runs Prometheus in a pod until it has each node's own metrics.
fn scrape(world: &World) -> Result<()> {
    const POD: &str = "names-prometheus";
    let targets = EDGES.map(|node| format!("'{node}:10250'")).join(", ");
    let config = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- job_name: \
         kubelets\n  scheme: https\n  metrics_path: /metrics/cadvisor\n  authorization: \
         {{credentials_file: /var/run/secrets/kubernetes.io/serviceaccount/token}}\n  tls_config: \
         {{insecure_skip_verify: true}}\n  static_configs:\n  - targets: [{targets}]\n"
    );
    let mut objects = pods::reader(POD, &["nodes/metrics"]);
    objects.push(prometheus::settings(
        POD,
        &json!({"prometheus.yml": config}),
    ));
    objects.push(prometheus::pod(POD, POD, BARE));
    world.apply(POD, &objects)?;
    world.wait_for_phase(POD, "Running")?;
    let pod = world.shop(&["get", "pod", POD, "--output", "jsonpath={.status.podIP}"])?;
    wait::until("each node reports its own pods", DEADLINE, || {
        for node in EDGES {
            let query = format!(
                "http://{pod}:9090/api/v1/query?query=container_memory_working_set_bytes%7Binstance%3D%22{node}:10250%22%2Cpod%3D%22{}%22%7D",
                pods::name(node)
            );
            let found = world
                .cluster
                .on(BARE, &["curl", "--silent", "--max-time", "5", &query])?;
            ensure!(found.contains("\"value\""), "{node}: {found:.300}");
        }
        Ok(())
    })
}

/// A page of HTTP on an edge node that has the node's name.
fn page(world: &World, node: &str) -> Result<Running> {
    let folder = world.file(&format!("page-{node}"));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("page"), format!("page of {node}\n"))?;
    let mut server = world.cluster.enter(node, "python3");
    server
        .args(["-u", "-m", "http.server", &ADDED.to_string(), "--directory"])
        .arg(&folder);
    let mut server = Running::start(world.folder(), &format!("page-{node}"), &mut server)?;
    server.wait_for("Serving HTTP", DEADLINE)?;
    Ok(server)
}

fn curl_pod(name: &str, args: &[String]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP},
        "spec": {
            "nodeName": BARE, "restartPolicy": "OnFailure", "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "curl", "image": CURL, "imagePullPolicy": "Never", "args": args}]
        }
    })
}

/// Asks an edge node for its page from a pod, by many connections.
fn curl(world: &World, node: &str) -> Result<()> {
    let pod = format!("names-curl-{node}");
    let args = [
        "--silent".to_owned(),
        "--show-error".into(),
        "--max-time".into(),
        "20".into(),
        // kube-proxy has a port of a Service a moment after the API server.
        "--retry".into(),
        "20".into(),
        "--retry-all-errors".into(),
        "--retry-delay".into(),
        "1".into(),
        "--header".into(),
        "Connection: close".into(),
        format!("http://{node}:{ADDED}/page?[1-{MANY}]"),
    ];
    world.apply(&pod, &[curl_pod(&pod, &args)])?;
    world.wait_for_phase(&pod, "Succeeded")?;
    let said = world.shop(&["logs", &pod])?;
    let expected = format!("page of {node}\n");
    let pages = said.matches(&expected).count();
    ensure!(pages >= MANY as usize, "{pages} pages: {said}");
    Ok(())
}

/// Connections to name-routed ports that the proxy of a cloud node has served.
fn connections(world: &World, node: &str) -> Result<f64> {
    let url = "http://127.0.0.1:7409/metrics";
    let metrics = world
        .cluster
        .on(node, &["curl", "--silent", "--show-error", url])?;
    let mut connections = 0.0;
    for line in metrics.lines() {
        if line.contains("culvert_proxy_streams_total{frontend=\"name_") {
            let value = line.rsplit(' ').next().unwrap_or_default();
            connections += value.parse::<f64>().with_context(|| line.to_owned())?;
        }
    }
    Ok(connections)
}

fn as_before(world: &World) -> Result<()> {
    dns::with_failover(world)?;
    let label = format!("{NO_POD}-");
    world.cluster.ask(&["label", "node", BARE, &label])?;
    ports::set(world, &json!({"ports": null}))?;
    world.culvert(&["delete", "service", "culvert-edge"])?;
    world.apply_overlay("e2e")?;
    install::wait_for_rollouts(world)?;
    uninstall::everything_there(world)
}
