//! Tests of proxies that follow each other on one host, under load: clients of the one before and
//! of the next one notice nothing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_daemon::{HANDOVER_TIMEOUT, HANDOVER_VERSION, Handover, Message};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Report};
use culvert_lab::process::Process;
use culvert_lab::random::Random;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, progress, workspace};
use nix::sys::signal::Signal;

use crate::connect;
use crate::proxies::{self, FIRST, SECOND, THIRD, THREE, peer_flags};
use crate::swarm::{self, Load, Steered};
use crate::world::{self, ECHO, GREET, HeldClient, SMALL, SMALL_SOURCE, World};

/// Long enough for two busy cores.
const DEADLINE: Duration = Duration::from_secs(40);
/// Downloads in progress when the proxy is told to end. They must end within its grace period, also on
/// busy cores.
const DOWNLOADS: usize = 2;

const SERVES: &str = "this proxy serves in the other one's place";
const GOES_ON: &str = "no other proxy took this one's place; it goes on";

#[test]
fn a_proxy_that_takes_the_place_of_another_refuses_nobody_and_breaks_no_stream() {
    world::with(&Host::EDGES, Options::default(), |world| {
        let mut loads = loads(world, &mut swarm::chance()?)?;
        for round in 1..=2 {
            let mut streams = Streams::start(world)?;
            let mut old = world.culvert.succeed_proxy()?;
            wait::until("the new proxy serves", DEADLINE, || {
                world.culvert.proxy.check()?;
                let served = world.culvert.proxy.logged(SERVES, &[]).len();
                ensure!(served == round, "{served} have taken over");
                Ok(())
            })?;
            wait::throughout("both run", Duration::from_secs(2), || streams.check())?;
            old.check().context("the old proxy has streams")?;
            all_answered(&mut loads, "both run")?;
            streams.end()?;
            wait_ended(&mut old)?;
            world.culvert.wait_for_proxy()?;
            workspace::output(&mut world.culvert.control(&["nodes"]))?;
            wait::throughout("the new one alone", Duration::from_secs(1), || Ok(()))?;
            all_answered(&mut loads, "the new proxy runs alone")?;
        }
        Ok(())
    });
}

#[test]
fn between_two_proxies_clients_wait_and_are_not_refused() {
    let options = world::proxy_options(["--grace", "30s"]);
    world::with(&Host::EDGES, options, |world| {
        let mut loads = loads(world, &mut swarm::chance()?)?;
        let mut streams = Streams::start(world)?;
        world.culvert.proxy.signal(Signal::SIGTERM)?;
        world.wait_missing(Host::Cloud, PROXY_ADMIN, "listeners: the proxy drains")?;
        wait::throughout(
            "it serves old and new clients",
            Duration::from_secs(2),
            || {
                world.check_greeting("10.0.3.7", "edge-1")?;
                streams.check()
            },
        )?;
        all_answered(&mut loads, "the proxy drains")?;
        streams.end()?;
        wait_ended(&mut world.culvert.proxy)?;
        let kept = "keeping the sockets of clients";
        world.culvert.redirector.wait_logged(kept, &[], PATIENCE)?;
        wait::throughout("there is no proxy", Duration::from_secs(1), || Ok(()))?;
        world.culvert.restart_proxy()?;
        world.culvert.wait_for_proxy()?;
        let taken = "the next proxy has the sockets of clients";
        world.culvert.redirector.wait_logged(taken, &[], PATIENCE)?;
        all_answered(&mut loads, "the next proxy runs")
    });
}

#[test]
fn without_load_a_proxy_told_to_end_is_gone_at_once_and_a_killed_one_refuses_at_once() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        world.wait_for_no_streams()?;
        // Far less than the grace period.
        world.culvert.proxy.terminate(PATIENCE)?;
        world.culvert.restart_proxy()?;
        world.culvert.wait_for_proxy()?;
        world.check_greeting("10.0.3.7", "edge-1")?;
        world.culvert.proxy.kill()?;
        let refused = world.failing_client(&Client::talk(format!("10.0.3.7:{ECHO}"), "x"))?;
        ensure!(refused.cause == Cause::Refused, "after kill -9: {refused}");
        Ok(())
    });
}

