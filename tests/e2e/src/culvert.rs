//! `kubectl culvert` with the administrator's kubeconfig: it reaches the proxies by exec in their
//! pods.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;
use serde_json::Value;

use crate::cluster::{CLOUDS, MASTER};
use crate::command::finish;
use crate::world::World;

/// Each host has half a minute for its checks.
const TIME: Duration = Duration::from_secs(90);

/// Proves all of it.
pub(super) fn prove(world: &mut World) -> Result<()> {
    world.claim(
        "culvert status asks the three proxies in their pods: all are ready and steer",
        |world| {
            let status = answer(world, &["status"])?;
            let proxies = array(&status, "proxies")?;
            let mut hosts = Vec::new();
            for proxy in proxies {
                ensure!(proxy["state"] == "ready", "{status:#}");
                ensure!(
                    proxy["steers"] != "-" && proxy["steers"] != "?",
                    "{status:#}"
                );
                hosts.push(proxy["host"].as_str().unwrap_or_default());
            }
            hosts.sort_unstable();
            let mut expected = CLOUDS.to_vec();
            expected.sort_unstable();
            ensure!(hosts == expected, "{status:#}");
            Ok(())
        },
    )?;
    world.claim(
        "culvert why edge-1:10250 comes through from the three of them, hop by hop",
        |world| {
            let why = answer(world, &["why", "edge-1:10250"])?;
            ensure!(why["reachable"] == true, "{why:#}");
            for from in array(&why, "from")? {
                for hop in ["kernel", "dial"] {
                    let mut hops = array(from, "hops")?.iter();
                    ensure!(hops.any(|found| found["hop"] == hop), "no {hop}: {why:#}");
                }
            }
            Ok(())
        },
    )?;
    world.claim("culvert check goes through all three hosts", |world| {
        let checks = answer(world, &["check"])?;
        let hosts = array(&checks, "hosts")?;
        ensure!(hosts.len() == CLOUDS.len(), "{checks:#}");
        for host in hosts {
            ensure!(host["error"].is_null(), "{checks:#}");
        }
        Ok(())
    })
}

/// The hosts whose proxies have tunnels of each of these nodes.
///
/// # Errors
/// There is no such node.
pub(super) fn holders(world: &World, nodes: &[&str]) -> Result<Vec<Vec<&'static str>>> {
    let answer = answer(world, &["nodes"])?;
    let listed = array(&answer, "nodes")?;
    let mut holders = Vec::new();
    for node in nodes {
        let found = listed.iter().find(|listed| listed["node"] == **node);
        let found = found.with_context(|| format!("no node {node}: {answer:#}"))?;
        // The host names of this cluster are the names of its nodes.
        let hosts = array(found, "proxies")?;
        let at = |cloud: &&str| hosts.iter().any(|host| host == *cloud);
        holders.push(CLOUDS.into_iter().filter(at).collect());
    }
    Ok(holders)
}

/// All that a check has found on all hosts, a line for each.
///
/// # Errors
/// A host has not answered.
pub(super) fn found(world: &World) -> Result<String> {
    let checks = answer(world, &["check"])?;
    let mut lines = String::new();
    for host in array(&checks, "hosts")? {
        ensure!(host["error"].is_null(), "{checks:#}");
        for check in array(host, "checks")? {
            lines += &check_line(&host["host"], check);
        }
    }
    Ok(lines)
}

fn check_line(host: &Value, check: &Value) -> String {
    format!(
        "{} {} on {host}: {}\n",
        text(check, "verdict"),
        text(check, "check"),
        text(check, "found")
    )
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// What happens to a connection from every host, a line for each hop.
pub(super) fn why(world: &World, destination: &str) -> Result<String> {
    let why = answer(world, &["why", destination])?;
    let mut lines = String::new();
    for from in array(&why, "from")? {
        for hop in array(from, "hops")? {
            lines += &format!("{}: {}\n", text(hop, "hop"), text(hop, "text"));
        }
    }
    Ok(lines)
}

/// An answer in JSON, whether or not something is wrong.
pub(super) fn answer(world: &World, words: &[&str]) -> Result<Value> {
    let kubeconfig = world.cluster.variable("CK_KUBECONFIG")?.to_owned();
    let mut command = world
        .cluster
        .enter(MASTER, workspace::image_program("culvert"));
    command.args(words);
    command.args(["--output", "json", "--kubeconfig", &kubeconfig]);
    let done = finish(&mut command, TIME)?;
    serde_json::from_str(&done.out).with_context(|| format!("{words:?}: {done:?}"))
}

fn array<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    let array = value[name].as_array();
    array.with_context(|| format!("no list {name}: {value:#}"))
}
