//! The uninstall overlay leaves nothing in the kernel of a cloud node.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::{wait, workspace};

use crate::world::{CULVERT, World};

/// Time for pods to end gracefully.
const DELETED: Duration = Duration::from_secs(120);
/// Kubernetes takes a minute to forget a namespace.
const FORGOTTEN: Duration = Duration::from_secs(180);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "the uninstall overlay leaves no pin, link, table or route on any cloud node",
        uninstall_all,
    )?;
    world.claim(
        "everything is deleted, and still nothing is left",
        |world| {
            let overlays = ["e2e/uninstall", "e2e/variants"].map(|name| {
                workspace::root()
                    .join("deploy/overlays")
                    .join(name)
                    .display()
                    .to_string()
            });
            for overlay in overlays {
                // Kubernetes itself takes another minute to forget an empty namespace.
                let delete = [
                    "delete",
                    "--wait=false",
                    "--ignore-not-found",
                    "--kustomize",
                ];
                world.cluster.ask(&[&delete[..], &[&overlay]].concat())?;
            }
            no_pods(world)?;
            nothing_left(world)
        },
    )
}

/// Applies the uninstall overlay, waits for its pods, and checks that nothing is left.
pub(super) fn uninstall_all(world: &World) -> Result<()> {
    world.apply_overlay("e2e/uninstall")?;
    world.wait_for_rollout("culvert-uninstall")?;
    nothing_left(world)
}

/// Waits until no pod of Culvert is left.
pub(super) fn no_pods(world: &World) -> Result<()> {
    wait::until("no pod is left", DELETED, || {
        let pods = world.culvert(&["get", "pods", "--output", "name"])?;
        ensure!(pods.is_empty(), "{pods}");
        Ok(())
    })
}

/// Waits until the deleted namespace does not exist.
pub(super) fn forgotten(world: &World) -> Result<()> {
    wait::until("the namespace of Culvert is gone", FORGOTTEN, || {
        let line = ["get", "namespace", CULVERT, "--ignore-not-found"];
        let said = world
            .cluster
            .ask(&[&line[..], &["--output", "name"]].concat())?;
        ensure!(said.is_empty(), "{said}");
        Ok(())
    })
}

/// Fails unless each cloud node has everything that Culvert installs.
pub(super) fn everything_there(world: &World) -> Result<()> {
    world.clouds.iter().try_for_each(|node| {
        let left = left(world, node)?;
        ensure!(
            left.len() == LOOKS.len(),
            "of pins, links, tables and routes {node} has only {left:?}"
        );
        Ok(())
    })
}

/// Fails if a cloud node still has anything of it.
pub(super) fn nothing_left(world: &World) -> Result<()> {
    world.clouds.iter().try_for_each(|node| {
        let left = left(world, node)?;
        ensure!(left.is_empty(), "left on {node}: {left:?}");
        Ok(())
    })
}

/// Placeholder for the node's cgroup.
const CGROUP: &str = "CGROUP";

/// What the kernel may keep: the command that lists it, and the text that identifies it.
const LOOKS: [(&[&str], &str); 5] = [
    (&["find", "/sys/fs/bpf"], "culvert"),
    (
        &["bpftool", "cgroup", "show", CGROUP],
        "cgroup_inet4_connect",
    ),
    (&["nft", "list", "tables"], "culvert"),
    (&["ip", "route", "show", "table", "all"], "culvert0"),
    (&["ip", "-6", "route", "show", "table", "all"], "culvert0"),
];

/// The first line that each command finds on a node.
pub(super) fn left(world: &World, node: &str) -> Result<Vec<String>> {
    let cgroup = world.cluster.variable_of(node, "CGROUP")?;
    let mut left = Vec::new();
    for (line, sign) in LOOKS {
        let line: Vec<&str> = line
            .iter()
            .map(|word| if *word == CGROUP { cgroup } else { word })
            .collect();
        let said = world.cluster.on(node, &line)?;
        left.extend(
            said.lines()
                .find(|line| line.contains(sign))
                .map(str::to_owned),
        );
    }
    Ok(left)
}