#[test]
fn a_proxy_whose_successor_fails_on_the_way_goes_on() {
    world::with(&Host::EDGES, Options::default(), |world| {
        let mut loads = loads(world, &mut swarm::chance()?)?;
        let mut streams = Streams::start(world)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(successor_that_dies(world))?;
        world.wait_proxy_log(GOES_ON, &[("reason", "the other process ended")])?;
        // A real one whose flags want an address that this host does not have.
        let nowhere = ["--intercept-listen", "192.0.2.1:7410"];
        let failed = world.culvert.successor(&nowhere).output()?;
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        ensure!(
            !failed.status.success() && said.contains("192.0.2.1:7410"),
            "{}: {said}",
            failed.status
        );
        wait::until("the proxy goes on again", DEADLINE, || {
            let logged = world.culvert.proxy.logged(GOES_ON, &[]).len();
            ensure!(logged == 2, "logged {logged} times");
            Ok(())
        })?;
        world.culvert.proxy.check()?;
        wait::throughout("the proxy goes on", Duration::from_secs(2), || {
            streams.check()
        })?;
        all_answered(&mut loads, "two successors have failed")?;
        // State is written again, and agents come here.
        world.culvert.create_node_token("edge-9", &[])?;
        streams.end()?;
        let mut old = world.culvert.succeed_proxy()?;
        world.wait_proxy_log(SERVES, &[])?;
        wait_ended(&mut old)?;
        wait::throughout("a third one serves", Duration::from_secs(1), || Ok(()))?;
        all_answered(&mut loads, "a third successor serves")
    });
}

#[test]
fn a_silent_node_delays_the_next_proxy_and_the_others_notice_neither_that_nor_its_end() {
    world::with(&Host::EDGES, Options::default(), |world| {
        let mut random = swarm::chance()?;
        let alive = [Host::Edge1, Host::Edge2];
        let addresses = swarm::by_address(world, &alive)?;
        let mut loads = Load::by_both(world, random.number(), addresses)?;
        let silent = Host::EDGES.iter().position(|edge| !alive.contains(edge));
        let silent = silent.context("all nodes are alive")?;
        world.culvert.agent(silent).signal(Signal::SIGSTOP)?;
        // Both proxies have one log.
        let tunnels = |world: &World<'_>| {
            let of = |edge: &Host| {
                let fields = [("node", edge.name())];
                world.culvert.proxy.logged("tunnel up", &fields).len()
            };
            alive.each_ref().map(of)
        };
        let before = tunnels(world);
        let old = world.culvert.succeed_proxy()?;
        wait::until("the other agents are there", DEADLINE, || {
            let now = tunnels(world);
            let more = now.iter().zip(before).all(|(now, before)| *now > before);
            ensure!(more, "tunnels {now:?}, before {before:?}");
            Ok(())
        })?;
        world.culvert.proxy.signal(Signal::SIGTERM)?;
        wait_ended(&mut world.culvert.proxy)?;
        world.culvert.proxy = old;
        world.wait_proxy_log(GOES_ON, &[])?;
        wait::throughout("the old one goes on", Duration::from_secs(2), || Ok(()))?;
        all_answered(&mut loads, "a successor was told to end")?;
        let mut old = world.culvert.succeed_proxy()?;
        world.culvert.proxy.wait_logged(SERVES, &[], DEADLINE)?;
        wait_ended(&mut old)?;
        wait::throughout("the new one alone", Duration::from_secs(1), || Ok(()))?;
        all_answered(&mut loads, "a node is silent")?;
        world.culvert.agent(silent).signal(Signal::SIGCONT)
    });
}

#[test]
fn three_proxies_are_replaced_in_turn_and_no_client_of_any_notices() {
    let three = |lab: &Lab| {
        let mut options = proxies::prepare_three(lab, &Host::EDGES)?;
        for number in THREE {
            let proxy = proxies::for_agents(number);
            options.agent.extend(["--proxy".to_owned(), proxy]);
        }
        Ok(options)
    };
    world::prepared(&Host::EDGES, three, |world| {
        let start = |world: &World<'_>, number| proxies::start(world, number, &peer_flags());
        let mut others = [start(world, SECOND)?, start(world, THIRD)?];
        let mut random = swarm::chance()?;
        let mut loads = loads(world, &mut random)?;
        for number in [SECOND, THIRD] {
            wait::until("it reaches all nodes", DEADLINE, || {
                let socket = proxies::connect_socket(world, number);
                Host::EDGES.iter().try_for_each(|edge| {
                    connect::stream(&socket, &format!("{}:{GREET}", edge.name())).map(drop)
                })
            })?;
            loads.push(load_by_connect(world, number, &mut random)?);
        }
        for replaced in THREE {
            let mut streams = Streams::start(world)?;
            let mut by_each = THREE
                .iter()
                .map(|number| Echoed::start(world, *number))
                .collect::<Result<Vec<_>>>()?;
            let mut old = match replaced {
                FIRST => {
                    let old = world.culvert.succeed_proxy()?;
                    world.wait_proxy_log(SERVES, &[])?;
                    old
                }
                number => {
                    let other = usize::from(number - SECOND);
                    let new = start(world, number)?;
                    let old = std::mem::replace(&mut others[other], new);
                    others[other].wait_logged(SERVES, &[], DEADLINE)?;
                    old
                }
            };
            let other = if replaced == FIRST { SECOND } else { FIRST };
            wait::until("another proxy follows both", DEADLINE, || {
                let peers = proxies::peers(world, other)?;
                let (leaving, others): (Vec<_>, Vec<_>) = peers
                    .iter()
                    .cloned()
                    .partition(|peer| peer["draining"] == true);
                let linked = proxies::linked(&others);
                ensure!(leaving.len() == 1 && linked == 2, "{peers:#?}");
                Ok(())
            })?;
            wait::throughout("both run", Duration::from_secs(2), || {
                by_each.iter_mut().try_for_each(Echoed::check)?;
                streams.check()
            })?;
            streams.end()?;
            drop(by_each);
            wait_ended(&mut old)?;
            wait::throughout("the new one alone", Duration::from_secs(1), || Ok(()))?;
            all_answered(&mut loads, &format!("proxy {replaced} was replaced"))?;
        }
        Ok(())
    });
}

