//! The last step: the uninstall overlay leaves nothing in the kernel of a cloud node.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::workspace;

use crate::cluster::MASTER;
use crate::world::World;

/// Time for pods to end gracefully.
const DELETED: Duration = Duration::from_secs(120);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "the uninstall overlay leaves no pin, link, table or route on the master",
        take_away,
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
                world.cluster.ask_within(
                    DELETED,
                    &["delete", "--ignore-not-found", "--kustomize", &overlay],
                )?;
            }
            nothing_left(world)
        },
    )
}

/// Applies the uninstall overlay, waits for its pods, and checks that nothing is left.
pub(super) fn take_away(world: &World) -> Result<()> {
    world.apply_overlay("e2e/uninstall")?;
    world.wait_for_rollout("culvert-uninstall")?;
    nothing_left(world)
}

/// Fails unless the master has everything that Culvert installs.
pub(super) fn everything_there(world: &World) -> Result<()> {
    let left = left(world)?;
    ensure!(
        left.len() == LOOKS.len(),
        "of pins, links, tables and routes there are only {left:?}"
    );
    Ok(())
}

/// Fails if the master still has anything of it.
pub(super) fn nothing_left(world: &World) -> Result<()> {
    let left = left(world)?;
    ensure!(left.is_empty(), "left: {left:?}");
    Ok(())
}

/// Placeholder for the master's cgroup.
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

/// The first line that each command finds.
pub(super) fn left(world: &World) -> Result<Vec<String>> {
    let cgroup = world.cluster.variable("CK_MASTER_CGROUP")?;
    let mut left = Vec::new();
    for (line, sign) in LOOKS {
        let line: Vec<&str> = line
            .iter()
            .map(|word| if *word == CGROUP { cgroup } else { word })
            .collect();
        let said = world.cluster.on(MASTER, &line)?;
        left.extend(
            said.lines()
                .find(|line| line.contains(sign))
                .map(str::to_owned),
        );
    }
    Ok(left)
}
