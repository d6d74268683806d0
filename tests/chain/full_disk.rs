//! Tests of disks that take no writes: every program starts again and works, and nothing is changed
//! that could not be kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::world::{self, World};

const EDGE: &[Host] = &[Host::Edge1];

/// All files that the programs replace.
const FILES: [(Host, &str, &[&str]); 3] = [
    (
        Host::Cloud,
        "proxy",
        &[
            "directory.json",
            "tokens.json",
            "certificates.jsonl",
            "ca.crt",
            "ca.key",
        ],
    ),
    (Host::Cloud, "redirector", &["directory.json"]),
    (
        Host::Edge1,
        "agent",
        &["identity.pem", "next-key.pem", "joined.json", "ca.pem"],
    ),
];

/// Lets no new file take the place of these, as on a full disk. Returns what is in the way.
fn fill(world: &World<'_>) -> Result<Vec<PathBuf>> {
    let mut in_the_way = Vec::new();
    for (host, folder, files) in FILES {
        for file in files {
            let path = world
                .lab
                .site(host)
                .file(folder)
                .join(format!(".{file}.new"));
            fs::create_dir(&path).with_context(|| path.display().to_string())?;
            in_the_way.push(path);
        }
    }
    Ok(in_the_way)
}

/// Makes the state directories of all programs read-only, as ext4 does after an error of the disk.
fn make_read_only(world: &World<'_>) -> Result<()> {
    for (host, folder, _files) in FILES {
        let site = world.lab.site(host);
        let path = site.file(folder).display().to_string();
        site.output("mount", ["--bind", &path, &path])?;
        site.output("mount", ["-o", "remount,bind,ro", &path])?;
    }
    Ok(())
}

/// Moves the state directories of all programs to file systems that have no inode left.
fn use_up_inodes(world: &World<'_>) -> Result<()> {
    for (host, folder, _files) in FILES {
        let site = world.lab.site(host);
        let path = site.file(folder).display().to_string();
        let copy = format!(
            "cp -a {path} {path}.copy && mount -t tmpfs -o nr_inodes=40 tmpfs {path} && cp -a \
             {path}.copy/. {path} && while touch {path}/$((n += 1)) 2> /dev/null; do :; done"
        );
        site.output("sh", ["-c", &copy])?;
    }
    Ok(())
}

/// The proxy has been killed.
fn restart_all(world: &mut World<'_>) -> Result<()> {
    world.culvert.restart_proxy()?;
    world.culvert.agent(0).kill()?;
    world.culvert.restart_agent(0, Host::Edge1)?;
    world.culvert.redirector.terminate(PATIENCE)?;
    world.culvert.restart_redirector()?;
    world.culvert.wait_for_redirector()?;
    world.culvert.wait_online(Host::Edge1)
}

/// A resolver gives up early on a busy machine.
fn check_greets(world: &World<'_>) -> Result<()> {
    wait::until("edge-1 is reached", PATIENCE, || {
        world.check_greeting("edge-1", "edge-1")
    })
}

fn saved(path: &Path, node: &str) -> Result<()> {
    let text = fs::read_to_string(path)?;
    ensure!(text.contains(node), "{node} is not in {}", path.display());
    Ok(())
}

#[test]
fn programs_with_full_disks_start_again_and_serve_and_change_nothing_that_they_cannot_keep() {
    world::with(EDGE, Options::default(), |world| {
        let redirectors = world
            .lab
            .site(Host::Cloud)
            .file("redirector/directory.json");
        wait::until("the directory is saved", PATIENCE, || {
            saved(&redirectors, "edge-1")
        })?;
        let in_the_way = fill(world)?;
        world.culvert.proxy.kill()?;
        restart_all(world)?;
        check_greets(world)?;

        let create =
            || workspace::output(&mut world.culvert.control(&["token", "create", "edge-9"]));
        ensure!(create().is_err(), "a token that is not on disk");
        let nodes = || workspace::output(&mut world.culvert.control(&["nodes"]));
        ensure!(!nodes()?.contains("edge-9"), "a node that is not on disk");
        for path in in_the_way {
            fs::remove_dir(path)?;
        }
        create()?;
        wait::until("it is saved", PATIENCE, || saved(&redirectors, "edge-9"))?;
        check_greets(world)
    });
}

/// Nothing can be made in the folders either: no lock, no socket.
#[test]
fn programs_on_read_only_disks_and_without_inodes_start_again_and_serve() {
    for spoil in [make_read_only, use_up_inodes] {
        world::with(EDGE, Options::default(), |world| {
            let cloud = world.lab.site(Host::Cloud);
            let redirectors = cloud.file("redirector/directory.json");
            wait::until("the directory is saved", PATIENCE, || {
                saved(&redirectors, "edge-1")
            })?;
            world.culvert.proxy.kill()?;
            // The disk's error came in the middle of a write.
            let torn = "{\"version\":1}\n{\"served\":1}\n{\"no";
            fs::write(cloud.file("proxy/certificates.jsonl"), torn)?;
            spoil(world)?;
            restart_all(world)?;
            check_greets(world)?;
            let created = workspace::output(&mut world.culvert.control(&["token", "create", "a"]));
            ensure!(created.is_err(), "a token that is not on disk");
            Ok(())
        });
    }
}