/// Takes everything, gets the agents, and ends without serving.
async fn successor_that_dies(world: &World<'_>) -> Result<()> {
    let state = world.lab.site(Host::Cloud).file("proxy");
    let link = Handover::connect(&state.join("handover.sock"))
        .await?
        .context("nobody hands over")?;
    let take = Message::Take {
        version: HANDOVER_VERSION,
    };
    link.send(&take, &[]).await?;
    let (offer, descriptors) = link.receive(HANDOVER_TIMEOUT).await?;
    let Message::Offer { sockets, reach } = offer else {
        bail!("no offer: {offer:?}");
    };
    ensure!(
        reach.nodes as usize == Host::EDGES.len(),
        "it reaches {reach:?}"
    );
    ensure!(
        sockets.len() == descriptors.len() && sockets.len() >= 11,
        "offered: {sockets:?}"
    );
    link.send(&Message::TakesAgents, &[]).await?;
    link.expect(&Message::SendsAgents).await?;
    Ok(())
}

/// A stream by the CONNECT socket of one of three proxies.
struct Echoed(UnixStream);

impl Echoed {
    fn start(world: &World<'_>, number: u16) -> Result<Self> {
        let socket = proxies::connect_socket(world, number);
        Ok(Self(connect::stream(&socket, &format!("edge-3:{ECHO}"))?))
    }

    /// Fails if the stream is broken.
    fn check(&mut self) -> Result<()> {
        self.0.write_all(b"x")?;
        let mut echoed = [0];
        self.0.read_exact(&mut echoed)?;
        Ok(())
    }
}

/// Streams that last longer than a hand-over and end before the grace period.
struct Streams {
    held: [HeldClient; 2],
    downloads: HeldClient,
}

impl Streams {
    fn start(world: &World<'_>) -> Result<Self> {
        Ok(Self {
            held: swarm::held_by_both(world, Host::Edge1)?,
            downloads: world.stall(format!("edge-2:{SMALL_SOURCE}"), DOWNLOADS)?,
        })
    }

    fn check(&mut self) -> Result<()> {
        self.held.iter_mut().try_for_each(HeldClient::check)
    }

    /// Fails if a stream was broken.
    fn end(mut self) -> Result<()> {
        self.check()?;
        self.downloads.ask()?;
        self.downloads
            .expect(&Report::Drained(DOWNLOADS as u64 * SMALL))
            .context("downloads under way")
    }
}

fn loads(world: &World<'_>, random: &mut Random) -> Result<Vec<Load>> {
    let addresses = swarm::by_address(world, &Host::EDGES)?;
    let mut loads = Vec::from(Load::by_both(world, random.number(), addresses)?);
    loads.push(load_by_connect(world, FIRST, random)?);
    Ok(loads)
}

fn load_by_connect(world: &World<'_>, number: u16, random: &mut Random) -> Result<Load> {
    let targets = swarm::by_connect(&proxies::connect_socket(world, number), &Host::EDGES);
    Load::start(world, Steered::ByHooks, random.number(), targets)
}

/// Fails unless every request since the last call was answered, and every target had one.
fn all_answered(loads: &mut [Load], when: &str) -> Result<()> {
    for load in loads {
        let report = load.report_all_answered().context(when.to_owned())?;
        progress::say(&format!(
            "    {when}: {} answered, the slowest in {} ms",
            report.answered(),
            report.slowest_ms()
        ));
    }
    Ok(())
}

fn wait_ended(proxy: &mut Process) -> Result<()> {
    wait::until("the proxy has ended", DEADLINE, || match proxy.check() {
        Ok(()) => bail!("it runs on"),
        Err(ended) if ended.to_string().contains("exit status: 0") => Ok(()),
        Err(ended) => Err(ended),
    })
}
