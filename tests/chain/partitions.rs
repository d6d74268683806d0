//! Three proxies on three hosts of the cloud, and cuts between these hosts: one way, so that a
//! connection is half open, and both ways.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::cloud_host::CloudHost;
use culvert_lab::culvert::Options;
use culvert_lab::cut::Cut;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, wait, workspace};

use crate::connect;
use crate::proxies::{self, FIRST};
use crate::world::{self, ECHO, FORBIDDEN, GREET, World};
use culvert_lab::pki::{Authority, text};

const EDGES: &[Host] = &[Host::Edge1];
const SECOND: u16 = 5;
const THIRD: u16 = 6;
const ALL: [u16; 3] = [FIRST, SECOND, THIRD];
/// A peer that is silent is given up after 8 s, and forgotten 15 s later.
const TIME: Duration = Duration::from_secs(90);
/// The admin port of a second agent on a host.
const SECOND_AGENT: u16 = 7430;

/// The host of proxy `number`.
fn host(number: u16) -> CloudHost {
    match number {
        FIRST => CloudHost::First,
        SECOND => CloudHost::Second,
        _ => CloudHost::Third,
    }
}

/// Where agents reach proxy `number`.
fn for_agents(number: u16) -> String {
    format!("{}:7{number}00", host(number).address())
}

fn for_peers(number: u16) -> String {
    format!("{}:{}", host(number).address(), proxies::peer_port(number))
}

/// Each proxy is told of all three, itself included.
fn peer_flags() -> Vec<String> {
    let flags = |number| ["--peer".to_owned(), for_peers(number)];
    ALL.into_iter().flat_map(flags).collect()
}

/// Three proxies of one authority; the agent has tunnels at these ones.
fn held_at(numbers: &[u16]) -> impl FnOnce(&Lab) -> Result<Options> {
    move |lab| {
        let mut options = proxies::prepare(lab, EDGES)?;
        options.proxy.extend(peer_flags());
        for number in numbers {
            options
                .agent
                .extend(["--proxy".to_owned(), for_agents(*number)]);
        }
        Ok(options)
    }
}

/// Starts the other two.
fn start_others(world: &World<'_>) -> Result<[Process; 2]> {
    CloudHost::add_all(world.lab)?;
    let start = |number| {
        let authority = operator(world.lab).proxy_flags();
        let further = [&authority[..], &proxies::nodes(world), &peer_flags()].concat();
        proxies::start_on(world, number, (host(number), &[]), &further)
    };
    Ok([start(SECOND)?, start(THIRD)?])
}

fn operator(lab: &Lab) -> Authority {
    Authority::at(lab.site(Host::Cloud).file("operator"))
}

/// Starts another agent of edge-1 with tunnels to proxy `number` only, which dials these ports.
fn agent_at(world: &World<'_>, number: u16, ports: &[u16]) -> Result<Process> {
    let site = world.lab.site(Host::Edge1);
    let mut command = site.command(workspace::binary("culvert-agent"));
    command.env("CULVERT_LOG_FORMAT", "json");
    command.args(["--state-dir", &text(&site.file("agent"))]);
    command.args(["--proxy", &for_agents(number), "--proxies", "1"]);
    command.args(["--admin-listen", &format!("127.0.0.1:{SECOND_AGENT}")]);
    for port in ports {
        command.args(["--port", &port.to_string()]);
    }
    site.start_process("second-agent", &mut command)
}

/// What a cut drops of the packets between two hosts.
#[derive(Clone, Copy, Debug)]
enum Dropped {
    Sent,
    Received,
    All,
}

impl Dropped {
    const EACH: [Self; 3] = [Self::Sent, Self::Received, Self::All];

    /// Cuts proxy `one` from proxy `other`, until the result is dropped.
    fn between(self, lab: &Lab, one: u16, other: u16) -> Result<Vec<Cut>> {
        let one = host(one);
        let other = host(other);
        let ways = match self {
            Self::Sent => vec![(one, other)],
            Self::Received => vec![(other, one)],
            Self::All => vec![(one, other), (other, one)],
        };
        ways.into_iter()
            .map(|(from, to)| Cut::one_way(lab, from, to))
            .collect()
    }
}

fn greets_through(world: &World<'_>, number: u16) -> Result<()> {
    let target = format!("edge-1:{GREET}");
    connect::check_greeting(&proxies::connect_socket(world, number), &target)
}

fn wait_greets_through(world: &World<'_>, number: u16) -> Result<()> {
    let what = format!("proxy {number} reaches the node");
    wait::until(&what, TIME, || greets_through(world, number))
}

/// Fails unless proxy `number` lists that many peers, each with a link.
fn check_peers(world: &World<'_>, number: u16, count: usize) -> Result<()> {
    let peers = proxies::peers(world, number)?;
    ensure!(
        peers.len() == count && proxies::linked(&peers) == count,
        "{number}: {peers:#?}"
    );
    Ok(())
}

fn wait_all_linked(world: &World<'_>) -> Result<()> {
    wait::until("each proxy is linked to each other one", TIME, || {
        ALL.into_iter()
            .try_for_each(|number| check_peers(world, number, 2))
    })
}

/// Tries again and again until `done`. In the meantime each attempt must succeed.
fn throughout(
    what: &str,
    mut attempt: impl FnMut() -> Result<()>,
    done: impl Fn() -> Result<()>,
) -> Result<()> {
    wait::until(what, TIME, || match attempt() {
        Ok(()) => done().map(Ok),
        failed @ Err(_) => Ok(failed.context("in the meantime")),
    })?
}

