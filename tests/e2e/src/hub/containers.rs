//! The containers of the node, as its container runtime knows them: while the link is cut, nothing
//! else can tell.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::NODE;
use crate::world::World;

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) pid: i32,
}

impl Container {
    /// Fails if it has ended.
    pub(super) fn check(&self) -> Result<()> {
        let process = format!("/proc/{}", self.pid);
        ensure!(Path::new(&process).exists(), "container {} ended", self.id);
        Ok(())
    }

    /// A file as the container sees it.
    pub(super) fn read(&self, path: &str) -> Result<String> {
        let path = format!("/proc/{}/root{path}", self.pid);
        std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
    }

    /// A variable of its environment.
    pub(super) fn variable(&self, name: &str) -> Result<String> {
        let path = format!("/proc/{}/environ", self.pid);
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        for pair in text.split('\0') {
            if let Some((key, value)) = pair.split_once('=')
                && key == name
            {
                return Ok(value.to_owned());
            }
        }
        bail!("no {name}")
    }
}

/// The running containers of this name, by their pods. `state` is where containerd has what a reboot
/// ends: for many pods that is faster than to ask it for each.
pub(super) fn by_pod(
    world: &World,
    state: &str,
    name: &str,
) -> Result<BTreeMap<String, Container>> {
    let host = world.cluster.variable_of(NODE, "PID")?;
    let folder = format!("/proc/{host}/root{state}/io.containerd.runtime.v2.task/k8s.io");
    let tasks = std::fs::read_dir(&folder).with_context(|| format!("read {folder}"))?;
    let mut found = BTreeMap::new();
    for task in tasks.flatten() {
        // It may end and go at this moment.
        if let Some((pod, container)) = main_of(&task.path(), name)
            && container.check().is_ok()
        {
            found.insert(pod, container);
        }
    }
    Ok(found)
}

/// The container of a task and its pod, if that is its name.
fn main_of(task: &Path, name: &str) -> Option<(String, Container)> {
    let spec = std::fs::read(task.join("config.json")).ok()?;
    let spec: Value = serde_json::from_slice(&spec).ok()?;
    let annotations = &spec["annotations"];
    if annotations["io.kubernetes.cri.container-name"] != name {
        return None;
    }
    let pid = std::fs::read_to_string(task.join("init.pid")).ok()?;
    let pod = annotations["io.kubernetes.cri.sandbox-name"].as_str()?;
    let container = Container {
        id: task.file_name()?.to_str()?.to_owned(),
        pid: pid.parse().ok()?,
    };
    Some((pod.to_owned(), container))
}

/// The running container of this name in a pod.
pub(super) fn running(world: &World, pod: &str, name: &str) -> Result<Container> {
    let filter = format!(
        "labels.\"io.kubernetes.pod.name\"=={pod},labels.\"io.kubernetes.container.name\"=={name}"
    );
    let ids = ctr(world, &["containers", "list", "--quiet", &filter])?;
    let tasks = ctr(world, &["tasks", "list"])?;
    for line in tasks.lines() {
        if let Some(container) = task(line)
            && ids.lines().any(|id| id == container.id)
        {
            return Ok(container);
        }
    }
    bail!("container {name} of pod {pod} does not run")
}

/// A running container in a line of `ctr tasks list`: `ID PID STATUS`.
fn task(line: &str) -> Option<Container> {
    let mut words = line.split_whitespace();
    let id = words.next()?.to_owned();
    let pid = words.next()?.parse().ok()?;
    if words.next() == Some("RUNNING") {
        Some(Container { id, pid })
    } else {
        None
    }
}

fn ctr(world: &World, args: &[&str]) -> Result<String> {
    let socket = world.cluster.variable_of(NODE, "CONTAINERD")?;
    let ctr = ["ctr", "--address", socket, "--namespace", "k8s.io"];
    world.cluster.on(NODE, &[&ctr, args].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_tasks_are_no_running_containers() {
        assert_eq!(task("TASK    PID    STATUS"), None);
        assert_eq!(task("abc    0    STOPPED"), None);
        let running = Container {
            id: "abc".to_owned(),
            pid: 7,
        };
        assert_eq!(task("abc    7    RUNNING"), Some(running));
    }
}
