//! Pods resolve names of edge nodes by the cluster's CoreDNS, in each way of docs/dns.md.

use anyhow::{Context, Result, ensure};
use culvert_lab::page;
use serde_json::{Value, json};

use crate::cluster::{CLOUDS, EDGES};
use crate::coredns::{self, UPSTREAM, UPSTREAM_ANSWER};
use crate::images::CURL;
use crate::world::{SHOP, World};

/// The zone of edge nodes' names.
const ZONE: &str = "edge.internal";
/// What pods ask for, with the status of the answer. The certificates of kubelets have their nodes'
/// bare names.
const PAGES: [(&str, u16); 4] = [
    ("https://edge-1:10250/metrics", 401),
    ("https://edge-2:10250/metrics", 401),
    ("http://edge-3.edge.internal:10250/", 400),
    ("http://foreign.example:10250/", 400),
];
/// The same, of the cluster itself.
const CLUSTER_PAGE: (&str, u16) = ("https://kubernetes.default.svc/readyz", 200);

/// Proves it, and leaves CoreDNS as it answers the most names.
pub(super) fn prove(world: &mut World) -> Result<()> {
    world.claim(
        "with the documented block for the zone in CoreDNS, a pod of each cloud node with the zone \
         as a search domain reaches edge nodes by name, and all others as before",
        |world| {
            let zone = documented("edge.internal:53 {")? + &coredns::usual();
            coredns::configure(world, &zone)?;
            everywhere(world, "zone", &json!({"searches": [ZONE]}))
        },
    )?;
    world.claim(
        "with `failover` in CoreDNS, every pod does by bare names",
        |world| {
            with_failover(world)?;
            everywhere(world, "failover", &json!({}))
        },
    )
}

/// Lets CoreDNS ask the redirectors first.
pub(super) fn with_failover(world: &World) -> Result<()> {
    coredns::configure(world, &documented("failover REFUSED")?)
}

/// Lets CoreDNS read the ConfigMap of hosts, and ask no redirector.
pub(super) fn with_hosts(world: &World) -> Result<()> {
    let block = documented("hosts /etc/edge/tunnel-nodes")?;
    let (_, plugin) = block.split_once("    hosts").context("no plugin")?;
    let (plugin, _) = plugin.split_once("forward").context("no `forward`")?;
    // The key of culvert-hosts.
    let plugin = plugin.replace("tunnel-nodes", "hosts");
    let corefile = coredns::usual().replacen("forward", &format!("hosts{plugin}forward"), 1);
    coredns::configure(world, &corefile)
}

/// The block of docs/dns.md that contains these words, with the addresses of this cluster.
fn documented(words: &str) -> Result<String> {
    let page = page::read("dns.md")?;
    let block = page::block_with(&page, words)?.to_owned() + "\n";
    Ok(block
        .replace("10.0.0.53", UPSTREAM)
        .replace("10.0.0.1", "203.0.113.1")
        .replace("10.0.0.2", "203.0.113.9"))
}

/// Lets a pod of each cloud node ask for all pages.
fn everywhere(world: &World, way: &str, dns: &Value) -> Result<()> {
    let mut pages = PAGES.to_vec();
    if coredns::knows_the_cluster(world) {
        pages.push(CLUSTER_PAGE);
    }
    for host in CLOUDS {
        let name = format!("dns-{way}-{host}");
        // That of a first try.
        world.shop(&["delete", "pod", "--ignore-not-found", &name])?;
        world.apply(&name, &[asker(&name, host, dns, &pages)])?;
    }
    for host in CLOUDS {
        let name = format!("dns-{way}-{host}");
        world.wait_for_phase(&name, "Succeeded")?;
        let said = world.shop(&["logs", &name])?;
        for (url, status) in &pages {
            let address = address_of(url);
            let found = said.lines().find(|line| line.ends_with(url));
            let line = found.with_context(|| format!("{name} says nothing of {url}: {said}"))?;
            ensure!(
                line.starts_with(address) && line.contains(&format!(" {status} ")),
                "{name}: {line}"
            );
        }
    }
    nothing_asked_upstream(world)
}

/// How the address begins that the host of a page has.
fn address_of(url: &str) -> &'static str {
    if url.contains("foreign") {
        UPSTREAM_ANSWER
    } else if url.contains("kubernetes") {
        "10.96.0.1"
    } else {
        "198.18."
    }
}

/// Fails if the upstream server was asked for a name of an edge node.
fn nothing_asked_upstream(world: &World) -> Result<()> {
    let upstream = world.upstream.as_ref().context("it runs")?;
    for asked in upstream.said().lines() {
        let name = asked.trim_start_matches("asked ");
        ensure!(
            !name.ends_with(ZONE) && !EDGES.contains(&name),
            "the upstream server was {asked}"
        );
    }
    Ok(())
}

fn asker(name: &str, host: &str, dns: &Value, pages: &[(&str, u16)]) -> Value {
    let mut args = vec![
        "--silent",
        "--show-error",
        "--cacert",
        "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
        "--max-time",
        "20",
        "--write-out",
        "%{remote_ip} %{http_code} %{url_effective}\n",
    ];
    for (url, _) in pages {
        args.extend(["--output", "/dev/null", url]);
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP},
        "spec": {
            "nodeName": host, "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}], "dnsConfig": dns,
            "containers": [{"name": "curl", "image": CURL, "imagePullPolicy": "Never", "args": args}]
        }
    })
}
