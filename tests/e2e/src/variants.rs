//! Variants of the manifests, all at once: agents connect to a NodePort, names are in a ConfigMap
//! of hosts, nothing is loaded into the kernel, and metrics are there for a Prometheus in a pod.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait;
use serde_json::json;

use crate::cluster::{EDGES, MASTER};
use crate::world::{PODS_TIME, World};
use crate::{install, logs, monitoring, names, uninstall};

/// Time for proxies to see a change. They check every few seconds.
const DEADLINE: Duration = Duration::from_secs(30);
/// The Service's port of a node leads to the node's own proxy, also in a cluster without kube-proxy,
/// which does the same. Other hosts cannot use the proxy's port itself.
const NODE_PORT: &str = "table ip e2e_nodeport {
    chain pre { type nat hook prerouting priority dstnat; tcp dport 30740 redirect to :7400; }
    chain guard { type filter hook input priority filter; iif != lo ct state new meta l4proto tcp ct original proto-dst 7400 drop; }
}";

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "NodePort, hosts, nftables alone and metrics are applied; every pod becomes ready",
        |world| {
            names::by_name(world)?;
            for node in &world.clouds {
                world.cluster.on(node, &["nft", NODE_PORT])?;
            }
            world.apply_overlay("e2e/variants")?;
            ["culvert-proxy", "culvert-redirector"]
                .into_iter()
                .try_for_each(|name| world.wait_for_rollout(name))
        },
    )?;
    world.claim(
        "agents are told the NodePort, and have their tunnels by it",
        |world| {
            wait::until("the addresses in ConfigMap culvert-agent", DEADLINE, || {
                let told = world.culvert(&[
                    "get",
                    "configmap",
                    "culvert-agent",
                    "--output",
                    "jsonpath={.data.proxies}",
                ])?;
                let told: BTreeSet<_> = told
                    .split([',', ' ', '\n'])
                    .filter(|one| !one.is_empty())
                    .map(str::to_owned)
                    .collect();
                ensure!(told == node_ports(world)?, "they are {told:?}");
                Ok(())
            })?;
            // New pods read it at once.
            let agents = [
                "--namespace",
                "culvert-system",
                "delete",
                "pods",
                "--selector",
                "app.kubernetes.io/name=culvert-agent",
            ];
            world.cluster.ask_within(PODS_TIME, &agents)?;
            world.wait_for_rollout("culvert-agent")?;
            install::all_online(world)
        },
    )?;
    world.claim("no connect hook is attached", |world| {
        let left = uninstall::left(world, MASTER)?;
        ensure!(
            left.iter().any(|line| line.contains("table inet culvert")),
            "there is no table: {left:?}"
        );
        ensure!(
            !left.iter().any(|line| line.contains("cgroup_inet")),
            "{left:?}"
        );
        Ok(())
    })?;
    EDGES
        .into_iter()
        .try_for_each(|node| logs::prove(world, node))?;
    world.claim(
        "ConfigMap culvert-hosts names every node, and what somebody takes away comes back",
        hosts,
    )?;
    monitoring::prove(world)?;
    world.claim(
        "without them everything is as before, connect hooks too",
        |world| {
            for node in &world.clouds {
                let open = ["nft", "flush chain ip e2e_nodeport guard"];
                world.cluster.on(node, &open)?;
            }
            world.apply_overlay("e2e")?;
            install::wait_for_rollouts(world)?;
            uninstall::everything_there(world)
        },
    )
}

/// The port of the Service at each cloud node.
fn node_ports(world: &World) -> Result<BTreeSet<String>> {
    let addresses = world.clouds.iter();
    let addresses = addresses.map(|node| world.cluster.variable_of(node, "ADDRESS"));
    addresses
        .map(|address| Ok(format!("{}:30740", address?)))
        .collect()
}

fn hosts(world: &World) -> Result<()> {
    let map = [
        "--namespace",
        "kube-system",
        "get",
        "configmap",
        "culvert-hosts",
        "--output",
        "jsonpath={.data.hosts}",
    ];
    wait::until("all nodes are in the ConfigMap of hosts", DEADLINE, || {
        all_listed(world, &world.cluster.ask(&map)?)
    })?;
    let empty = json!({"data": {"hosts": ""}}).to_string();
    world.cluster.ask(&[
        "--namespace",
        "kube-system",
        "patch",
        "configmap",
        "culvert-hosts",
        "--type",
        "merge",
        "--patch",
        &empty,
    ])?;
    wait::until("all nodes are in it again", DEADLINE, || {
        all_listed(world, &world.cluster.ask(&map)?)
    })
}

/// Fails unless all nodes are in the hosts of the ConfigMap.
fn all_listed(world: &World, hosts: &str) -> Result<()> {
    for node in [&world.clouds[..], &EDGES].concat() {
        let line = hosts
            .lines()
            .find(|line| line.ends_with(&format!("\t{node} # culvert")));
        line.with_context(|| format!("{node} is not in it:\n{hosts}"))?;
    }
    Ok(())
}
