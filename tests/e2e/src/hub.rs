//! The hub in front of a kubelet: the node lives on through a cut, kill -9 and a reboot. This
//! follows docs/hub.md.

mod client;
mod containers;
mod node;
mod pods;
mod service;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, wait};
use serde_json::{Value, json};

use self::containers::{Container, running};
use self::node::{CONTAINERD, HUB, KUBELET, Node};
use self::pods::{APP, CONFIG, CREATED, DELETED, MAIN, has_volumes, pod};
use self::service::Service;
use crate::cluster::MASTER;
use crate::command::Running;
use crate::world::{Cuts, HUB_NODE, World};
use crate::{exec, logs, rbac};

/// The node whose kubelet asks the hub.
const NODE: &str = HUB_NODE;
/// A cut is noticed after 18 s at worst.
const NOTICED: Duration = Duration::from_secs(40);
/// Kubelet starts in 15 s here, and starts a container again after up to 40 s.
const STARTED: Duration = Duration::from_secs(120);
/// How long a link that comes and goes is there, and is not.
const PHASE: Duration = Duration::from_secs(3);
/// Kubelet looks for changes of a ConfigMap each minute.
const FOLLOWED: Duration = Duration::from_secs(150);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    let mut node = Node::find(world)?;
    pods::start(world)?;
    let original = std::fs::read(node.kubeconfig()?)?;
    install(world, &mut node)?;
    let service = service::start(world, &mut node)?;
    logs::prove(world, NODE)?;
    exec::prove(world, NODE)?;
    let address = service::pod_address(world)?;
    let online = reboot(world, &node, "with a link")?;
    follow(world, &service, &address, "with a link")?;
    let pods = by_hub(world, &node)?;
    let seen = client::prove_online(world)?;
    cut(world, &node, &pods)?;
    client::prove_offline(world, &seen)?;
    kill_each(world, &node)?;
    change_meanwhile(world)?;
    let address = service::pod_address(world)?;
    let offline = reboot(world, &node, "while the link is cut")?;
    progress::say(&format!(
        "    the start without a link took {:.2} times as long as with one",
        offline.as_secs_f32() / online.as_secs_f32()
    ));
    follow(world, &service, &address, "without a link")?;
    client::prove_offline(world, &seen)?;
    let logged = come_back(world)?;
    flap(world, &node)?;
    service.stop(world, &mut node)?;
    stop(world, &node, logged)?;
    uninstall(world, &node, &original)
}

fn install(world: &mut World, node: &mut Node) -> Result<()> {
    let kubeconfig = node.kubeconfig()?.display().to_string();
    let flag = ["--kubelet-kubeconfig", &kubeconfig];
    node.add_hub(world);
    let node = &*node;
    world.claim_once(
        "culvert-hub check says what install would change; after install, kubelet asks nobody but \
         the hub, the node would survive a reboot, and no container was restarted",
        |world| {
            let before = running(world, APP, MAIN)?;
            let said = hub(world, &[&["check"], &flag[..]].concat())?;
            ensure!(said.contains("install would"), "{said}");
            hub(world, &[&["install"], &flag[..]].concat())?;
            node.start(world, HUB)?;
            node.kill(world, KUBELET)?;
            node.start(world, KUBELET)?;
            wait::until("the node would survive a reboot", STARTED, || {
                survives(world)
            })?;
            wait::until("kubelet serves", STARTED, || serves(world))?;
            asks_only_the_hub(world, KUBELET)?;
            ensure!(running(world, APP, MAIN)? == before, "it was restarted");
            Ok(())
        },
    )
}

/// Starts the node from nothing; returns how long it takes until the pod runs with its volumes.
fn reboot(world: &mut World, node: &Node, when: &str) -> Result<Duration> {
    let started = world.claim_once(
        &format!("reboot {when}: the pod runs again, with its Secret, ConfigMap and token"),
        |world| {
            node.power_off(world)?;
            let started = Instant::now();
            wait::until("the pod", STARTED, || {
                node.start_missing(world)?;
                has_volumes(&running(world, APP, MAIN)?)
            })?;
            Ok(started.elapsed())
        },
    )?;
    Ok(started)
}

