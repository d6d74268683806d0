//! The Helm chart in a cluster that has nothing of Culvert: installed, used, and uninstalled, by the
//! section "With Helm" of docs/install-kubernetes.md.

use anyhow::Result;
use culvert_lab::go_program::GoProgram;
use culvert_lab::workspace;

use crate::cluster::{EDGES, MASTER};
use crate::world::{CULVERT, World};
use crate::{install, logs, names, uninstall};

/// The values that are equal to the overlay of the other steps.
const VALUES: &str = "deploy/overlays/e2e/values.yaml";
const CHART: &str = "deploy/chart/culvert";
const NAMESPACE: &str = "deploy/cloud/namespace.yaml";

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    install_chart(world)?;
    install::wait_for_tunnels(world)?;
    for node in EDGES {
        logs::prove(world, node)?;
    }
    install::check(world)?;
    uninstall_chart(world)
}

fn install_chart(world: &mut World) -> Result<()> {
    install::load_images(world)?;
    world.claim_once(
        "the chart is installed with its values for this cluster; every pod becomes ready",
        |world| {
            uninstall::forgotten(world)?;
            names::by_name(world)?;
            install::prepare_nodes(world)?;
            world
                .cluster
                .ask(&["apply", "--filename", &source(NAMESPACE)])?;
            helm(
                world,
                &["install", "culvert", &source(CHART)],
                &["--values", &source(VALUES)],
            )?;
            install::wait_for_rollouts(world)
        },
    )
}

fn uninstall_chart(world: &mut World) -> Result<()> {
    world.claim_once(
        "the end of the release leaves no pod, and no pin, link, table or route on any cloud node",
        |world| {
            uninstall::everything_there(world)?;
            helm(world, &["uninstall", "culvert"], &[])?;
            uninstall::no_pods(world)?;
            uninstall::nothing_left(world)?;
            // Kubernetes itself takes another minute to forget an empty namespace.
            let delete = ["delete", "namespace", CULVERT, "--wait=false"];
            world.cluster.ask(&delete).map(drop)
        },
    )
}

/// The path of a file of the source.
fn source(file: &str) -> String {
    workspace::root().join(file).display().to_string()
}

/// Runs Helm on the master, as an operator does.
fn helm(world: &World, words: &[&str], more: &[&str]) -> Result<()> {
    let home = format!("HOME={}", world.file("helm").display());
    let program = GoProgram::Helm.path().display().to_string();
    let config = world.cluster.variable("CK_KUBECONFIG")?;
    let line = [
        "env",
        &home,
        &program,
        "--kubeconfig",
        config,
        "--namespace",
        CULVERT,
    ];
    let line = [&line[..], words, more].concat();
    world.cluster.on(MASTER, &line).map(drop)
}
