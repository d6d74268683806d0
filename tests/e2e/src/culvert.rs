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

/// An answer in JSON, whether or not something is wrong.
fn answer(world: &World, words: &[&str]) -> Result<Value> {
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
