//! A cloud node is gone for good, without a word: its link is cut and never comes back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait;

use crate::cluster::{CLOUDS, EDGES, MASTER};
use crate::reacher::{self, READYZ, Reacher};
use crate::world::World;
use crate::{install, names, proxies};

/// Peers notice a silent one after 8 s and forget it 15 s later. Agents notice within 39 s and set
/// up other tunnels. The balancer goes on sending them to the lost node too.
const NOTICED: Duration = Duration::from_secs(120);
/// Seconds without a failure after which all is well again.
const STEADY: f64 = 10.0;
/// Seconds that an attempt takes at most: half of these.
const PATIENCE: u32 = 5;
/// What is to be reached.
const TARGETS: [&str; 3] = ["edge-1:10250", "edge-2:10250", "edge-3:10250"];

/// The step. Later steps have one cloud node less.
pub(super) fn run(world: &mut World) -> Result<()> {
    names::by_name(world)?;
    let lost = busiest(world)?;
    world.clouds.retain(|node| *node != lost);
    let mut reachers = Vec::new();
    for host in &world.clouds {
        let targets = [&TARGETS[..], &[READYZ]].concat();
        reachers.push(Reacher::start(world, host, PATIENCE, &targets)?);
    }
    let cut = reacher::now();
    world.claim_once(
        &format!("{lost} is cut off: the other cloud nodes reach all edges without it"),
        |world| {
            let cut = ["ip", "link", "set", "wan", "down"];
            world.cluster.on(lost, &cut)?;
            steady(&mut reachers)
        },
    )?;
    report(&mut reachers, cut)?;
    world.claim("kubectl logs of a pod on every edge", |world| {
        EDGES
            .iter()
            .try_for_each(|edge| proxies::one_log(world, edge))
    })?;
    world.claim(
        &format!("the others no longer have a link to the proxy of {lost}"),
        |world| {
            world.clouds.iter().try_for_each(|node| {
                wait::until(&format!("the status on {node}"), NOTICED, || {
                    proxies::linked_to(world, node, &world.clouds)
                })
            })
        },
    )?;
    world.claim_once(
        "the Node is deleted: each edge has tunnels at the two proxies that are left",
        |world| {
            world.cluster.ask(&["delete", "node", lost])?;
            wait::until("the tunnels", NOTICED, || proxies::holders(world).map(drop))
        },
    )?;
    world.claim("no edge is out of reach any more", |_| {
        steady(&mut reachers)
    })?;
    world.claim_once("the other proxies were ready all the time", |_| {
        reachers.iter_mut().try_for_each(|reacher| {
            let outages = reacher.outages(READYZ, cut)?;
            ensure!(outages.is_empty(), "{}: {outages:?}", reacher.host);
            Ok(())
        })
    })?;
    install::wait_for_tunnels(world)
}

/// The cloud node whose proxy has tunnels of the most edges, and where kube-apiserver is not.
fn busiest(world: &World) -> Result<&'static str> {
    let holders = wait::until("two proxies for each edge", NOTICED, || {
        proxies::holders(world)
    })?;
    let others = CLOUDS.into_iter().filter(|node| *node != MASTER);
    let busiest = others.max_by_key(|node| {
        let of_node = holders.iter().filter(|holders| holders.contains(node));
        of_node.count()
    });
    busiest.context("there is no other one")
}

/// Waits for a time from now on without a failure.
fn steady(reachers: &mut [Reacher]) -> Result<()> {
    let begun = reacher::now();
    wait::until("no failures", NOTICED, || {
        let since = reacher::now() - STEADY;
        ensure!(since >= begun, "too early to say");
        reachers.iter_mut().try_for_each(|reacher| {
            TARGETS.iter().try_for_each(|target| {
                let outages = reacher.outages(target, since)?;
                ensure!(
                    outages.is_empty(),
                    "{} and {target}: {outages:?}",
                    reacher.host
                );
                reacher.reached(target, since)
            })
        })
    })
}

/// Prints for how long each edge was out of reach, for people.
fn report(reachers: &mut [Reacher], since: f64) -> Result<()> {
    reachers
        .iter_mut()
        .try_for_each(|reacher| reacher.report(&TARGETS, since))
}
