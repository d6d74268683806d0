//! The hub in front of a kubelet: the node lives on through a cut, kill -9 and a reboot. This
//! follows docs/hub.md.

mod claimed;
mod client;
mod containers;
mod disk;
mod dns;
mod elsewhere;
mod flannel;
mod node;
mod outage;
mod pods;
mod renewal;
mod requests;
mod service;
mod twin;
mod volumes;
mod workload;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, wait};

use self::containers::running;
use self::node::{HUB, KUBELET, Node};
use self::pods::{APP, CREATED, MAIN, has_volumes, pod};
use self::renewal::Files;
use self::service::Service;
use self::workload::{ALL_RUN, Workload};
use crate::cluster::MASTER;
use crate::command::Running;
use crate::world::{Cuts, HUB_NODE, World};
use crate::{exec, logs};

/// The node whose kubelet asks the hub.
const NODE: &str = HUB_NODE;
/// A cut is noticed after 18 s at worst; a machine may be busy.
const NOTICED: Duration = Duration::from_mins(2);
/// Kubelet starts in 15 s here, and starts a container again after up to 40 s.
const STARTED: Duration = Duration::from_mins(6);
/// How long a link that comes and goes is there, and is not.
const PHASE: Duration = Duration::from_secs(3);
/// Kubelet looks for changes of a ConfigMap each minute.
const FOLLOWED: Duration = Duration::from_mins(6);
/// A day more than the greatest age of tokens of pods, and of what is not asked for.
const TEN_DAYS: i64 = 10 * 24 * 3600;

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    let mut node = Node::find(world)?;
    let original = std::fs::read(node.kubeconfig()?)?;
    let files = Files::of(world, &node.kubeconfig()?)?;
    disk::make(world)?;
    pods::start(world)?;
    let mut workload = workload::start(world, &mut node)?;
    install(world, &mut node, &workload)?;
    workload.add_claimed(world)?;
    let service = service::start(world, &mut node)?;
    logs::prove(world, NODE)?;
    exec::prove(world, NODE)?;
    let address = service::pod_address(world)?;
    let online = reboot(world, &node, &workload, "with a link")?;
    follow(world, &service, &address, "with a link")?;
    let copy = elsewhere::copy(world)?;
    let seen = client::prove_online(world)?;
    outage::cut(world, &node, &workload)?;
    let renewed = files.renew(world)?;
    client::prove_offline(world, &seen)?;
    outage::kill_each(world, &node, &workload)?;
    outage::change_meanwhile(world, &workload)?;
    let offline = ten_days_later(world, &mut node, &workload, &service)?;
    progress::say(&format!(
        "    the start without a link took {:.2} times as long as with one",
        offline.as_secs_f32() / online.as_secs_f32()
    ));
    client::prove_offline(world, &seen)?;
    outage::set_clock_right(world, &mut node)?;
    let logged = outage::come_back(world, &workload, &renewed)?;
    flap(world, &node)?;
    service.stop(world, &mut node)?;
    requests::stop(world, &node, logged)?;
    elsewhere::run(world, &node, &workload, copy, &files)?;
    uninstall(world, &node, &original, workload)
}

/// Starts the node from nothing without a link, when tokens of pods have long expired.
fn ten_days_later(
    world: &mut World,
    node: &mut Node,
    workload: &Workload,
    service: &Service,
) -> Result<Duration> {
    let address = service::pod_address(world)?;
    node.set_hub_clock(TEN_DAYS);
    let when = "while the link is cut, ten days later by the hub's clock";
    let took = reboot(world, node, workload, when)?;
    follow(world, service, &address, "without a link")?;
    Ok(took)
}

fn install(world: &mut World, node: &mut Node, workload: &Workload) -> Result<()> {
    let kubeconfig = node.kubeconfig()?.display().to_string();
    let flag = ["--kubelet-kubeconfig", &kubeconfig];
    node.add_hub(world);
    let node = &*node;
    let all = workload.prove(world)?;
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
            workload.same(world, &all)
        },
    )
}

/// Starts the node from nothing; returns how long it takes until all pods run with their volumes.
fn reboot(world: &mut World, node: &Node, workload: &Workload, when: &str) -> Result<Duration> {
    let started = world.claim_once(
        &format!(
            "loss of power {when}: all pods run again, with all volumes, variables and tokens, and \
             what the hub had not flushed to its disk is lost"
        ),
        |world| {
            node.power_off(world)?;
            let started = Instant::now();
            wait::until("the pods", ALL_RUN, || {
                node.start_missing(world)?;
                has_volumes(&running(world, APP, MAIN)?)?;
                workload.running(world)
            })?;
            Ok(started.elapsed())
        },
    )?;
    Ok(started)
}

fn follow(world: &mut World, service: &Service, before: &str, when: &str) -> Result<()> {
    world.claim(
        &format!(
            "{when}: the pod has another address than before the reboot, and the service leads to it"
        ),
        |world| {
            let now = service::pod_address(world)?;
            ensure!(now != before, "it has {now} again");
            wait::until("the service answers", STARTED, || service.answers(world))
        },
    )?;
    world.claim(
        &format!(
            "{when}: CoreDNS on the node gives the address of the service, flannel writes the \
             node's subnet, and both ask the hub"
        ),
        |world| {
            for pod in [dns::POD, flannel::POD] {
                let asks = running(world, pod, MAIN)?.variable("KUBERNETES_SERVICE_HOST")?;
                ensure!(asks == client::ADDRESS, "{pod} asks {asks}");
            }
            wait::until("an answer of CoreDNS", STARTED, || {
                dns::answers(world, &service.address)
            })?;
            wait::until("flannel's file", STARTED, || flannel::has_subnet(world))
        },
    )
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
                node::repair(world)?;
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

fn uninstall(world: &mut World, node: &Node, original: &[u8], workload: Workload) -> Result<()> {
    let kubeconfig = node.kubeconfig()?;
    let authority = client::authority(world)?;
    world.claim_once(
        "uninstall puts kubelet's kubeconfig back byte for byte; kubelet goes on without the hub, \
         and the containers are the same",
        |world| {
            node.start(world, HUB)?;
            wait::until("the hub", STARTED, || says(world, "link: up"))?;
            let before = running(world, APP, MAIN)?;
            let all = workload.running(world)?;
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
            workload.same(world, &all)
        },
    )?;
    client::prove_uninstalled(world, &authority)?;
    lead_new_pods_away(world)?;
    node.kill(world, HUB)?;
    let address = format!("{}/32", client::ADDRESS);
    let delete = ["ip", "address", "delete", &address, "dev", "lo"];
    world.cluster.on(NODE, &delete)?;
    world.shop(&["delete", "serviceaccount,rolebinding", APP])?;
    world.shop(&["delete", "pod", APP, CREATED, "--wait=false"])?;
    workload.stop(world)
}

fn lead_new_pods_away(world: &mut World) -> Result<()> {
    world.claim_once(
        "after an uninstall, a pod that is made again asks the API server itself",
        |world| {
            world.shop_within(STARTED, &["delete", "pod", CREATED])?;
            world.apply("hub-created", &[pod(CREATED)])?;
            world.wait_for_phase(CREATED, "Running")?;
            let host = running(world, CREATED, MAIN)?.variable("KUBERNETES_SERVICE_HOST")?;
            ensure!(host != client::ADDRESS, "the new pod is led to the hub");
            Ok(())
        },
    )
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

fn open_files(world: &World) -> Result<usize> {
    let folder = format!("/proc/{}/fd", node::pid(world, HUB)?);
    Ok(std::fs::read_dir(&folder)
        .with_context(|| format!("read {folder}"))?
        .count())
}
