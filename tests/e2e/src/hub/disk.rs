//! The disk of the hub's state, an ext4 of its own: a loss of power takes what was not flushed to it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::workspace;

use super::NODE;
use crate::world::World;

const SIZE: &str = "256M";

/// Makes it, and mounts it in the node.
pub(super) fn make(world: &World) -> Result<()> {
    let image = image(world);
    let folder = folder(world);
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    workspace::output(Command::new("truncate").args(["--size", SIZE]).arg(&image))?;
    workspace::output(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
    mount(world)
}

/// Loses what was not flushed: goes on with what the disk has now. Nothing uses it.
pub(super) fn lose_power(world: &World) -> Result<()> {
    let image = image(world);
    let left = image.with_extension("left");
    // Before the file system is unmounted, which would flush it.
    workspace::output(
        Command::new("cp")
            .arg("--sparse=always")
            .args([&image, &left]),
    )?;
    unmount(world)?;
    std::fs::rename(&left, &image).context("put the disk back")?;
    mount(world)
}

fn unmount(world: &World) -> Result<()> {
    let folder = folder(world).display().to_string();
    world.cluster.on(NODE, &["umount", &folder]).map(drop)
}

fn mount(world: &World) -> Result<()> {
    let image = image(world).display().to_string();
    let folder = folder(world).display().to_string();
    let mount = ["mount", "-o", "loop,noatime", &image, &folder];
    world.cluster.on(NODE, &mount).map(drop)
}

/// Where it is mounted.
pub(super) fn folder(world: &World) -> PathBuf {
    world.file("hub-disk")
}

fn image(world: &World) -> PathBuf {
    world.file("hub-disk.img")
}
