//! The end: the uninstall overlay leaves nothing in the kernel of a cloud node.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::world::{MASTER, World};
use crate::wait;

/// A pod starts and its program runs for less than a second.
const GONE: Duration = Duration::from_secs(90);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim("the manifests are deleted", |world| {
        let folder = crate::workspace::root().join("deploy/overlays/e2e");
        world.cluster.ask_within(GONE, &["delete", "--kustomize", &folder.display().to_string(), "--ignore-not-found"])
    })?;
    world.claim("the uninstall overlay leaves no pin, link, table or route on the master", everywhere)
}

/// Applies the uninstall overlay and waits until nothing is left on the master, then takes the overlay away too.
pub(super) fn everywhere(world: &World) -> Result<()> {
    world.apply_overlay("e2e/uninstall")?;
    wait::until("nothing is left", GONE, || nothing_left(world))?;
    let folder = crate::workspace::root().join("deploy/overlays/e2e/uninstall");
    world.cluster.ask_within(GONE, &["delete", "--kustomize", &folder.display().to_string(), "--ignore-not-found"])?;
    nothing_left(world)
}

/// Looks for what the kernel keeps: pins, links on the cgroup, the table, routes of the VIP ranges.
fn nothing_left(world: &World) -> Result<()> {
    let cgroup = world.cluster.variable("CK_MASTER_CGROUP")?;
    let looks: [(&str, &[&str], &str); 4] = [
        ("pins", &["find", "/sys/fs/bpf"], "culvert"),
        ("links", &["bpftool", "cgroup", "show", cgroup], "cv_"),
        ("tables", &["nft", "list", "tables"], "culvert"),
        ("routes", &["ip", "route", "show", "table", "all"], "198.18."),
    ];
    for (what, line, sign) in looks {
        let said = world.cluster.on(MASTER, line)?;
        let left: Vec<&str> = said.lines().filter(|line| line.contains(sign)).collect();
        ensure!(left.is_empty(), "{what} are left: {left:?}");
    }
    Ok(())
}
