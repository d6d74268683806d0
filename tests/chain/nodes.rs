//! Nodes with two agents, with a changed address or without IPv4; and addresses that only look like
//! a node's.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Culvert, Options, PROXY_ADMIN, PROXY_FOR_AGENTS};
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, workspace};

use crate::world::{self, ECHO, GREET, World};

const EDGE: &[Host] = &[Host::Edge1];

/// In a lab a dead peer is noticed within 18 s; then the agent dials at once.
const BACK: Duration = Duration::from_secs(30);

const SECOND_ADMIN: u16 = 7430;

fn one_tunnel() -> Options {
    Options {
        agent: world::one_tunnel(),
        ..Options::default()
    }
}

/// apiserver-network-proxy #888, #889 and #894: the end of one stream closed the connections of the
/// other.
#[test]
fn two_agents_with_one_name_keep_their_own_streams() {
    world::with(EDGE, one_tunnel(), |world| {
        let target = format!("edge-1:{ECHO}");
        let mut first = world.hold(&target, 3)?;
        for _ in 0..2 {
            let mut second_agent = second_agent(world)?;
            let _second = world.hold(&target, 3)?;
            let streams = world
                .lab
                .site(Host::Edge1)
                .json(SECOND_ADMIN, "/debug/streams")?;
            ensure!(
                streams.as_array().map(Vec::len) == Some(3),
                "the later agent has not the later streams: {streams}"
            );
            first.check()?;
            second_agent.kill()?;
            wait_for_tunnels(world, 1)?;
            first
                .check()
                .context("the earlier agent's streams, after the later one's death")?;
            world.check_greeting("edge-1", "edge-1")?;
        }
        let _second_agent = second_agent(world)?;
        let mut second = world.hold(&target, 3)?;
        world.culvert.agent(0).kill()?;
        wait_for_tunnels(world, 1)?;
        second
            .check()
            .context("the later agent's streams, after the earlier one's death")?;
        world.check_greeting("edge-1", "edge-1")
    });
}

/// Starts another agent of edge-1, and waits until the proxy has its tunnel too.
fn second_agent(world: &World<'_>) -> Result<Process> {
    let site = world.lab.site(Host::Edge1);
    let mut command = site.command(workspace::binary("culvert-agent"));
    command
        .arg("--state-dir")
        .arg(site.file("agent"))
        .args(["--tunnels", "1"]);
    command.args(["--admin-listen", &format!("127.0.0.1:{SECOND_ADMIN}")]);
    for port in [ECHO, GREET] {
        command.args(["--port", &port.to_string()]);
    }
    let agent = site.start_process("second-agent", &mut command)?;
    wait_for_tunnels(world, 2)?;
    Ok(agent)
}

fn wait_for_tunnels(world: &World<'_>, count: usize) -> Result<()> {
    wait::until(&format!("edge-1 has {count} tunnels"), PATIENCE, || {
        let now = world.culvert.tunnels("edge-1")?;
        ensure!(now == count, "it has {now}");
        Ok(())
    })
}

#[test]
fn a_proxy_without_nodes_says_how_to_add_the_first_one_and_one_with_nodes_does_not() {
    world::in_lab(|lab| {
        let options = world::with_defaults(Options::default());
        let mut culvert = Culvert::start(lab, &[], options)?;
        let hints = |culvert: &Culvert<'_>| {
            let hint = "culvert token create NODE";
            culvert.proxy.log().matches(hint).count()
        };
        wait::until("the log names the next command", PATIENCE, || {
            ensure!(hints(&culvert) == 1, "{}", culvert.proxy.log());
            Ok(())
        })?;
        culvert.create_token(Host::Edge1, &[])?;
        culvert.proxy.terminate(PATIENCE)?;
        culvert.restart_proxy()?;
        ensure!(hints(&culvert) == 1, "{}", culvert.proxy.log());
        Ok(())
    });
}

