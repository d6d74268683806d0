//! The rolling update of everything, while logs are followed and a file is downloaded.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster::EDGES;
use crate::forward::{self, Forward};
use crate::world::{Pod, World};
use crate::{install, logs, names, replaced};

/// A node whose kubelet is silent is not ready after 40 s; then pods are replaced.
const NOTICED: Duration = Duration::from_secs(180);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    names::by_name(world)?;
    let node = "edge-1";
    let digest = forward::make_file(world, node, forward::BIG)?;
    world.claim_once(
        "the redirector's rolling restart: logs -f and a download of 200 MB go on through it",
        |world| {
            let mut follower = logs::follow(world, "follow-redirector", node)?;
            let forward = Forward::open(world, "forward-redirector", node)?;
            let mut download = forward.slow_download(world, "download-redirector")?;
            restart(world, "culvert-redirector")?;
            download.check()?;
            follower.goes_on()?;
            forward::finish_download(download, &digest)?;
            follower.goes_on()
        },
    )?;
    let followed = replaced::edge_at_master(world)?;
    let silent = if followed == Some("edge-3") {
        "edge-2"
    } else {
        "edge-3"
    };
    // It takes a while until this kubelet is missed: the proxies are replaced meanwhile.
    let stopped = StoppedKubelet::of(world, silent)?;
    replaced::prove(world, node, followed)?;
    install::wait_for_tunnels(world)?;
    logs::prove(world, node)?;
    agents_beside(world, silent, stopped)?;
    logs::prove(world, node)
}

/// Replaces the agents while one kubelet is stopped, then that one's.
fn agents_beside(world: &mut World, silent: &str, stopped: StoppedKubelet) -> Result<()> {
    world.claim_once(
        &format!(
            "the agents' rolling update while the kubelet of {silent} is stopped: those of the \
             other nodes are replaced all the same"
        ),
        |world| {
            let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
            wait::until("the node is not ready", NOTICED, || {
                let now = world
                    .cluster
                    .ask(&["get", "node", silent, "--output", ready])?;
                ensure!(now != "True", "it is");
                Ok(())
            })?;
            let before = agents(world)?;
            world.start_rollout("culvert-agent")?;
            wait::until("the others have new agents", NOTICED, || {
                let now = agents(world)?;
                for node in EDGES {
                    if node == silent {
                        continue;
                    }
                    ensure!(
                        now.contains_key(node) && now.get(node) != before.get(node),
                        "{node}: {now:?}, before {before:?}"
                    );
                }
                Ok(())
            })
        },
    )?;
    world.claim_once(
        "the kubelet goes on: its agent is replaced too, and all nodes are back",
        |world| {
            drop(stopped);
            world.wait_for_rollout("culvert-agent")?;
            install::all_online(world)
        },
    )
}

/// The ready agents' pods by their nodes.
fn agents(world: &World) -> Result<BTreeMap<String, Pod>> {
    let mut pods = world.pods("culvert-agent")?;
    pods.retain(|_, pod| pod.is_ready);
    Ok(pods)
}

/// A kubelet that does nothing until this is dropped.
struct StoppedKubelet(Vec<Pid>);

impl StoppedKubelet {
    /// Finds it in the node's own cgroup: the nodes share one machine.
    fn of(world: &World, node: &str) -> Result<Self> {
        let file = Path::new(world.cluster.variable_of(node, "CGROUP")?).join("cgroup.procs");
        let pids =
            std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let mut stopped = Self(Vec::new());
        for pid in pids.lines() {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name == "kubelet\n" {
                stopped.0.push(Pid::from_raw(pid.parse()?));
            }
        }
        ensure!(!stopped.0.is_empty(), "{node} has no kubelet");
        stopped.signal(Signal::SIGSTOP)?;
        Ok(stopped)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let mut pids = self.0.iter();
        pids.try_for_each(|pid| kill(*pid, signal).with_context(|| format!("send {signal}")))
    }
}

impl Drop for StoppedKubelet {
    fn drop(&mut self) {
        if let Err(error) = self.signal(Signal::SIGCONT) {
            eprintln!("error: {error:#}");
        }
    }
}

fn restart(world: &World, daemon_set: &str) -> Result<()> {
    world.start_rollout(daemon_set)?;
    world.wait_for_rollout(daemon_set)
}
