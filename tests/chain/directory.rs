//! Nodes from a file, and addresses that are never steered.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN, REDIRECTOR_ADMIN};
use culvert_lab::dns::{self, Answer};
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client};
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, workspace};

use crate::world::{self, ECHO, GREET, World};

/// Time for two checks of the file by the proxy, and for the redirector to apply the change.

#[test]
fn a_directory_file_is_followed_while_it_changes_and_kept_while_it_is_broken() {
    world::prepared(
        &[],
        |lab| with_file(lab, &node_with(&[GREET]), &[]),
        |world| {
            let _backends = world::serve(world.lab, Host::Edge1)?;
            join(world)?;
            world.check_greeting("10.0.3.7", "edge-1")?;
            let echo = format!("10.0.3.7:{ECHO}");
            let dialled = world.failing_client(&Client::dial(&echo, Duration::from_millis(500)))?;
            ensure!(
                dialled.cause == Cause::TimedOut,
                "a port that the file does not name: {dialled}"
            );

            write(
                world,
                &(node_with(&[GREET, ECHO]) + "[nodes.edge-2]\naddresses = [\"192.168.1.10\"]\n"),
            )?;
            wait::until("the new port is steered", PATIENCE, || {
                world
                    .client(&Client::dial(&echo, Duration::from_millis(500)))
                    .map(drop)
            })?;
            ensure!(
                matches!(dns::ask(world.lab, "edge-2", dns::A)?, Answer::Addresses(_)),
                "the new node has a name"
            );

            write(world, "[nodes.edge-1]\nadresses = []\n")?;
            world.wait_proxy_log(
                "directory file not used, keeping its last good nodes",
                &[("reason", "nodes.toml, line 2"), ("reason", "adresses")],
            )?;
            for restarted in [false, true] {
                if restarted {
                    world.culvert.proxy.kill()?;
                    world.culvert.restart_proxy()?;
                    world.culvert.wait_for_proxy()?;
                    world.culvert.wait_online(Host::Edge1)?;
                }
                let answer = world.talk(&echo, "hello")?;
                ensure!(
                    answer == "hello",
                    "the last good directory, restarted {restarted}: {answer}"
                );
            }

            write(world, "[nodes]\n")?;
            wait::until("the node is gone", PATIENCE, || {
                ensure!(world.culvert.tunnels("edge-1")? == 0, "it has tunnels");
                let answer = dns::ask(world.lab, "edge-1.edge.internal", dns::A)?;
                ensure!(answer == Answer::NoSuchName, "{answer:?}");
                Ok(())
            })
        },
    );
}

#[test]
fn a_proxy_that_never_had_a_good_directory_file_is_not_ready_and_says_where_it_is_broken() {
    world::prepared(
        &[],
        |lab| with_file(lab, "[nodes]\n", &[]),
        |world| {
            world.culvert.proxy.kill()?;
            let cloud = world.lab.site(Host::Cloud);
            std::fs::remove_file(cloud.file("proxy/directory-last-good.toml"))?;
            write(world, "[nodes.edge-1]\nadresses = []\n")?;
            world.culvert.restart_proxy()?;
            world.wait_missing(Host::Cloud, PROXY_ADMIN, "nodes.toml, line 2")?;
            write(world, "[nodes.edge-1]\n")?;
            world.culvert.wait_for_proxy()
        },
    );
}

#[test]
fn addresses_that_the_cloud_uses_itself_are_never_steered() {
    let nodes =
        "[nodes.edge-1]\naddresses = [\"10.0.3.7\", \"203.0.113.1\"]\nports = [9004, 7400]\n";
    world::prepared(
        &[],
        |lab| with_file(lab, nodes, &["--protect", "10.0.0.0/16"]),
        |world| {
            let _backends = world::serve(world.lab, Host::Edge1)?;
            join(world)?;
            world.check_greeting("edge-1", "edge-1")?;
            let dialled = world.failing_client(&Client::dial(
                format!("10.0.3.7:{GREET}"),
                Duration::from_millis(500),
            ))?;
            ensure!(dialled.cause == Cause::TimedOut, "{dialled}");
            let steered = world
                .lab
                .site(Host::Cloud)
                .json(REDIRECTOR_ADMIN, "/debug/destinations")?
                .to_string();
            ensure!(
                !steered.contains("10.0.3.7") && !steered.contains("203.0.113.1:"),
                "{steered}"
            );
            let listed = workspace::output(&mut world.culvert.control(&["nodes"]))?;
            ensure!(
                listed.contains("10.0.0.0/16") && listed.contains("203.0.113.1"),
                "no reason given: {listed}"
            );
            Ok(())
        },
    );
}

fn node_with(ports: &[u16]) -> String {
    format!("[nodes.edge-1]\naddresses = [\"10.0.3.7\"]\nports = {ports:?}\n")
}

pub(crate) fn with_file(lab: &Lab, nodes: &str, further: &[&str]) -> Result<Options> {
    let path = lab.site(Host::Cloud).file("nodes.toml");
    std::fs::write(&path, nodes)?;
    let path = path.display().to_string();
    Ok(world::proxy_options(
        ["--directory", &path].iter().chain(further).copied(),
    ))
}

/// Writes the file as an editor does: a new file replaces the old one.
pub(crate) fn write(world: &World<'_>, nodes: &str) -> Result<()> {
    let path = world.lab.site(Host::Cloud).file("nodes.toml");
    let new = path.with_extension("new");
    std::fs::write(&new, nodes)?;
    std::fs::rename(&new, &path).with_context(|| format!("replace {}", path.display()))
}

/// Joins edge-1, which the file describes.
pub(crate) fn join(world: &mut World<'_>) -> Result<()> {
    let join = world.culvert.create_bare_token(Host::Edge1, &[])?;
    world.culvert.join(Host::Edge1, &join)?;
    world.culvert.start_agent(Host::Edge1)?;
    world.culvert.wait_online(Host::Edge1)
}
