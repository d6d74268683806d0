//! Tests of steering: by name and by address, by each mechanism, and nothing that must not be
//! steered.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::dns::{self, Answer};
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Failure, Phase, Report};
use culvert_lab::wait::PATIENCE;

use crate::world::{self, FORBIDDEN, GREET, World};

fn steered_by(mechanism: &str) -> Options {
    Options {
        redirector: vec!["--mechanism".into(), mechanism.into()],
        ..Options::default()
    }
}

#[test]
fn both_mechanisms_together_reach_every_node() {
    world::with(&Host::EDGES, steered_by("both"), |world| {
        every_node_answers(world)
    });
}

#[test]
fn connect_hooks_alone_reach_every_node() {
    world::with(&Host::EDGES, steered_by("ebpf"), |world| {
        every_node_answers(world)?;
        let mapped = world.greeting("[::ffff:10.0.3.7]")?;
        ensure!(mapped == "hello from edge-1", "v4-mapped: {mapped}");
        Ok(())
    });
}

#[test]
fn nftables_alone_reaches_every_node() {
    world::with(&Host::EDGES, steered_by("nftables"), |world| {
        every_node_answers(world)
    });
}

#[test]
fn pods_are_steered_by_connect_hooks_alone() {
    a_pod_reaches_nodes("ebpf");
}

#[test]
fn pods_are_steered_by_nftables_alone() {
    a_pod_reaches_nodes("nftables");
}

fn a_pod_reaches_nodes(mechanism: &str) {
    world::with(
        &[Host::Edge1, Host::Edge2],
        steered_by(mechanism),
        |world| {
            let pod = world.lab.add_pod()?;
            for (host, node) in [
                ("10.0.3.7", "edge-1"),
                ("edge-1", "edge-1"),
                ("edge-2", "edge-2"),
            ] {
                let mut client = world.lab.site(Host::Cloud).command_in(&pod, "timeout");
                // The pod's network has no IPv6, so only the IPv4 address of a name is looked up.
                let host = dns::ask(world.lab, host, dns::A)
                    .ok()
                    .and_then(Answer::first)
                    .unwrap_or_else(|| host.to_owned());
                client.arg("10").arg(world::xtask());
                let greet = Client::listen(format!("{host}:{GREET}"));
                let greeting = world::report(greet.complete(&mut client)?)?;
                ensure!(
                    greeting == Report::Answer(format!("hello from {node}")),
                    "{host}: {greeting:?}"
                );
            }
            Ok(())
        },
    );
}

/// Each node must answer at its own address, at each name, and at each VIP of both families.
fn every_node_answers(world: &World<'_>) -> Result<()> {
    let mut targets = vec![("10.0.3.7".to_owned(), "edge-1")];
    for host in Host::EDGES {
        targets.push((host.name().to_owned(), host.name()));
        targets.push((format!("{}.edge.internal", host.name()), host.name()));
        targets.push((world.vip(host, "vip4")?.to_string(), host.name()));
        targets.push((format!("[{}]", world.vip(host, "vip6")?), host.name()));
    }
    for (host, node) in targets {
        world.check_greeting(&host, node)?;
    }
    Ok(())
}

#[test]
fn two_nodes_with_one_address_are_refused_by_address_and_reached_by_name() {
    world::with(&Host::EDGES, Options::default(), |world| {
        world.failing_client(&Client::listen(format!("192.168.1.10:{GREET}")))?;
        world.wait_proxy_log(
            "stream ended",
            &[
                ("original_dst", "192.168.1.10"),
                ("reason", "edge-2 and edge-3"),
            ],
        )?;
        world.check_greeting("edge-2", "edge-2")?;
        world.check_greeting("edge-3", "edge-3")
    });
}

#[test]
fn without_a_mechanism_names_resolve_and_nothing_is_steered() {
    world::with(&[Host::Edge1], steered_by("none"), |world| {
        let vip = world.vip(Host::Edge1, "vip4")?;
        ensure!(
            dns::ask(world.lab, "edge-1.edge.internal", dns::A)? == Answer::Addresses(vec![vip]),
            "its name"
        );
        let alone = world.failing_client(&Client::dial(
            format!("10.0.3.7:{GREET}"),
            Duration::from_millis(1_000),
        ))?;
        ensure!(alone.is(Phase::Connect, Cause::TimedOut), "{alone}");
        Ok(())
    });
}

#[test]
fn a_direct_connect_to_the_intercept_port_is_reset() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let failure =
            world.failing_client(&Client::talk("203.0.113.1:7410", "GET / HTTP/1.0\r\n\r\n"))?;
        ensure!(failure.cause == Cause::Reset, "{failure}");
        Ok(())
    });
}