fn cut(world: &mut World, node: &Node, pods: &str) -> Result<()> {
    let lasts = match world.cuts {
        Cuts::Short => Duration::from_secs(30),
        Cuts::Long => Duration::from_secs(600),
    };
    world.claim_once("the link is cut: the hub notices", |world| {
        node::cut(world)?;
        wait::until("the link is down", NOTICED, || says(world, "link: down"))?;
        let page = "http://127.0.0.1:7439/debug/servers";
        let servers = world.cluster.on(NODE, &["curl", "-sS", "--fail", page])?;
        ensure!(servers.contains(r#""link":"down""#), "{servers}");
        Ok(())
    })?;
    world.claim_once(
        &format!(
            "the cut lasts for {} s: the pod runs on, and a container that is killed is restarted \
             with its volumes; the Node is honestly not ready",
            lasts.as_secs()
        ),
        |world| {
            let before = running(world, APP, MAIN)?;
            wait::throughout("the container", lasts, || before.check())?;
            kill_container(&before)?;
            wait::until("a new container", STARTED, || {
                let now = running(world, APP, MAIN)?;
                ensure!(now != before, "it is still the old one");
                has_volumes(&now)
            })?;
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

fn kill_each(world: &mut World, node: &Node) -> Result<()> {
    const ORDERS: [[&str; 3]; 6] = [
        [KUBELET, HUB, CONTAINERD],
        [KUBELET, CONTAINERD, HUB],
        [HUB, KUBELET, CONTAINERD],
        [HUB, CONTAINERD, KUBELET],
        [CONTAINERD, KUBELET, HUB],
        [CONTAINERD, HUB, KUBELET],
    ];
    world.claim_once(
        "kill -9 of kubelet, hub and containerd in every order, while the link is cut: each is \
         healthy again, and the same container runs",
        |world| {
            let before = running(world, APP, MAIN)?;
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
                    has_volumes(&now)
                })?;
            }
            Ok(())
        },
    )
}

fn follow(world: &mut World, service: &Service, before: &str, when: &str) -> Result<()> {
    world.claim(
        &format!(
            "{when}: the pod has another address than before the reboot, and the service leads to it"
        ),
        |world| {
            let now = service::pod_address(world)?;
            ensure!(now != before, "it has {now} again");
            wait::until("the service answers", NOTICED, || service.answers(world))
        },
    )
}

/// What administrators do meanwhile.
fn change_meanwhile(world: &World) -> Result<()> {
    let color = json!({"data": {"color": "red"}}).to_string();
    world.shop(&["patch", "configmap", APP, "--patch", &color])?;
    world.shop(&["delete", "pod", DELETED, "--wait=false"])?;
    world.apply("hub-created", &[pod(CREATED)])
}

/// Returns how long the API server's audit log was before.
fn come_back(world: &mut World) -> Result<usize> {
    let app = running(world, APP, MAIN)?;
    let logged = rbac::audit_log(world)?.len();
    world.claim_once(
        "the link is back: the Node is ready; the deleted pod ends, the created one runs, and the \
         changed ConfigMap reaches the other one, whose container is the same",
        |world| {
            node::mend(world)?;
            wait::until("ready", STARTED, || ready(world, "True"))?;
            wait::until("kubelet serves", STARTED, || serves(world))?;
            wait::until("the changes", FOLLOWED, || {
                let left = world.shop(&["get", "pod", DELETED, "--ignore-not-found"])?;
                ensure!(left.is_empty(), "{left}");
                running(world, CREATED, MAIN)?;
                ensure!(app.read(CONFIG)? == "red", "the ConfigMap is the old one");
                Ok(())
            })?;
            ensure!(running(world, APP, MAIN)? == app, "it was restarted");
            Ok(())
        },
    )?;
    logs::prove(world, NODE)?;
    Ok(logged)
}

fn flap(world: &mut World, node: &Node) -> Result<()> {
    let lasts = match world.cuts {
        Cuts::Short => Duration::from_secs(45),
        Cuts::Long => Duration::from_secs(300),
    };
    let kubectl = kubectl(world, node)?;
    world.claim_once(
        &format!(
            "the link comes and goes every 3 s for {} s: a watch by the hub does not end, it tells \
             a change after that, and the hub has no more open files than before",
            lasts.as_secs()
        ),
        |world| {
            let mut watch = world.cluster.enter(NODE, &kubectl[0]);
            let selected = format!("spec.nodeName={NODE}");
            watch.args(&kubectl[1..]);
            watch.args([
                "get",
                "pods",
                "--all-namespaces",
                "--watch",
                "--output",
                "name",
            ]);
            watch.args(["--field-selector", &selected]);
            let mut watch = Running::start(world.folder(), "hub-watch", &mut watch)?;
            watch.wait_for(APP, NOTICED)?;
            let before = open_files(world)?;
            let begun = Instant::now();
            while begun.elapsed() < lasts {
                node::cut(world)?;
                wait::throughout("the watch", PHASE, || watch.check())?;
                node::mend(world)?;
                wait::throughout("the watch", PHASE, || watch.check())?;
            }
            wait::until("the link is up", NOTICED, || says(world, "link: up"))?;
            let told = watch.said().matches(CREATED).count();
            world.shop(&["label", "pod", CREATED, "flapped=yes"])?;
            watch.wait_until("the label", NOTICED, |said| {
                ensure!(said.matches(CREATED).count() > told, "not yet");
                Ok(())
            })?;
            wait::until("files are closed", NOTICED, || {
                let now = open_files(world)?;
                ensure!(now <= before, "{now} files, {before} before");
                Ok(())
            })
        },
    )
}

/// Stops kubelet and the hub: kube-apiserver logs a watch when it ends.
fn stop(world: &mut World, node: &Node, logged: usize) -> Result<()> {
    world.claim_once(
        "since the link was back, the API server's audit log has watches of kubelet's for nodes, \
         pods and services, and no list of them",
        |world| {
            node.kill(world, KUBELET)?;
            node.kill(world, HUB)?;
            wait::until("the watches", NOTICED, || {
                let log = rbac::audit_log(world)?.split_off(logged);
                ["nodes", "pods", "services"]
                    .iter()
                    .try_for_each(|resource| {
                        let watches = count_requests(&log, "watch", resource);
                        let lists = count_requests(&log, "list", resource);
                        ensure!(
                            watches > 0 && lists == 0,
                            "{resource}: {watches} watches, {lists} lists"
                        );
                        Ok(())
                    })
            })
        },
    )
}

/// How often kubelet asked the API server for this, in lines of its audit log.
fn count_requests(log: &str, verb: &str, resource: &str) -> usize {
    let mut requests = 0;
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let agent = event["userAgent"].as_str().unwrap_or_default();
        if event["user"]["username"] == format!("system:node:{NODE}")
            && agent.starts_with("kubelet/")
            && event["verb"] == verb
            && event["objectRef"]["resource"] == resource
        {
            requests += 1;
        }
    }
    requests
}

fn uninstall(world: &mut World, node: &Node, original: &[u8]) -> Result<()> {
    let kubeconfig = node.kubeconfig()?;
    world.claim_once(
        "uninstall puts kubelet's kubeconfig back byte for byte; kubelet goes on without the hub, \
         and the container is the same",
        |world| {
            let before = running(world, APP, MAIN)?;
            let path = kubeconfig.display().to_string();
            hub(world, &["uninstall", "--kubelet-kubeconfig", &path])?;
            ensure!(
                std::fs::read(&kubeconfig)? == original,
                "{path} is another one"
            );
            node.start(world, KUBELET)?;
            wait::until("kubelet is healthy", STARTED, || kubelet_is_healthy(world))?;
            wait::until("ready", STARTED, || ready(world, "True"))?;
            ensure!(running(world, APP, MAIN)? == before, "it was restarted");
            Ok(())
        },
    )?;
    let address = format!("{}/32", client::ADDRESS);
    let delete = ["ip", "address", "delete", &address, "dev", "lo"];
    world.cluster.on(NODE, &delete)?;
    world.shop(&["delete", "serviceaccount,rolebinding", APP])?;
    world
        .shop(&["delete", "pod", APP, CREATED, "--wait=false"])
        .map(drop)
}

/// The hub's command line on the node.
fn hub(world: &World, args: &[&str]) -> Result<String> {
    let line = node::hub_line(world);
    let line: Vec<&str> = line
        .iter()
        .map(String::as_str)
        .chain(args.iter().copied())
        .collect();
    world.cluster.on(NODE, &line)
}

fn says(world: &World, expected: &str) -> Result<()> {
    let said = hub(world, &["status"])?;
    ensure!(said.contains(expected), "{said}");
    Ok(())
}

fn survives(world: &World) -> Result<()> {
    says(world, "would survive a reboot now: yes")
}

/// The status of the Node's condition `Ready`.
fn ready(world: &World, expected: &str) -> Result<()> {
    let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let status = world
        .cluster
        .ask(&["get", "node", NODE, "--output", path])?;
    ensure!(status == expected, "ready: {status}");
    Ok(())
}

fn kubelet_is_healthy(world: &World) -> Result<()> {
    let line = [
        "curl",
        "-sS",
        "--fail",
        "-m",
        "5",
        "http://127.0.0.1:10248/healthz",
    ];
    world.cluster.on(NODE, &line).map(drop)
}

/// Kubelet answers what comes through the tunnel.
fn serves(world: &World) -> Result<()> {
    world.shop(&["logs", APP]).map(drop)
}

/// A program of the node has no connection to the API server's machine.
fn asks_only_the_hub(world: &World, program: &str) -> Result<()> {
    let sockets = world.cluster.on(NODE, &["ss", "-Htnp"])?;
    let address = world.cluster.variable_of(MASTER, "ADDRESS")?;
    let quoted = format!("\"{program}\"");
    let own = sockets.lines().filter(|line| line.contains(&quoted));
    let own: Vec<_> = own.collect();
    ensure!(!own.is_empty(), "{program} has no connection: {sockets}");
    let past = own
        .iter()
        .find(|line| line.contains(&format!("{address}:")));
    ensure!(past.is_none(), "{past:?}");
    Ok(())
}

/// kubectl as the node's root, by the hub. It asks for discovery each time: it keeps nothing.
fn kubectl(world: &World, node: &Node) -> Result<Vec<String>> {
    let kubectl = format!("{}/kubectl", world.cluster.variable("CK_BIN")?);
    let kubeconfig = node.kubeconfig()?.display().to_string();
    let cache = "/dev/null/nothing".to_owned();
    let flags = ["--kubeconfig", &kubeconfig, "--cache-dir", &cache].map(str::to_owned);
    Ok([&[kubectl][..], &flags].concat())
}

/// The node's pods by the hub.
fn by_hub(world: &World, node: &Node) -> Result<String> {
    let selected = format!("spec.nodeName={NODE}");
    let kubectl = kubectl(world, node)?;
    let mut line: Vec<&str> = kubectl.iter().map(String::as_str).collect();
    line.extend(["get", "pods", "--all-namespaces", "--output", "name"]);
    line.extend(["--field-selector", &selected]);
    let said = world.cluster.on(NODE, &line)?;
    ensure!(said.contains(APP), "{said}");
    Ok(said)
}

fn kill_container(container: &Container) -> Result<()> {
    let pid = nix::unistd::Pid::from_raw(container.pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).context("kill the container")
}

fn open_files(world: &World) -> Result<usize> {
    let folder = format!("/proc/{}/fd", node::pid(world, HUB)?);
    Ok(std::fs::read_dir(&folder)
        .with_context(|| format!("read {folder}"))?
        .count())
}
