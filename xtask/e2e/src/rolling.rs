//! Rolling restarts of the DaemonSets while logs are followed and a file is downloaded.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait;
use serde_json::Value;

use crate::forward::{self, Forward};
use crate::logs;
use crate::world::{CULVERT, World};

/// Seconds that a download takes which must outlast the restart of the redirector: several times
/// what one takes on two busy cores.
const LONG_DOWNLOAD: usize = 100;
/// A node whose kubelet is silent is not ready after 40 s; then pods are replaced.
const NOTICED: Duration = Duration::from_secs(180);
/// Shorter than the time that a proxy lets streams end in.
const DRAINED_DOWNLOAD: usize = 15;

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    let node = "edge-1";
    let digest = forward::make_file(world, node)?;
    world.claim(
        "the redirector's rolling restart: logs -f and a download of 200 MB go on through it",
        |world| {
            let mut follower = logs::follow(world, "follow-redirector", node)?;
            let forward = Forward::open(world, "forward-redirector", node)?;
            let mut download = forward.download(world, "download-redirector", LONG_DOWNLOAD)?;
            restart(world, "culvert-redirector")?;
            download
                .check()
                .context("the download must outlast the restart")?;
            follower.goes_on()?;
            forward::finish_download(download, &digest)?;
            follower.goes_on()
        },
    )?;
    world.claim(
        "the proxy's rolling restart: a download under way ends whole while the proxy drains",
        |world| {
            let forward = Forward::open(world, "forward-proxy", node)?;
            let download = forward.download(world, "download-proxy", DRAINED_DOWNLOAD)?;
            restart(world, "culvert-proxy")?;
            forward::finish_download(download, &digest)
        },
    )?;
    super::install::wait_for_tunnels(world)?;
    super::logs::prove(world, node)?;
    world.claim("the agents' rolling restart: all nodes are back", |world| {
        restart(world, "culvert-agent")?;
        super::install::all_online(world)
    })?;
    super::logs::prove(world, node)?;
    replaced_beside_a_stopped_kubelet(world)
}

fn replaced_beside_a_stopped_kubelet(world: &mut World) -> Result<()> {
    world.claim(
        "the kubelet of edge-3 is stopped: the agents of the other nodes are replaced all the same",
        |world| {
            let stopped = StoppedKubelet::of(world, "edge-3")?;
            let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
            wait::until("the node is not ready", NOTICED, || {
                let now = world
                    .cluster
                    .ask(&["get", "node", "edge-3", "--output", ready])?;
                ensure!(now != "True", "it is");
                Ok(())
            })?;
            let before = agents(world)?;
            let restart = [
                "--namespace",
                CULVERT,
                "rollout",
                "restart",
                "daemonset/culvert-agent",
            ];
            world.cluster.ask(&restart)?;
            wait::until("the others have new agents", NOTICED, || {
                let now = agents(world)?;
                for node in ["edge-1", "edge-2"] {
                    ensure!(
                        now.contains_key(node) && now.get(node) != before.get(node),
                        "{node}: {now:?}, before {before:?}"
                    );
                }
                Ok(())
            })?;
            drop(stopped);
            world.wait_for_rollout("culvert-agent")?;
            super::install::all_online(world)
        },
    )
}

/// The ready agents' pods by their nodes.
fn agents(world: &World) -> Result<BTreeMap<String, String>> {
    let list = world.culvert(&[
        "get",
        "pods",
        "--selector",
        "app.kubernetes.io/name=culvert-agent",
        "--output",
        "json",
    ])?;
    let list: Value = serde_json::from_str(&list).context("this is not JSON")?;
    let is_ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions
            .into_iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_ready);
    Ok(pods
        .map(|pod| {
            (
                text(&pod["spec"]["nodeName"]),
                text(&pod["metadata"]["uid"]),
            )
        })
        .collect())
}

/// A kubelet that does nothing until this is dropped.
struct StoppedKubelet<'world> {
    world: &'world World,
    node: &'static str,
}

impl<'world> StoppedKubelet<'world> {
    fn of(world: &'world World, node: &'static str) -> Result<Self> {
        let stopped = Self { world, node };
        stopped.signal("STOP")?;
        Ok(stopped)
    }

    /// By the node's own cgroup: the nodes share one machine.
    fn signal(&self, signal: &str) -> Result<()> {
        let cgroup = self.world.cluster.variable(&format!(
            "CK_{}_CGROUP",
            self.node.to_uppercase().replace('-', "_")
        ))?;
        let script = "for p in $(cat \"$0/cgroup.procs\"); do [ \"$(cat /proc/$p/comm)\" != \
            kubelet ] || { kill -$1 \"$p\" && found=1; }; done; [ -n \"$found\" ]";
        self.world
            .cluster
            .on(self.node, &["sh", "-c", script, cgroup, signal])
            .map(drop)
    }
}

impl Drop for StoppedKubelet<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.signal("CONT") {
            eprintln!("error: {error:#}");
        }
    }
}

fn restart(world: &World, daemon_set: &str) -> Result<()> {
    world.cluster.ask(&[
        "--namespace",
        CULVERT,
        "rollout",
        "restart",
        &format!("daemonset/{daemon_set}"),
    ])?;
    world.wait_for_rollout(daemon_set)
}
