//! Dials that hang, are cancelled, or lead nowhere: they end in time, and do not disturb others.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::wait::{self, PATIENCE};

use crate::connect::{self, Answer, BlackHole, GREETING, SWALLOWED};
use crate::life;
use crate::world::{self, ECHO, GREET, HeldClient, World};

const EDGE: &[Host] = &[Host::Edge1];

/// A client that waits for the answer to a CONNECT into the black hole.
fn waiting_client(world: &World<'_>) -> Result<UnixStream> {
    connect::open(world, &format!("edge-1:{SWALLOWED}"))
}

/// The number of the agent's dials that wait for an answer.
fn waiting_dials(world: &World<'_>) -> Result<usize> {
    let sockets = world
        .lab
        .site(Host::Edge1)
        .output("ss", ["-Htn", "state", "syn-sent"])?;
    Ok(sockets.lines().count())
}

fn wait_for_dials(world: &World<'_>, count: usize) -> Result<()> {
    wait::until(&format!("the agent dials {count} times"), PATIENCE, || {
        let now = waiting_dials(world)?;
        ensure!(now == count, "{now} dials");
        Ok(())
    })
}

/// The number of dials that ended by the agent's own timeout.
fn timed_out(world: &World<'_>) -> Result<f64> {
    world.lab.site(Host::Edge1).metric(
        AGENT_ADMIN,
        "culvert_agent_dials_total{outcome=\"timed_out\"}",
    )
}

/// superedge #420; apiserver-network-proxy #180, #268 and #335.
#[test]
fn a_hundred_dials_into_a_black_hole_end_in_504_and_hold_up_nobody() {
    let one_tunnel = Options {
        agent: world::one_tunnel(),
        ..Options::default()
    };
    world::with(EDGE, one_tunnel, |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 5)?;
        let _hole = BlackHole::on(world.lab, SWALLOWED)?;
        let clients = (0..100)
            .map(|_| waiting_client(world))
            .collect::<Result<Vec<_>>>()?;
        wait_for_dials(world, 100)?;
        held.check()?;
        world.check_greeting("edge-1", "edge-1")?;
        ensure!(
            waiting_dials(world)? > 0,
            "the others came through when the dials were over"
        );
        for client in &clients {
            let answer = Answer::of(client, client, b"", 0)?;
            ensure!(answer.head.starts_with("HTTP/1.1 504 "), "{answer:?}");
        }
        let timed_out = timed_out(world)?;
        ensure!(timed_out == 100.0, "{timed_out} dials timed out");
        held.check()?;
        drop(held);
        world.wait_for_no_streams()
    });
}

/// kubernetes #140512: the client had timed out, but its dial continued.
#[test]
fn a_client_that_leaves_takes_its_waiting_dial_along() {
    world::with(EDGE, Options::default(), |world| {
        let _hole = BlackHole::on(world.lab, SWALLOWED)?;
        let clients = (0..20)
            .map(|_| waiting_client(world))
            .collect::<Result<Vec<_>>>()?;
        // They have sent their first bytes, as a TLS client has.
        for mut client in &clients {
            client.write_all(b"hello")?;
        }
        wait_for_dials(world, 20)?;
        drop(clients);
        wait_for_dials(world, 0)?;
        let timed_out = timed_out(world)?;
        ensure!(timed_out == 0.0, "{timed_out} dials went on to their end");
        // A steered client that closes looks like one that has ended its direction, so its dial
        // goes on for the full five seconds.
        for _ in 0..5 {
            world.client(&Client::dial(
                format!("edge-1:{SWALLOWED}"),
                Duration::from_millis(1_000),
            ))?;
        }
        wait_for_dials(world, 0)?;
        world.wait_for_no_streams()
    });
}

/// apiserver-network-proxy #126.
#[test]
fn a_dial_that_waits_when_its_agent_dies_fails_with_it() {
    world::with(EDGE, Options::default(), |world| {
        let _hole = BlackHole::on(world.lab, SWALLOWED)?;
        let client = waiting_client(world)?;
        wait_for_dials(world, 1)?;
        world.culvert.agent(0).kill()?;
        let answer = Answer::of(&client, &client, b"", 0)?;
        // A 504 would mean that the client waited for a timeout.
        ensure!(
            answer.head.starts_with("HTTP/1.1 502 ")
                && answer.head.contains("connection_terminated"),
            "{answer:?}"
        );
        Ok(())
    });
}