/// kubeedge #6965: after a change of Wi-Fi a node was away for a quarter of an hour.
#[test]
fn an_agent_whose_host_changes_its_address_is_back_within_half_a_minute() {
    world::with(EDGE, Options::default(), |world| {
        world.check_greeting("edge-1", "edge-1")?;
        router(
            world.lab,
            &["addr", "add", "198.51.100.14/30", "dev", "site1"],
        )?;
        let ip = |args: &[&str]| world.lab.site(Host::Edge1).output("ip", args).map(drop);
        ip(&["addr", "add", "198.51.100.13/30", "dev", "wan"])?;
        ip(&["addr", "del", "198.51.100.1/30", "dev", "wan"])?;
        ip(&["route", "replace", "default", "via", "198.51.100.14"])?;
        wait::until("tunnels come from the new address", BACK, || {
            let tunnels = world
                .lab
                .site(Host::Cloud)
                .json(PROXY_ADMIN, "/debug/tunnels")?
                .to_string();
            ensure!(tunnels.contains("198.51.100.13"), "{tunnels}");
            Ok(())
        })?;
        world.check_greeting("edge-1", "edge-1")?;
        world.culvert.agent(0).check()
    });
}

/// Runs a command of the router between the sites.
fn router(lab: &Lab, args: &[&str]) -> Result<()> {
    let netns = format!("{}-internet", lab.name().prefix());
    workspace::output(Command::new("ip").args(["-n", &netns]).args(args))?;
    Ok(())
}

pub(crate) const EDGE_V6: &str = "fd00:10:0:3::7";

/// Other projects split addresses at the first colon.
#[test]
fn a_node_without_an_ipv4_address_is_reached_by_name_and_by_its_ipv6_address() {
    world::in_lab(|lab| {
        remove_ipv4_from_the_edge(lab)?;
        let backends = world::serve(lab, Host::Edge1)?;
        let proxy = "[fd00:203:0:113::1]:7400";
        let options = world::with_defaults(world::proxy_options(["--advertise", proxy]));
        let mut world = World::of(lab, Culvert::start(lab, &[], options)?, vec![backends]);
        let settings = ["--address", EDGE_V6, "--port", "9004"].map(str::to_owned);
        let mut join = world.culvert.create_bare_token(Host::Edge1, &settings)?;
        // The proxy prints two addresses of itself; this node can reach only one.
        let other = join
            .iter()
            .position(|word| word == PROXY_FOR_AGENTS)
            .context("no IPv4 way in the join command")?;
        join.drain(other - 1..=other);
        // It is quoted for a shell, because of its brackets.
        let quoted = join
            .iter()
            .position(|word| *word == format!("'{proxy}'"))
            .with_context(|| format!("{join:?}"))?;
        join[quoted] = proxy.to_owned();
        world.culvert.join(Host::Edge1, &join)?;
        world.culvert.start_agent(Host::Edge1)?;
        world.culvert.wait_online(Host::Edge1)?;
        let by_address = format!("[{EDGE_V6}]");
        world.wait_greeting(&by_address, PATIENCE)?;
        for host in [
            by_address,
            "edge-1".into(),
            world.vip(Host::Edge1, "vip4")?.to_string(),
        ] {
            world.check_greeting(&host, "edge-1")?;
        }
        Ok(())
    });
}

/// Leaves edge-1 only loopback and IPv6, with a route to the cloud.
pub(crate) fn remove_ipv4_from_the_edge(lab: &Lab) -> Result<()> {
    router(
        lab,
        &[
            "addr",
            "add",
            "fd00:198:51:100::2/64",
            "dev",
            "site1",
            "nodad",
        ],
    )?;
    let netns = format!("{}-internet", lab.name().prefix());
    let forward = [
        "netns",
        "exec",
        &netns,
        "sysctl",
        "-qw",
        "net.ipv6.conf.all.forwarding=1",
    ];
    workspace::output(Command::new("ip").args(forward))?;
    let edge = lab.site(Host::Edge1);
    edge.output("ip", ["addr", "del", "10.0.3.7/32", "dev", "lo"])?;
    edge.output("ip", ["-4", "addr", "flush", "dev", "wan"])?;
    edge.output(
        "ip",
        [
            "addr",
            "add",
            &format!("{EDGE_V6}/128"),
            "dev",
            "lo",
            "nodad",
        ],
    )?;
    edge.output(
        "ip",
        [
            "addr",
            "add",
            "fd00:198:51:100::1/64",
            "dev",
            "wan",
            "nodad",
        ],
    )?;
    edge.output(
        "ip",
        [
            "route",
            "add",
            "default",
            "via",
            "fd00:198:51:100::2",
            "dev",
            "wan",
        ],
    )?;
    Ok(())
}

