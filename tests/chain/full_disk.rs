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
        world.culvert.restart_proxy()?;
        world.culvert.agent(0).kill()?;
        world.culvert.restart_agent(0, Host::Edge1)?;
        world.culvert.redirector.terminate(PATIENCE)?;
        world.culvert.restart_redirector()?;
        world.culvert.wait_for_redirector()?;
        world.culvert.wait_online(Host::Edge1)?;
        world.check_greeting("edge-1", "edge-1")?;

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
        world.check_greeting("edge-1", "edge-1")
    });
}
