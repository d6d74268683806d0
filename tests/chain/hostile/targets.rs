//! A hostile proxy that tries to explore the edge's network.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::AGENT_ADMIN;
use culvert_lab::host::Host;
use culvert_lab::wait::PATIENCE;
use culvert_tunnel::proto::tunnel::{DialCode, Open};

use super::wire::Wire;
use super::{Bystanders, proxy};
use crate::world::{ECHO, FORBIDDEN, GREET};

/// Addresses of services on edge-1.
const SERVICES: [&str; 2] = ["10.96.0.10", "10.96.0.11"];
/// The agent's timeout for everything that precedes a tunnel.
const GREETING_TIME: Duration = Duration::from_secs(15);

#[test]
fn a_hostile_proxy_has_the_agent_dial_nothing_outside_its_list() {
    proxy::with_hostile_proxy(|world, hostile| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        let mut tunnel = hostile.tunnel()?;
        let edge = world.lab.site(Host::Edge1);
        // Like the interfaces of kube-proxy in IPVS mode: one is recognised by its name, one
        // because it is a dummy interface.
        for (interface, peer, address) in [
            ("kube-ipvs0", "ipvs-far", SERVICES[0]),
            ("services", "services-far", SERVICES[1]),
        ] {
            let ip = |args: &[&str]| edge.output("ip", args).map(drop);
            ip(&[
                "link", "add", interface, "type", "veth", "peer", "name", peer,
            ])?;
            ip(&["link", "set", interface, "arp", "off"])?;
            ip(&["addr", "add", &format!("{address}/32"), "dev", interface])?;
        }
        let dialled = || edge.metric(AGENT_ADMIN, "culvert_agent_dials_total{outcome=\"ok\"}");
        let before = dialled()?;
        for (address, port, hops, expected) in targets() {
            let open = Open {
                address: address.to_owned(),
                port,
                hops,
                ..Open::default()
            };
            let stream = tunnel.open(&open)?;
            let answer = tunnel.dialled(stream)?;
            ensure!(
                answer
                    .as_ref()
                    .is_some_and(|answer| answer.code() == expected),
                "{open:?}: {answer:?}"
            );
        }
        ensure!(dialled()? == before, "something was dialled");
        world.culvert.agent(0).wait_logged(
            "stream ended",
            &[("outcome", "forbidden"), ("reason", "192.168.1.10:9004")],
            PATIENCE,
        )?;
        // Targets in the allow-list are still dialled.
        let stream = tunnel.open(&Open {
            address: "10.0.3.7".into(),
            port: GREET.into(),
            ..Open::default()
        })?;
        let answer = tunnel.dialled(stream)?;
        ensure!(
            answer
                .as_ref()
                .is_some_and(|answer| answer.code() == DialCode::Ok),
            "{answer:?}"
        );
        bystanders.check(world, "edge-1")
    });
}

/// Address, port, hops, and the agent's answer.
fn targets() -> Vec<(&'static str, u32, u32, DialCode)> {
    let elsewhere = [
        // Other nodes, the cloud, its proxy, the router.
        "192.168.1.10",
        "203.0.113.1",
        "198.51.100.2",
        "fd00:203:0:113::1",
        // Services, whose addresses this host has only for its own clients.
        SERVICES[0],
        SERVICES[1],
        "::ffff:192.168.1.10",
        // Metadata services of clouds, broadcast, unspecified, link-local and multicast addresses.
        "169.254.169.254",
        "255.255.255.255",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
    ];
    let no_address = [
        "localhost",
        "edge-1",
        "10.0.3.7:9001",
        "10.0.3.7 ",
        "10.3.7",
        "0x0a.0.3.7",
        "fe80::1%lo",
        "[::1]",
        "/run/x",
    ];
    let mut targets: Vec<_> = elsewhere
        .into_iter()
        .map(|address| (address, GREET.into(), 0, DialCode::Forbidden))
        .collect();
    targets.extend(no_address.map(|address| (address, GREET.into(), 0, DialCode::Invalid)));
    for own in ["", "10.0.3.7", "127.0.0.1", "127.7.7.7", "::1"] {
        targets.push((own, FORBIDDEN.into(), 0, DialCode::Forbidden));
        targets.push((own, 22, 0, DialCode::Forbidden));
        targets.extend(
            [0, 65_536, 65_536 + u32::from(ECHO), u32::MAX]
                .map(|port| (own, port, 0, DialCode::Invalid)),
        );
        targets.extend([2, u32::MAX].map(|hops| (own, ECHO.into(), hops, DialCode::Invalid)));
    }
    targets
}

#[test]
fn a_proxy_that_refuses_without_end_or_says_nothing_keeps_the_agent_from_nothing() {
    proxy::with_hostile_proxy(|world, hostile| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        for (what, first, more) in [("nothing", "", ""), ("no HTTP/2", "REFU", "x")] {
            let mut connection = hostile.connection()?;
            connection.send(first.as_bytes())?;
            bystanders
                .during(world, "edge-1", || say_until_left(connection, more))?
                .context(what)?;
        }
        // The agent still sets up a tunnel to a proxy that behaves again.
        let mut tunnel = hostile.tunnel()?;
        let stream = tunnel.open(&Open {
            port: GREET.into(),
            ..Open::default()
        })?;
        ensure!(
            tunnel
                .dialled(stream)?
                .is_some_and(|answer| answer.code() == DialCode::Ok),
            "the next tunnel"
        );
        drop(tunnel);
        let mut connection = hostile.connection()?;
        connection.send(b"REFUSED \x1b[2J")?;
        bystanders
            .during(world, "edge-1", || say_until_left(connection, "x"))?
            .context("an endless reason")?;
        let no_tunnel = "no tunnel; trying again";
        let endless = [("reason", "xxx")];
        let agent = world.culvert.agent(0);
        agent.wait_logged(no_tunnel, &endless, PATIENCE)?;
        let lines = agent.logged(no_tunnel, &endless);
        ensure!(
            lines
                .iter()
                .all(|line| !line.field("reason").contains('\x1b')),
            "the log passes on what commands a terminal"
        );
        Ok(())
    });
}

/// Sends the bytes repeatedly until the agent closes; only listens if there are none.
fn say_until_left(mut connection: Wire, more: &str) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < GREETING_TIME {
        let left = if more.is_empty() {
            connection.read(1).is_err()
        } else {
            connection.send(more.as_bytes()).is_err()
        };
        if left && started.elapsed() < GREETING_TIME {
            return Ok(());
        }
    }
    bail!("the agent waits")
}
