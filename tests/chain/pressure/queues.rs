//! Full accept queues: new clients get an error within their own time limit, and service as soon as
//! the queue has capacity.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::Lab;
use culvert_lab::culvert::{AGENT_ADMIN, Options, PROXY_FOR_AGENTS};
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Phase};
use culvert_lab::wait::{self, PATIENCE};
use nix::sys::signal::Signal;

use super::{OWN, start_ready};
use crate::world::{self, ECHO, xtask};

const RECOVERY: Duration = Duration::from_secs(30);

#[test]
fn a_backend_with_a_full_accept_queue_is_told_as_a_timeout_and_leaves_others_alone() {
    let options = Options {
        ports: vec![OWN],
        ..Options::default()
    };
    world::with(&[Host::Edge1], options, |world| {
        shorten_queues(world.lab, Host::Edge1, 1)?;
        let mut command = world.lab.site(Host::Edge1).command(xtask());
        command.args(["probe", "serve", &format!("{OWN}=echo")]);
        let backend = start_ready(world.lab, Host::Edge1, "own-backend", &mut command)?;
        backend.signal(Signal::SIGSTOP)?;
        let own = format!("edge-1:{OWN}");
        // They fill the queue, and nothing accepts them.
        let waiting = world.held_client(&Client::stall(&own, 2))?;
        wait::until("the queue is full", PATIENCE, || {
            let queue = world
                .lab
                .site(Host::Edge1)
                .output("ss", ["-tlnH", &format!("sport = :{OWN}")])?;
            (queue.split_whitespace().nth(1) == Some("2"))
                .then_some(())
                .context(queue)
        })?;
        let refused = world.failing_client(&Client::talk(&own, "x"))?;
        ensure!(refused.cause == Cause::Reset, "{refused}");
        world.wait_proxy_log(
            "stream ended",
            &[("outcome", "timed_out"), ("original_dst", &OWN.to_string())],
        )?;
        world.check_greeting("edge-1", "edge-1")?;
        backend.signal(Signal::SIGCONT)?;
        drop(waiting);
        let answer = world.talk(&own, "there you are")?;
        ensure!(answer == "there you are", "{answer}");
        Ok(())
    });
}

#[test]
fn clients_that_find_the_proxys_queue_full_time_out_and_the_tunnels_are_those_of_before() {
    let options = |lab: &Lab| {
        shorten_queues(lab, Host::Cloud, 4)?;
        Ok(Options::default())
    };
    world::prepared(&[Host::Edge1], options, |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 10)?;
        let tunnels = world.numbers_of_all_tunnels()?;
        world.culvert.proxy.signal(Signal::SIGSTOP)?;
        let answered =
            world.count_answered(&format!("edge-1:{ECHO}"), 100, Duration::from_millis(1_500))?;
        ensure!(answered == 0, "{answered}");
        ensure!(overflows(world.lab)? > 0, "no queue was full");
        let refused = world.failing_client(&Client::dial(
            format!("edge-1:{ECHO}"),
            Duration::from_millis(500),
        ))?;
        ensure!(refused.is(Phase::Connect, Cause::TimedOut), "{refused}");
        world.culvert.proxy.signal(Signal::SIGCONT)?;
        world.wait_greeting("edge-1", RECOVERY)?;
        held.check()?;
        let now = world.tunnel_numbers()?;
        ensure!(now == tunnels, "tunnels: {now:?}, before {tunnels:?}");
        drop(held);
        world.wait_for_no_streams()
    });
}

#[test]
fn an_agent_that_finds_the_proxys_queue_full_says_so_and_gets_in_when_there_is_room() {
    let options = |lab: &Lab| {
        shorten_queues(lab, Host::Cloud, 4)?;
        Ok(Options::default())
    };
    world::prepared(&[Host::Edge1], options, |world| {
        let join = world.culvert.create_token(Host::Edge2, &[])?;
        world.culvert.join(Host::Edge2, &join)?;
        world.culvert.proxy.signal(Signal::SIGSTOP)?;
        // Strangers from another site that come first and send nothing.
        let strangers = Client::GiveUp {
            target: PROXY_FOR_AGENTS.to_owned(),
            count: 20,
            patience: Duration::from_secs(1),
        };
        world::client_at(world.lab, Host::Edge3, &strangers)?;
        ensure!(overflows(world.lab)? > 0, "no queue was full");
        world.culvert.start_agent(Host::Edge2)?;
        let edge = world.lab.site(Host::Edge2);
        wait::until(
            "the agent says that it waits for the proxy",
            PATIENCE,
            || {
                let why = edge
                    .http_get(AGENT_ADMIN, "/readyz")
                    .err()
                    .context("it is ready")?
                    .to_string();
                ensure!(
                    why.contains(PROXY_FOR_AGENTS) && why.contains("no answer in time"),
                    "{why}"
                );
                Ok(())
            },
        )?;
        world.culvert.proxy.signal(Signal::SIGCONT)?;
        world.culvert.wait_online(Host::Edge2)
    });
}

/// Limits the queues of listeners that are opened from now on.
fn shorten_queues(lab: &Lab, host: Host, length: usize) -> Result<()> {
    lab.site(host)
        .output("sysctl", ["-qw", &format!("net.core.somaxconn={length}")])
        .map(drop)
}

/// The number of connections in the cloud that found a full queue.
fn overflows(lab: &Lab) -> Result<u64> {
    let counters = lab.site(Host::Cloud).output("cat", ["/proc/net/netstat"])?;
    let mut lines = counters
        .lines()
        .filter(|line| line.starts_with("TcpExt:"))
        .map(str::split_whitespace);
    let (names, mut values) = lines.next().zip(lines.next()).context("no TcpExt")?;
    let at = names
        .into_iter()
        .position(|name| name == "ListenOverflows")
        .context("no ListenOverflows")?;
    Ok(values.nth(at).context("no value")?.parse()?)
}