/// kubeedge #4917 and #6193: rules for a port captured every connection to that port, including
/// NodePorts and the `kubernetes` Service.
#[test]
fn a_node_s_port_on_any_other_address_is_left_to_whoever_serves_it() {
    world::with(EDGE, Options::default(), |world| {
        let cloud = world.lab.site(Host::Cloud);
        let mut server = cloud.command(world::xtask());
        let server = cloud.start_process(
            "other-backend",
            server.args(["probe", "serve", "30100=greet"]),
        )?;
        wait::until("it listens", PATIENCE, || {
            server
                .log()
                .contains("ready")
                .then_some(())
                .context("not yet")
        })?;
        // A NodePort with the same number as a port of edge-1.
        let rule = format!("fib daddr type local tcp dport {GREET} redirect to :30100;");
        let table = format!(
            "table ip nodeport {{ chain pre {{ type nat hook prerouting priority dstnat; \
             {rule} }}; \
             chain out {{ type nat hook output priority -100; {rule} }}; }}"
        );
        cloud.output("nft", [table])?;
        let pod = world.lab.add_pod()?;
        let node = format!("203.0.113.1:{GREET}");
        let bridge = format!("10.244.0.1:{GREET}");
        let in_the_pod = |target: &str| {
            let mut client = cloud.command_in(&pod, "timeout");
            client.arg("10").arg(world::xtask());
            world::report(Client::listen(target).complete(&mut client)?)
        };
        for (who, greeting, host) in [
            (
                "another host",
                world::client_at(world.lab, Host::Edge2, &Client::listen(&node))?,
                "cloud",
            ),
            ("the host", world.client(&Client::listen(&node))?, "cloud"),
            (
                "the host to its loopback",
                world.client(&Client::listen(format!("127.0.0.1:{GREET}")))?,
                "cloud",
            ),
            ("a pod", in_the_pod(&bridge)?, "cloud"),
            (
                "the host to edge-1",
                world.client(&Client::listen(format!("10.0.3.7:{GREET}")))?,
                "edge-1",
            ),
            (
                "a pod to edge-1",
                in_the_pod(&format!("10.0.3.7:{GREET}"))?,
                "edge-1",
            ),
        ] {
            ensure!(
                greeting == Report::Answer(format!("hello from {host}")),
                "{who}: {greeting:?}"
            );
        }
        Ok(())
    });
}

/// k0s #4493, kubermatic #16303: the cloud end is ready only if it has agents, and gets agents only
/// if it is ready.
#[test]
fn a_proxy_and_a_redirector_are_ready_before_any_agent_is_there() {
    world::with(&[], Options::default(), |world| {
        // `Culvert::start` has waited for both.
        let tunnels = world
            .lab
            .site(Host::Cloud)
            .json(PROXY_ADMIN, "/debug/tunnels")?;
        ensure!(tunnels.as_array().is_some_and(Vec::is_empty), "{tunnels}");
        world
            .lab
            .site(Host::Cloud)
            .http_get(PROXY_ADMIN, "/readyz")
            .map(drop)
    });
}