/// SuperEdge's proxy dialled itself if a node had no tunnel. Here, clients cannot reach any port of
/// the proxy itself.
#[test]
fn connects_to_an_offline_node_or_to_the_proxy_itself_are_refused_and_leave_nothing() {
    world::with(EDGE, Options::default(), |world| {
        world.culvert.create_token(Host::Edge2, &[])?;
        let offline = [("edge-2:9100".to_owned(), "503")];
        let own = [
            "127.0.0.1:7409",
            "[::1]:7409",
            "0.0.0.0:7410",
            "[::ffff:127.0.0.1]:7410",
            "localhost:7410",
        ];
        let own = own.iter().chain(&[
            "203.0.113.1:7400",
            "203.0.113.1:7410",
            "[fd00:203:0:113::1]:7410",
            "cloud:7410",
        ]);
        let own = own.map(|target| ((*target).to_owned(), "403"));
        let targets: Vec<_> = offline.into_iter().chain(own).collect();
        let refuse_all = || -> Result<()> {
            for (target, status) in &targets {
                let answer = connect::connect(world, target)?;
                ensure!(
                    answer.head.starts_with(&format!("HTTP/1.1 {status} ")),
                    "{target}: {answer:?}"
                );
            }
            Ok(())
        };
        refuse_all()?;
        let before = world.culvert.proxy.kernel_resources()?;
        for _ in 0..20 {
            refuse_all()?;
        }
        life::wait_within("the proxy", &world.culvert.proxy, before)
    });
}

/// An incomplete `Proxy-Authorization` crashed SuperEdge's whole proxy. Here a client is authorized
/// by its socket or its certificate.
#[test]
fn a_proxy_authorization_however_broken_changes_nothing() {
    world::with(EDGE, Options::default(), |world| {
        for value in [
            "",
            "Basic",
            "Basic ",
            "Basic !",
            "Basic Og==",
            "Basic Li4vLi4vZXRjL3Bhc3N3ZA==",
            "Bearer",
        ] {
            let target = format!("edge-1:{GREET}");
            let sent = format!(
                "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: \
                 {value}\r\n\r\n"
            );
            let socket = connect::unix_socket(world)?;
            let answer =
                Answer::of(&socket, &socket, sent.as_bytes(), GREETING.len()).context(value)?;
            ensure!(answer.is_greeting(), "{value:?}: {answer:?}");
        }
        world.culvert.proxy.check()
    });
}

/// The limit of streams from one client address to one node.
const SHARE: usize = 256;

#[test]
fn a_pod_that_takes_all_the_streams_it_can_get_leaves_the_others_theirs() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let pod = world.lab.add_pod()?;
        let cloud = world.lab.site(Host::Cloud);
        let in_the_pod = || cloud.command_in(&pod, world::xtask());
        let target = format!("10.0.3.7:{ECHO}");
        let all = Client::hold_open(&target, SHARE);
        let mut greedy = HeldClient::spawn(all.complete(&mut in_the_pod())?)?;
        greedy.expect(&Report::Held)?;
        let one = Client::talk(&target, "x");
        let refused = world::report(one.complete(&mut in_the_pod())?);
        ensure!(refused.is_err(), "it got one more: {refused:?}");
        wait::until("that is counted", PATIENCE, || {
            let name =
                "culvert_proxy_streams_total{frontend=\"nftables\",outcome=\"client_share\"}";
            let refused = cloud.metric(PROXY_ADMIN, name)?;
            ensure!(refused == 1.0, "{refused} were refused for their share");
            Ok(())
        })?;
        world
            .check_greeting("10.0.3.7", "edge-1")
            .context("the host")?;
        greedy.check().context("what it has, it keeps")?;
        drop(greedy);
        world.wait_for_no_streams()?;
        world::report(one.complete(&mut in_the_pod())?)
            .context("afterwards")
            .map(drop)
    });
}
