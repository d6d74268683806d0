//! A hostile agent that lies about itself.

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;
use culvert_tunnel::proto::tunnel::{Allowed, DescribeResponse};
use serde_json::Value;

use super::agent::{HostileAgent, PLACE};
use super::{Before, Bystanders};
use crate::connect;
use crate::world::{self, GREET, World};

/// Tunnel slots, as edge-1's own agent names them.
const SLOTS: [&str; 2] = ["0", "1"];
/// Limit of tunnels of one node on a proxy.
const MAX_TUNNELS: usize = 64;
/// Clears a terminal, then looks like a line of a log.
const FORGERY: &str = "1.0\x1b[2J\r\n2026-11-21T00:00:00Z  INFO FORGED tunnel up";

#[test]
fn an_agent_that_lies_about_its_node_draws_no_connection_and_forges_no_line() {
    let options = world::proxy_options(["--log-format", "text"]);
    world::with(&[Host::Edge1], options, |world| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        HostileAgent::join(world)?;
        let before = tunnels_of(world, "edge-1")?;
        let nodes = addresses(world)?;
        let vip = world.vip(Host::Edge1, "vip4")?;
        let mut liars = Vec::new();
        for slot in SLOTS {
            let describe = DescribeResponse {
                version: FORGERY.to_owned(),
                instance: "the-same-as-edge-1".to_owned(),
                slot: slot.to_owned(),
                addresses: vec![
                    "10.0.3.7".into(),
                    "203.0.113.1".into(),
                    vip.to_string(),
                    FORGERY.into(),
                ],
                allowed: Some(Allowed {
                    ports: vec![0, 9001, 70_000],
                    further: vec![FORGERY.into()],
                    denied_ports: vec![],
                    ..Allowed::default()
                }),
                keepalive_seconds: u32::MAX,
                sequence: u64::MAX,
                moves: true,
                started: u64::MAX,
                last_end: i32::MAX,
            };
            liars.push(HostileAgent::described(world, &[], &describe)?);
        }
        // Soon: these tunnels are not answered, so they end.
        let told = world.culvert.why(PLACE.name())?;
        for _ in 0..20 {
            for host in ["edge-1", "10.0.3.7", &vip.to_string()] {
                world.check_greeting(host, "edge-1")?;
            }
        }
        connect::check_greeting(
            &world.culvert.socket("connect.sock"),
            &format!("10.0.3.7:{GREET}"),
        )?;
        ensure!(
            tunnels_of(world, "edge-1")? == before,
            "edge-1 lost its tunnels"
        );
        ensure!(
            addresses(world)? == nodes,
            "an agent's word has changed the directory"
        );
        bystanders.check(world, "edge-1")?;

        ensure!(
            told.contains("FORGED"),
            "why shows nothing of the agent's word: {told}"
        );
        for (what, text) in [("why", told), ("the log", world.culvert.proxy.log())] {
            ensure!(
                !text.contains('\x1b'),
                "{what} passes on what commands a terminal"
            );
            let forged = text
                .lines()
                .find(|line| line.starts_with("2026-11-21T00:00:00Z"));
            ensure!(
                forged.is_none(),
                "{what} has a line of the agent's: {forged:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn an_agent_that_makes_tunnels_without_end_keeps_as_many_as_a_node_may_have() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        HostileAgent::join(world)?;
        let before = Before::of("the proxy", &world.culvert.proxy)?;
        let mut tunnels = (0..MAX_TUNNELS)
            .map(|_| HostileAgent::registered(world))
            .collect::<Result<Vec<_>>>()?;
        bystanders.check(world, "edge-1")?;
        for _ in 0..MAX_TUNNELS {
            let describe = DescribeResponse {
                version: "x".repeat(60_000),
                ..DescribeResponse::default()
            };
            tunnels.push(HostileAgent::announced(world, &[], &describe)?);
        }
        wait::until("the oldest tunnels are closed", PATIENCE, || {
            let count = world.culvert.tunnels(PLACE.name())?;
            ensure!(count == MAX_TUNNELS, "it has {count} tunnels");
            Ok(())
        })?;
        before.check_memory(&mut world.culvert.proxy, 32 << 20, "twice as many tunnels")?;
        bystanders.check(world, "edge-1")?;
        world.wait_proxy_log(
            "tunnel down",
            &[("node", PLACE.name()), ("reason", "too many tunnels")],
        )?;
        drop(tunnels);
        before.wait_restored(&world.culvert.proxy)
    });
}

/// The numbers of a node's tunnels.
fn tunnels_of(world: &World<'_>, node: &str) -> Result<Vec<u64>> {
    let tunnels = world.tunnels_of(node)?;
    let numbers = tunnels.iter().map(|tunnel| tunnel["tunnel"].as_u64());
    Ok(numbers.flatten().collect())
}

/// The proxy's list of nodes with their addresses, VIPs and ports.
fn addresses(world: &World<'_>) -> Result<String> {
    let list = workspace::output(&mut world.culvert.control(&["nodes", "-o", "json"]))?;
    let list: Value = serde_json::from_str(&list)?;
    let mut addresses = String::new();
    for node in list["nodes"].as_array().context("no list")? {
        for field in ["node", "addresses", "vip4", "vip6", "ports"] {
            addresses += &format!("{} ", node[field]);
        }
        addresses.push('\n');
    }
    Ok(addresses)
}
