//! The link is cut, much happens meanwhile, and it comes back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait;
use serde_json::json;

use super::containers::{Container, running};
use super::node::{self, CONTAINERD, HUB, KUBE_PROXY, KUBELET, Node};
use super::pods::{APP, CONFIG, CREATED, DELETED, MAIN, has_volumes, pod};
use super::workload::{ADDED, Workload};
use super::{
    FOLLOWED, NODE, NOTICED, STARTED, by_hub, kubelet_is_healthy, ready, renewal, says, serves,
};
use crate::world::{Cuts, World};
use crate::{logs, rbac};

/// The first version whose audit log names the certificate of a request.
const NAMES_CREDENTIALS: u32 = 32;
/// Each of two goes before the other in one of them.
const ORDERS: [[&str; 4]; 6] = [
    [KUBELET, HUB, CONTAINERD, KUBE_PROXY],
    [KUBELET, CONTAINERD, KUBE_PROXY, HUB],
    [HUB, KUBELET, KUBE_PROXY, CONTAINERD],
    [HUB, CONTAINERD, KUBELET, KUBE_PROXY],
    [CONTAINERD, KUBE_PROXY, KUBELET, HUB],
    [KUBE_PROXY, CONTAINERD, HUB, KUBELET],
];

pub(super) fn cut(world: &mut World, node: &Node, workload: &Workload) -> Result<()> {
    let pods = by_hub(world, node)?;
    is_noticed(world)?;
    let lasts = match world.cuts {
        Cuts::Short => Duration::from_secs(30),
        Cuts::Long => Duration::from_secs(600),
    };
    world.claim_once(
        &format!(
            "the cut lasts for {} s: all pods run on, and a container that is killed is restarted \
             with its volumes; the Node is honestly not ready",
            lasts.as_secs()
        ),
        |world| {
            let before = running(world, APP, MAIN)?;
            let all = workload.running(world)?;
            wait::throughout("the containers", lasts, || {
                all.values().chain([&before]).try_for_each(Container::check)
            })?;
            kill_container(&before)?;
            wait::until("a new container", STARTED, || {
                let now = running(world, APP, MAIN)?;
                ensure!(now != before, "it is still the old one");
                has_volumes(&now)
            })?;
            workload.same(world, &all)?;
            wait::until("not ready", NOTICED, || ready(world, "Unknown"))
        },
    )?;
    world.claim(
        "kubectl as root, by the hub, lists the node's pods as it did with a link",
        |world| {
            let now = by_hub(world, node)?;
            ensure!(now == pods, "now:\n{now}\nbefore:\n{pods}");
            Ok(())
        },
    )
}

fn is_noticed(world: &mut World) -> Result<()> {
    world.claim_once("the link is cut: the hub notices", |world| {
        node::cut(world)?;
        wait::until("the link is down", NOTICED, || says(world, "link: down"))?;
        let page = "http://127.0.0.1:7439/debug/servers";
        let servers = world.cluster.on(NODE, &["curl", "-sS", "--fail", page])?;
        ensure!(servers.contains(r#""link":"down""#), "{servers}");
        Ok(())
    })
}

pub(super) fn kill_each(world: &mut World, node: &Node, workload: &Workload) -> Result<()> {
    world.claim_once(
        "kill -9 of kubelet, hub, containerd and kube-proxy in six orders, while the link is cut: \
         each is healthy again, and the same containers run",
        |world| {
            let before = running(world, APP, MAIN)?;
            let all = workload.running(world)?;
            for order in ORDERS {
                for program in order {
                    node.kill(world, program)?;
                    node.start(world, program)?;
                }
                wait::until(&format!("after {order:?}"), STARTED, || {
                    node.start_missing(world)?;
                    kubelet_is_healthy(world)?;
                    says(world, "link: down")?;
                    let now = running(world, APP, MAIN)?;
                    ensure!(now == before, "{now:?} instead of {before:?}");
                    has_volumes(&now)?;
                    workload.same(world, &all)
                })?;
            }
            Ok(())
        },
    )
}

/// What administrators do meanwhile.
pub(super) fn change_meanwhile(world: &mut World, workload: &Workload) -> Result<()> {
    world.claim_once(
        "the link is cut: a static pod that is added to kubelet's folder runs",
        |world| {
            workload.add_static(ADDED)?;
            wait::until("the static pod", STARTED, || {
                workload.static_runs(world, ADDED)
            })
        },
    )?;
    let color = json!({"data": {"color": "red"}}).to_string();
    world.shop(&["patch", "configmap", APP, "--patch", &color])?;
    world.shop(&["delete", "pod", DELETED, "--wait=false"])?;
    world.apply("hub-created", &[pod(CREATED)])
}

/// The clock of the hub is that of the machine again.
pub(super) fn set_clock_right(world: &World, node: &mut Node) -> Result<()> {
    node.set_hub_clock(0);
    node.kill(world, HUB)?;
    node.start(world, HUB)?;
    wait::until("the hub", STARTED, || says(world, "link: down"))
}

/// Returns how long the API server's audit log was before.
pub(super) fn come_back(world: &mut World, workload: &Workload, renewed: &str) -> Result<usize> {
    let app = running(world, APP, MAIN)?;
    let all = workload.running(world)?;
    let logged = rbac::audit_log(world)?.len();
    world.claim_once(
        "the link is back: the Node is ready; the deleted pod ends, the created one runs, and the \
         changed ConfigMap reaches the other one; static pods have their mirror pods; every \
         container is the same",
        |world| {
            node::repair(world)?;
            wait::until("ready", STARTED, || ready(world, "True"))?;
            wait::until("kubelet serves", STARTED, || serves(world))?;
            wait::until("the changes", FOLLOWED, || {
                let left = world.shop(&["get", "pod", DELETED, "--ignore-not-found"])?;
                ensure!(left.is_empty(), "{left}");
                running(world, CREATED, MAIN)?;
                ensure!(app.read(CONFIG)? == "red", "the ConfigMap is the old one");
                workload.has_mirrors(world)
            })?;
            ensure!(running(world, APP, MAIN)? == app, "it was restarted");
            workload.same(world, &all)
        },
    )?;
    uses_renewed(world, renewed)?;
    logs::prove(world, NODE)?;
    Ok(logged)
}

fn kill_container(container: &Container) -> Result<()> {
    let pid = nix::unistd::Pid::from_raw(container.pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).context("kill the container")
}

/// The hub uses the certificate that the node got during the cut.
fn uses_renewed(world: &mut World, renewed: &str) -> Result<()> {
    if world.cluster.minor_version()? < NAMES_CREDENTIALS {
        return Ok(());
    }
    world.claim(
        "the node's certificate was renewed during the cut: the hub uses the new one",
        |world| {
            wait::until("a request with it", FOLLOWED, || {
                renewal::is_used(&rbac::audit_log(world)?, renewed)
            })
        },
    )
}
