//! Three proxies behind one address: agents have tunnels to two of them, and every host reaches
//! every edge node.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use culvert_lab::wait;
use serde_json::Value;

use crate::cluster::{CLOUDS, EDGES};
use crate::command::Running;
use crate::world::World;
use crate::{culvert, names, pods};

/// The number of `kubectl logs`, and how many run at once.
const LOGS: usize = 300;
const AT_ONCE: usize = 6;
/// Agents that met the same proxy twice dial again, with pauses of some seconds.
const SETTLED: Duration = Duration::from_secs(120);
/// Time for a TLS handshake with a kubelet on two busy cores.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    names::by_name(world)?;
    world.claim(
        "the proxy on each cloud node has links to the two others",
        |world| {
            for node in &world.clouds {
                let what = format!("the status on {node}");
                wait::until(&what, SETTLED, || linked_to(world, node, &CLOUDS))?;
            }
            Ok(())
        },
    )?;
    let holders = world.claim(
        "the tunnels of each edge end at two of three proxies, by the one address that agents know",
        |world| wait::until("two proxies for each edge", SETTLED, || holders(world)),
    )?;
    culvert::prove(world)?;
    world.claim_once(
        &format!("{LOGS} kubectl logs of pods on all edges, all answered"),
        many_logs,
    )?;
    world.claim(
        "a cloud node whose proxy has no tunnel of an edge reaches it over one further proxy",
        |world| {
            EDGES
                .iter()
                .zip(&holders)
                .try_for_each(|(edge, holders)| over_a_peer(world, edge, holders))
        },
    )
}

/// Fails unless the proxy on `node` lists the proxies of just these hosts, each with a link.
pub(super) fn linked_to(world: &World, node: &str, hosts: &[&str]) -> Result<()> {
    // The host names of this cluster are the names of its nodes.
    let mut linked = vec![node.to_owned()];
    for peer in peers(world, node)? {
        if peer["links"].as_u64().is_some_and(|links| links > 0) {
            linked.push(peer["host"].as_str().unwrap_or_default().to_owned());
        }
    }
    let mut hosts = hosts.to_vec();
    linked.sort_unstable();
    hosts.sort_unstable();
    ensure!(linked == hosts, "{node} has links to {linked:?}");
    Ok(())
}

/// The cloud nodes at which each edge has tunnels; fails unless these are two for each.
pub(super) fn holders(world: &World) -> Result<Vec<Vec<&'static str>>> {
    let holders = culvert::holders(world, &EDGES)?;
    ensure!(
        holders.iter().all(|holders| holders.len() == 2),
        "tunnels of {EDGES:?} are at {holders:?}"
    );
    Ok(holders)
}

fn many_logs(world: &World) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(|| read_logs(world, &next)))
            .collect();
        let mut result = Ok(());
        for worker in workers {
            let ended = worker.join();
            result = result.and(ended.unwrap_or_else(|_| Err(anyhow!("a worker panicked"))));
        }
        result
    })
}

/// Reads logs of all edges in turn, up to number [`LOGS`].
fn read_logs(world: &World, next: &AtomicUsize) -> Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= LOGS {
            return Ok(());
        }
        let edge = EDGES[number % EDGES.len()];
        one_log(world, edge).with_context(|| format!("number {number}"))?;
    }
}

/// Fails unless `kubectl logs` of the pod on `edge` begins with its greeting.
pub(super) fn one_log(world: &World, edge: &str) -> Result<()> {
    let said = world.shop(&["logs", "--limit-bytes", "200", &pods::name(edge)])?;
    let greeting = format!("hello from {edge}\n");
    ensure!(said.starts_with(&greeting), "{edge} says {said:.200}");
    Ok(())
}

/// Holds a connection open from the cloud node that has no tunnel of this edge.
fn over_a_peer(world: &World, edge: &str, holders: &[&str]) -> Result<()> {
    let without = world.clouds.iter().find(|node| !holders.contains(node));
    let host = without.context("every proxy has tunnels")?;
    let mut openssl = world.cluster.enter(host, "openssl");
    openssl.args(["s_client", "-connect", &format!("{edge}:10250")]);
    let what = format!("held-{edge}");
    let mut held = Running::start(world.folder(), &what, &mut openssl)?;
    held.wait_for("SSL handshake has read", HANDSHAKE)?;
    let view = streams_to(world, host)?;
    let mut forwarded = 0.0;
    for node in holders {
        forwarded += forwarded_streams(world, node)?;
    }
    held.check()?;
    let is_carried = view
        .iter()
        .any(|(at, streams)| *streams > 0 && holders.contains(&at.as_str()));
    ensure!(
        forwarded > 0.0 && is_carried,
        "{host} has no tunnel of {edge}, streams of its links: {view:?}, forwarded: {forwarded}"
    );
    Ok(())
}

/// The other proxies that the one on a host knows.
fn peers(world: &World, host: &str) -> Result<Vec<Value>> {
    let page = page(world, host, "debug/peers")?;
    serde_json::from_str(&page).with_context(|| format!("this is no list: {page:.200}"))
}

/// The peers of the proxy on a host, with the streams in its links to them.
fn streams_to(world: &World, host: &str) -> Result<Vec<(String, u64)>> {
    let mut view = Vec::new();
    for peer in &peers(world, host)? {
        let host = peer["host"].as_str().unwrap_or_default();
        view.push((host.to_owned(), peer["streams"].as_u64().unwrap_or(0)));
    }
    Ok(view)
}

/// The streams of other proxies that go through the one on a host.
fn forwarded_streams(world: &World, host: &str) -> Result<f64> {
    let metrics = page(world, host, "metrics")?;
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix("culvert_proxy_forwarded_streams "));
    let value = value.context("there is no culvert_proxy_forwarded_streams")?;
    value.trim().parse().with_context(|| value.to_owned())
}

/// A page of the admin server of the proxy on a host.
fn page(world: &World, host: &str, path: &str) -> Result<String> {
    let url = format!("http://127.0.0.1:7409/{path}");
    let line = ["curl", "--silent", "--show-error", "--fail-with-body", &url];
    world.cluster.on(host, &line)
}
