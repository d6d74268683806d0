//! Tests of the budget: more bytes than a program may hold in memory for clients or backends that
//! read nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Phase, Report};
use culvert_lab::{progress, wait};

use crate::world::{self, ECHO, GIB, SMALL, SMALL_SOURCE, SOURCE};

const STALLED: usize = 40;
const UPLOADS: usize = 20;
/// Up to this many stalled streams fit into the budget: each holds its window of 5 MiB, less what
/// its sockets hold.
const WITHIN: usize = 5;
/// Enough for three windows, but not for four.
const BUDGET: u64 = 16 << 20;
const BUDGET_TEXT: &str = "16MiB";
/// Longer than the time in which sockets fill.
const DEADLINE: Duration = Duration::from_secs(30);
/// Overhead of the memory that holds the bytes, and what the proxy reads ahead.
const BESIDE: u64 = 48 << 20;

#[test]
fn over_the_budget_stalled_clients_are_reset_and_memory_stays_bounded() {
    let options = world::proxy_options(["--buffer-budget", BUDGET_TEXT]);
    world::with(&[Host::Edge1], options, |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 10)?;
        let before = world.culvert.proxy.resident()?;
        let stalled = world.stall(format!("edge-1:{SOURCE}"), STALLED)?;
        let fields = [("outcome", "buffer_budget"), ("reason", "--buffer-budget")];
        wait::until("all but the last few are reset", DEADLINE, || {
            let reset = world.culvert.proxy.logged("stream ended", &fields).len();
            ensure!(reset >= STALLED - WITHIN, "{reset} are");
            Ok(())
        })?;
        let waiting = world
            .lab
            .site(Host::Cloud)
            .metric(PROXY_ADMIN, "culvert_proxy_waiting_bytes")?;
        ensure!(
            waiting > 0.0 && waiting <= BUDGET as f64,
            "{waiting} bytes wait"
        );
        let grown = world.culvert.proxy.resident()?.saturating_sub(before);
        progress::say(&format!(
            "    {waiting} bytes wait, the proxy's memory has grown by {grown}"
        ));
        ensure!(
            grown <= BUDGET + BESIDE,
            "the proxy's memory has grown by {grown} bytes"
        );
        held.check()?;
        let whole = world.download(&format!("edge-1:{SOURCE}"))?;
        ensure!(whole.count == GIB, "{whole}");
        drop((stalled, held));
        world.wait_for_no_streams()
    });
}

#[test]
fn over_the_budget_those_are_reset_that_stalled_first_and_later_ones_lose_nothing() {
    let options = world::proxy_options(["--buffer-budget", BUDGET_TEXT]);
    world::with(&[Host::Edge1], options, |world| {
        let stall = Client::stall(format!("edge-1:{SMALL_SOURCE}"), 3);
        let mut first = world.held_client(&stall)?;
        let waiting = || {
            world
                .lab
                .site(Host::Cloud)
                .metric(PROXY_ADMIN, "culvert_proxy_waiting_bytes")
        };
        wait::until("the budget is as good as used up", DEADLINE, || {
            let waiting = waiting()?;
            ensure!(
                waiting > (BUDGET - (4 << 20)) as f64,
                "{waiting} bytes wait"
            );
            Ok(())
        })?;
        first.expect(&Report::Stalled)?;
        let mut second = world.held_client(&stall)?;
        second.expect(&Report::Stalled)?;
        wait::until("as many are reset as others have come", DEADLINE, || {
            let over_budget = [("outcome", "buffer_budget")];
            let reset = world
                .culvert
                .proxy
                .logged("stream ended", &over_budget)
                .len();
            ensure!(reset == 3, "{reset} are");
            Ok(())
        })?;
        second.next(&Report::Drained(3 * SMALL))?;
        first.ask()?;
        let said = first.report(DEADLINE)?;
        ensure!(
            matches!(&said, Report::Failed(failure) if failure.is(Phase::Read, Cause::Reset)),
            "one that stalled first: {said:?}"
        );
        world.wait_for_no_streams()
    });
}

#[test]
fn an_agent_over_its_budget_resets_uploads_that_backends_do_not_take() {
    let options = Options {
        agent: vec!["--buffer-budget".into(), BUDGET_TEXT.into()],
        ..Options::default()
    };
    world::with(&[Host::Edge1], options, |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 10)?;
        let before = world.culvert.agent(0).resident()?;
        // A client that sends without reading makes an echo stop reading.
        let upload = Client::upload(format!("edge-1:{ECHO}"), SMALL);
        let uploads: Vec<_> = (0..UPLOADS)
            .map(|_| world.held_client(&upload))
            .collect::<Result<_>>()?;
        let ended = |host, port, name: &str| {
            wait::until("all but the last few are reset", DEADLINE, || {
                let reset = world.lab.site(host).metric(port, name)?;
                ensure!(reset >= (UPLOADS - WITHIN) as f64, "{reset} are");
                Ok(())
            })
        };
        ended(
            Host::Edge1,
            AGENT_ADMIN,
            "culvert_agent_streams_total{outcome=\"buffer_budget\"}",
        )?;
        ended(
            Host::Cloud,
            PROXY_ADMIN,
            "culvert_proxy_streams_total{frontend=\"ebpf\",outcome=\"peer_reset\"}",
        )?;
        let grown = world.culvert.agent(0).resident()?.saturating_sub(before);
        progress::say(&format!("    the agent's memory has grown by {grown}"));
        ensure!(
            grown <= BUDGET + BESIDE,
            "the agent's memory has grown by {grown} bytes"
        );
        held.check()?;
        drop((uploads, held));
        world.wait_for_no_streams()
    });
}