#[test]
fn packets_of_another_host_to_an_intercept_port_are_dropped() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let dial = |from: Host, port: u16| {
            let target = format!("203.0.113.1:{port}");
            let dial = Client::dial(target, Duration::from_millis(1_500));
            match world::client_at(world.lab, from, &dial) {
                Ok(_) => Ok(None),
                Err(error) => error.downcast::<Failure>().map(Some),
            }
        };
        ensure!(
            dial(Host::Edge1, 7400)?.is_none(),
            "the edge cannot reach the cloud at all"
        );
        for port in 7410..=7413 {
            let edge = dial(Host::Edge1, port)?;
            let own = dial(Host::Cloud, port)?;
            // The proxy accepts connections of its host and resets them; packets of other hosts are
            // dropped.
            ensure!(
                own.as_ref()
                    .is_none_or(|failure| failure.cause == Cause::Reset),
                "{port} from the host itself: {own:?}"
            );
            ensure!(
                edge.as_ref()
                    .is_some_and(|failure| failure.is(Phase::Connect, Cause::TimedOut)),
                "{port} from the edge: {edge:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_port_that_no_node_has_is_left_alone() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        // If it were steered, the local proxy would accept the connection. If not, there is no
        // answer.
        world.client(&Client::dial(
            format!("10.0.3.7:{GREET}"),
            Duration::from_millis(1_000),
        ))?;
        let alone = world.failing_client(&Client::dial(
            format!("10.0.3.7:{FORBIDDEN}"),
            Duration::from_millis(1_000),
        ))?;
        ensure!(alone.is(Phase::Connect, Cause::TimedOut), "{alone}");
        Ok(())
    });
}

#[test]
fn names_have_addresses_and_unknown_ones_do_not_exist() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let vip4 = world.vip(Host::Edge1, "vip4")?;
        let vip6 = world.vip(Host::Edge1, "vip6")?;
        for name in ["edge-1", "edge-1.edge.internal", "EDGE-1.edge.internal"] {
            ensure!(
                dns::ask(world.lab, name, dns::A)? == Answer::Addresses(vec![vip4]),
                "A of {name}"
            );
            ensure!(
                dns::ask(world.lab, name, dns::AAAA)? == Answer::Addresses(vec![vip6]),
                "AAAA of {name}"
            );
        }
        ensure!(
            dns::ask(world.lab, "edge-1.edge.internal", dns::TXT)? == Answer::NoData,
            "TXT of a node"
        );
        ensure!(
            dns::ask(world.lab, "edge-9.edge.internal", dns::A)? == Answer::NoSuchName,
            "a name in the zone that no node has"
        );
        ensure!(
            dns::ask(world.lab, "example.org", dns::A)? == Answer::Refused,
            "a name of somebody else"
        );
        Ok(())
    });
}

#[test]
fn bpftool_shows_the_maps_with_their_fields() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let cloud = world.lab.site(Host::Cloud);
        let maps = cloud.output("find", ["/sys/fs/bpf/culvert/v1/maps", "-name", "cv_*"])?;
        ensure!(maps.lines().count() >= 3, "pinned maps: {maps}");
        let destinations = maps
            .lines()
            .find(|path| path.contains("dest") || path.contains("dst"))
            .context("no map of destinations")?;
        let dump = cloud.output("bpftool", ["map", "dump", "pinned", destinations])?;
        ensure!(
            dump.contains("\"port\"") && dump.contains("\"addr"),
            "{dump}"
        );
        Ok(())
    });
}

#[test]
fn uninstall_leaves_nothing() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let cloud = world.lab.site(Host::Cloud);
        world.culvert.redirector.terminate(PATIENCE)?;
        let state = cloud.file("redirector").display().to_string();
        cloud.output(
            culvert_lab::workspace::binary("culvert-redirector"),
            ["uninstall", "--state-dir", &state],
        )?;
        let pins = cloud.output("find", ["/sys/fs/bpf", "-name", "*culvert*"])?;
        ensure!(pins.is_empty(), "pins: {pins}");
        let tables = cloud.output("nft", ["list", "tables"])?;
        ensure!(!tables.contains("culvert"), "tables: {tables}");
        let routes = cloud.output("ip", ["route", "show", "table", "all", "198.18.0.0/15"])?;
        ensure!(routes.is_empty(), "routes: {routes}");
        let hooks = cloud.output(
            "bpftool",
            ["cgroup", "show", &cloud.cgroup().display().to_string()],
        )?;
        ensure!(!hooks.contains("cgroup_"), "hooks: {hooks}");
        Ok(())
    });
}

#[test]
fn a_client_of_the_host_is_steered_to_a_loopback_address() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let _held = world.hold(format!("10.0.3.7:{}", world::ECHO), 1)?;
        let sockets = world.lab.site(Host::Cloud).output(
            "ss",
            ["-Htn", "state", "established", "dst", "127.64.0.0/10"],
        )?;
        let steered = sockets
            .lines()
            .filter_map(|line| line.split_whitespace().last()?.parse::<SocketAddr>().ok());
        ensure!(
            steered
                .into_iter()
                .any(|peer| (7410..=7413).contains(&peer.port())),
            "no connection to an intercept port:\n{sockets}"
        );
        Ok(())
    });
}