#[test]
fn a_peer_behind_a_cut_is_forgotten_and_no_connection_fails_while_another_one_has_the_node() {
    world::prepared(EDGES, held_at(&[FIRST, SECOND]), |world| {
        let _others = start_others(world)?;
        wait_all_linked(world)?;
        for dropped in Dropped::EACH {
            wait::until("two proxies have the node", TIME, || {
                let explained = proxies::why(world, THIRD, "edge-1")?;
                let holders = explained.matches(" at proxy ").count();
                ensure!(holders == 2, "{explained}");
                Ok(())
            })?;
            let cut = dropped.between(world.lab, THIRD, FIRST)?;
            for number in [THIRD, FIRST] {
                let what = format!("{dropped:?}: proxy {number} forgets the peer");
                throughout(
                    &what,
                    || greets_through(world, number),
                    || check_peers(world, number, 1),
                )?;
            }
            check_peers(world, SECOND, 2)?;
            drop(cut);
            wait_all_linked(world)?;
        }
        Ok(())
    });
}

#[test]
fn a_node_behind_a_cut_is_offline_and_connections_fail_with_a_reason_in_time() {
    world::prepared(EDGES, held_at(&[FIRST]), |world| {
        let _others = start_others(world)?;
        wait_all_linked(world)?;
        let socket = proxies::connect_socket(world, THIRD);
        for dropped in Dropped::EACH {
            wait_greets_through(world, THIRD)?;
            let cut = dropped.between(world.lab, THIRD, FIRST)?;
            let fails = || {
                let target = format!("edge-1:{GREET}");
                let answer = connect::answer_at(&socket, &target, connect::GREETING.len())?;
                ensure!(answer.head.starts_with("HTTP/1.1 50"), "{answer:?}");
                Ok(())
            };
            let offline = || {
                let explained = proxies::why(world, THIRD, "edge-1")?;
                ensure!(explained.contains("offline"), "{explained}");
                Ok(())
            };
            throughout(&format!("{dropped:?}: it is offline"), fails, offline)?;
            greets_through(world, SECOND)?;
            drop(cut);
        }
        wait_greets_through(world, THIRD)
    });
}

#[test]
fn of_two_agents_of_a_node_the_later_one_serves_at_every_proxy_after_a_partition() {
    world::prepared(EDGES, held_at(&[FIRST]), |world| {
        let _others = start_others(world)?;
        wait_all_linked(world)?;
        let cuts = [FIRST, THIRD].map(|number| Dropped::All.between(world.lab, SECOND, number));
        let cuts: Vec<_> = cuts.into_iter().collect::<Result<_>>()?;
        // The earlier agent, which runs on, does not dial this port.
        let _later = agent_at(world, SECOND, &[ECHO, FORBIDDEN])?;
        let later_serves = |number| {
            let socket = proxies::connect_socket(world, number);
            let answer = connect::answer_at(&socket, &format!("edge-1:{FORBIDDEN}"), 0)?;
            ensure!(answer.is_established(), "proxy {number}: {answer:?}");
            Ok(())
        };
        wait::until("the later agent serves", TIME, || later_serves(SECOND))?;
        for number in [FIRST, THIRD] {
            let what = format!("proxy {number} has forgotten the second one");
            wait::until(&what, TIME, || check_peers(world, number, 1))?;
            let error = later_serves(number).err();
            error.with_context(|| format!("proxy {number} reaches the later agent"))?;
        }
        drop(cuts);
        for number in ALL {
            let what = format!("the later agent serves at proxy {number}");
            wait::until(&what, TIME, || later_serves(number))?;
        }
        for _ in 0..10 {
            ALL.into_iter().try_for_each(later_serves)?;
        }
        Ok(())
    });
}

#[test]
fn a_node_that_is_removed_behind_a_cut_loses_its_tunnels_when_the_cut_heals() {
    let primary = |lab: &Lab| {
        let authority = operator(lab).make()?;
        let mut options = world::proxy_options(authority.proxy_flags());
        let second = ["--peer".to_owned(), for_peers(SECOND)];
        options.proxy.extend(second);
        Ok(options)
    };
    world::prepared(EDGES, primary, |world| {
        CloudHost::add_all(world.lab)?;
        let authority = operator(world.lab).proxy_flags();
        let follow = ["--follow".to_owned(), for_peers(FIRST)];
        let further = [&authority[..], &follow].concat();
        let second = proxies::start_on(world, SECOND, (host(SECOND), &[]), &further)?;
        let _agent = agent_at(world, SECOND, &[GREET])?;
        wait_greets_through(world, SECOND)?;
        second.wait_logged("tunnel up", &[("node", "edge-1")], TIME)?;
        let cut = Dropped::All.between(world.lab, FIRST, SECOND)?;
        proxies::control(world, FIRST, &["node", "remove", "edge-1"])?;
        wait::until("the second proxy is alone", TIME, || {
            check_peers(world, SECOND, 0)
        })?;
        greets_through(world, SECOND).context("it cannot know")?;
        drop(cut);
        second.wait_logged("agent connection", &[("reason", "edge-1")], TIME)?;
        let listed = proxies::control(world, SECOND, &["nodes"])?;
        ensure!(!listed.contains("edge-1"), "{listed}");
        // It is there again, but its agents have the old certificate.
        proxies::control(world, FIRST, &["token", "create", "edge-1"])?;
        let reason = [("reason", "the certificate of edge-1 was revoked")];
        second.wait_logged("agent connection", &reason, TIME)
    });
}