/// apiserver-network-proxy #600: operators could not follow a connection from one hop to the next.
#[test]
fn a_stream_has_one_number_in_the_pages_and_logs_of_proxy_and_agent() {
    world::with(EDGE, Options::default(), |world| {
        let held = world.hold(format!("edge-1:{ECHO}"), 3)?;
        let numbers = |host: Host, admin: u16| -> Result<BTreeSet<u64>> {
            let streams = world.lab.site(host).json(admin, "/debug/streams")?;
            Ok(streams
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|stream| stream["stream"].as_u64())
                .collect())
        };
        let proxy = numbers(Host::Cloud, PROXY_ADMIN)?;
        let agent = numbers(Host::Edge1, AGENT_ADMIN)?;
        ensure!(
            proxy.len() == 3 && proxy == agent,
            "proxy {proxy:?}, agent {agent:?}"
        );
        drop(held);
        world.wait_for_no_streams()?;
        wait::until("both logs have them", PATIENCE, || {
            for (who, lines) in [
                ("proxy", world.culvert.proxy.logged("stream ended", &[])),
                ("agent", world.culvert.agent(0).logged("stream ended", &[])),
            ] {
                let logged: BTreeSet<u64> = lines
                    .iter()
                    .filter_map(|line| line.field("stream").parse().ok())
                    .collect();
                ensure!(
                    proxy.is_subset(&logged),
                    "{who}: {logged:?}, not all of {proxy:?}"
                );
            }
            Ok(())
        })
    });
}

#[test]
fn each_node_of_a_file_may_use_the_token_of_the_group_once() {
    world::with(EDGE, Options::default(), |world| {
        let file = world.lab.site(Host::Cloud).file("nodes");
        std::fs::write(&file, "edge-2\nedge-3\n")?;
        let file = file.display().to_string();
        let command = world
            .culvert
            .create_group_token(&["--nodes", &file, "--group"])?;
        let (machine, command) = command.split_last().context("no command")?;
        ensure!(machine == r#""$(hostname)""#, "{machine}");
        let join = |node: &str| [command, &[node.to_owned()]].concat();
        world.culvert.join(Host::Edge2, &join("edge-2"))?;
        for (node, words) in [
            ("edge-2", "used already"),
            ("edge-1", "not for node edge-1"),
        ] {
            let error = world.culvert.join(Host::Edge3, &join(node));
            let error = error.err().context("it joined")?.to_string();
            ensure!(error.contains(words), "{node}: {error}");
        }
        world.culvert.join(Host::Edge3, &join("edge-3"))?;
        let listed = workspace::output(&mut world.culvert.control(&["token", "list"]))?;
        for node in ["edge-2", "edge-3"] {
            let used = |line: &str| line.contains(node) && line.contains("used");
            ensure!(listed.lines().any(used), "{listed}");
        }
        Ok(())
    });
}

#[test]
fn a_file_of_nodes_gets_a_join_command_for_each() {
    world::with(EDGE, Options::default(), |world| {
        let file = world.lab.site(Host::Cloud).file("nodes");
        let path = file.display().to_string();
        let create = |culvert: &Culvert<'_>| {
            workspace::output(&mut culvert.control(&["token", "create", "--nodes", &path]))
        };
        std::fs::write(&file, "edge-11 192.168.7.11\nedge-12 192.168.7.x\n")?;
        let error = create(&world.culvert)
            .err()
            .context("a wrong file is used")?;
        let words = "line 2: \"192.168.7.x\" is not an IP address";
        ensure!(error.to_string().contains(words), "{error}");
        let list = |culvert: &Culvert<'_>| workspace::output(&mut culvert.control(&["nodes"]));
        let before = list(&world.culvert)?;
        ensure!(!before.contains("edge-11"), "it was used in part: {before}");

        std::fs::write(&file, "# site 7\nedge-11 192.168.7.11\nedge-12\n")?;
        let created = create(&world.culvert)?;
        let commands: Vec<_> = created
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .collect();
        let [("edge-11", first), ("edge-12", second)] = commands[..] else {
            anyhow::bail!("not a command for each node: {created}");
        };
        let token = |command: &str| command.split(" --token ").nth(1).map(str::to_owned);
        ensure!(
            token(first).is_some() && token(first) != token(second),
            "not a token for each: {created}"
        );
        let after = list(&world.culvert)?;
        ensure!(
            after.contains("edge-11")
                && after.contains("192.168.7.11")
                && after.contains("edge-12"),
            "{after}"
        );
        Ok(())
    });
}
