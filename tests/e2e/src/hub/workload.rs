//! All that lives on the node besides one pod: pods with volumes of all kinds, a static pod, CoreDNS
//! and flannel, which ask the hub.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait;

use super::containers::{Container, by_pod, running};
use super::node::{KUBELET, Node};
use super::pods::MAIN;
use super::volumes::{Claimant, sleeping_pod};
use super::{NODE, claimed, dns, flannel};
use crate::world::{Cuts, World};

/// Pods with volumes: each kind once, or as many as an edge node may have.
const FEW: usize = 9;
const MANY: usize = 60;
/// For all of them to run. On two busy cores a pod starts in some seconds, one after the other.
pub(super) const ALL_RUN: Duration = Duration::from_mins(12);
/// kubectl applies some objects in a second.
const APPLIED_AT_ONCE: usize = 20;
/// The static pod of the start, and the one that is added while the link is cut.
const STATIC: &str = "hub-static";
pub(super) const ADDED: &str = "hub-static-added";

/// The containers by their pods.
pub(super) type Containers = BTreeMap<String, Container>;

/// What is to run.
pub(super) struct Workload {
    pods: Vec<Claimant>,
    /// Pods without volumes to look at.
    others: Vec<String>,
    /// Where containerd has its tasks.
    state: String,
    /// Kubelet's folder of static pods.
    manifests: PathBuf,
}

/// Starts all of it. Kubelet has the folder of static pods from its next start on.
pub(super) fn start(world: &World, node: &mut Node) -> Result<Workload> {
    let manifests = world.file("hub-manifests");
    std::fs::create_dir_all(&manifests)
        .with_context(|| format!("create {}", manifests.display()))?;
    node.add_static_pods(&manifests)?;
    let count = match world.cuts {
        Cuts::Short => FEW,
        Cuts::Long => MANY,
    };
    let workload = Workload {
        pods: start_pods(world, count)?,
        others: vec![
            format!("{STATIC}-{NODE}"),
            dns::POD.to_owned(),
            flannel::POD.to_owned(),
        ],
        state: node.containerd_state()?,
        manifests,
    };
    workload.add_static(STATIC)?;
    node.kill(world, KUBELET)?;
    node.start(world, KUBELET)?;
    dns::start(world)?;
    flannel::start(world)?;
    Ok(workload)
}

/// Starts pods with volumes.
fn start_pods(world: &World, count: usize) -> Result<Vec<Claimant>> {
    let mut pods = Vec::new();
    let mut objects = Vec::new();
    for number in 0..count {
        let pod = Claimant::make(world, number)?;
        objects.extend_from_slice(&pod.objects);
        pods.push(pod);
    }
    for (number, objects) in objects.chunks(APPLIED_AT_ONCE).enumerate() {
        world.apply(&format!("hub-volumes-{number}"), objects)?;
    }
    Ok(pods)
}

impl Workload {
    /// Starts a pod with a ResourceClaim, behind the hub: kubelet reads a claim once.
    pub(super) fn add_claimed(&mut self, world: &mut World) -> Result<()> {
        if !claimed::is_possible(world)? {
            return Ok(());
        }
        world.claim(
            "a pod with a ResourceClaim runs when kubelet has read the claim by the hub",
            |world| {
                claimed::start(world)?;
                wait::until("the pod", ALL_RUN, || {
                    running(world, claimed::POD, MAIN).map(drop)
                })
            },
        )?;
        self.others.push(claimed::POD.to_owned());
        Ok(())
    }

    /// Proves that all run and see what they need.
    pub(super) fn prove(&self, world: &mut World) -> Result<Containers> {
        let count = self.pods.len();
        let more = self.others.join(", ");
        world.claim(
            &format!("{count} pods run with volumes of all kinds that need no driver, and {more}"),
            |world| wait::until("all pods run", ALL_RUN, || self.running(world)),
        )
    }

    /// The containers, if all run and see what they need.
    pub(super) fn running(&self, world: &World) -> Result<Containers> {
        let mut running = by_pod(world, &self.state, MAIN)?;
        for pod in &self.pods {
            let container = running.get(&pod.name);
            pod.check(container.with_context(|| format!("{} does not run", pod.name))?)?;
        }
        for name in &self.others {
            ensure!(running.contains_key(name), "{name} does not run");
        }
        running.retain(|name, _| self.has(name));
        Ok(running)
    }

    /// Fails unless the same containers run, with all that they need.
    pub(super) fn same(&self, world: &World, before: &Containers) -> Result<()> {
        let now = self.running(world)?;
        for (pod, container) in before {
            ensure!(
                now.get(pod) == Some(container),
                "{pod} has another container"
            );
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.others.iter().any(|other| other == name) || self.pods.iter().any(|it| it.name == name)
    }

    /// Puts a static pod into kubelet's folder.
    pub(super) fn add_static(&self, name: &str) -> Result<()> {
        let mut pod = sleeping_pod(name);
        if let Some(spec) = pod["spec"].as_object_mut() {
            spec.remove("nodeName");
        }
        let file = self.manifests.join(format!("{name}.json"));
        std::fs::write(&file, pod.to_string()).with_context(|| format!("write {}", file.display()))
    }

    /// Whether a static pod's container runs.
    pub(super) fn static_runs(&self, world: &World, name: &str) -> Result<()> {
        let running = by_pod(world, &self.state, MAIN)?;
        let pod = format!("{name}-{NODE}");
        ensure!(running.contains_key(&pod), "{pod} does not run");
        Ok(())
    }

    /// Whether the API server has a mirror pod of each static pod, and it runs.
    pub(super) fn has_mirrors(&self, world: &World) -> Result<()> {
        for name in [STATIC, ADDED] {
            let pod = format!("{name}-{NODE}");
            let phase =
                world.shop(&["get", "pod", &pod, "--output", "jsonpath={.status.phase}"])?;
            ensure!(phase == "Running", "the mirror pod {pod} is {phase}");
        }
        Ok(())
    }

    /// Removes all of it.
    pub(super) fn stop(self, world: &World) -> Result<()> {
        for entry in std::fs::read_dir(&self.manifests)?.flatten() {
            std::fs::remove_file(entry.path()).context("remove a static pod")?;
        }
        let delete = ["delete", "--selector", "hub=volumes", "--wait=false"];
        world.shop(&[&delete[..], &["pod,pvc"]].concat())?;
        world.cluster.ask(&[&delete[..], &["pv"]].concat())?;
        world.shop(&["delete", "pod", "--ignore-not-found", flannel::POD])?;
        if self.has(claimed::POD) {
            claimed::stop(world)?;
        }
        let kube_system = ["--namespace", dns::NAMESPACE];
        let delete = ["delete", "pod", dns::POD, "--wait=false"];
        let delete = [&kube_system[..], &delete].concat();
        world.cluster.ask(&delete).map(drop)
    }
}
