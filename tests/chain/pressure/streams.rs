//! Ten thousand streams at once, through ten agents: one agent may have 1,024.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{progress, workspace};

use super::{OWN, start_load, wait_gauge};
use crate::life::wait_within;
use crate::world::{self, World};

const AGENTS: usize = 10;
const STREAMS_EACH: usize = 1000;
const STREAMS: usize = AGENTS * STREAMS_EACH;

/// The proxy's memory per idle stream, in an unoptimised build as in tests. `notes/performance.md`
/// has the number for a release.
const MEMORY_PER_STREAM: u64 = 12 << 10;

#[test]
fn ten_thousand_idle_streams_all_answer_beside_new_ones_and_leave_nothing() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let _echo = start_load(world.lab, Host::Edge1, "echo", &["echo", &OWN.to_string()])?;
        let agents = (0..AGENTS)
            .map(|number| start_agent(world, number))
            .collect::<Result<Vec<_>>>()?;
        wait_gauge(
            world.lab,
            "culvert_proxy_tunnels",
            2 * (AGENTS + 1),
            Duration::from_secs(30),
        )?;
        // The first connection opens files that later ones share.
        world.check_greeting("10.0.3.7", "edge-1")?;
        let before = (
            world.culvert.proxy.kernel_resources()?,
            world.culvert.proxy.resident()?,
        );
        let agents_before = agents
            .iter()
            .map(Process::kernel_resources)
            .collect::<Result<Vec<_>>>()?;

        let mut clients = Vec::new();
        for number in 0..AGENTS {
            let target = format!("{}:{OWN}", name(number));
            clients.push(world.held_client(&Client::hold_open(target, STREAMS_EACH))?);
        }
        for client in &clients {
            client.expect(&Report::Held)?;
        }
        wait_gauge(world.lab, "culvert_proxy_active_streams", STREAMS, PATIENCE)?;
        let grown = world.culvert.proxy.resident()?.saturating_sub(before.1);
        progress::say(&format!(
            "    {STREAMS} streams are up; the proxy grew by {} bytes each",
            grown / STREAMS as u64
        ));
        ensure!(
            grown <= STREAMS as u64 * MEMORY_PER_STREAM,
            "the proxy grew by {grown} bytes"
        );

        for client in &mut clients {
            client.check()?;
        }
        for number in [0, AGENTS - 1] {
            let answer = world.talk(&format!("{}:{OWN}", name(number)), "one more")?;
            ensure!(answer == "one more", "a new stream: {answer}");
        }
        world.check_greeting("10.0.3.7", "edge-1")?;

        drop(clients);
        wait_gauge(
            world.lab,
            "culvert_proxy_active_streams",
            0,
            Duration::from_secs(30),
        )?;
        wait_within("the proxy", &world.culvert.proxy, before.0)?;
        for (agent, before) in agents.iter().zip(agents_before) {
            wait_within("an agent", agent, before)?;
        }
        Ok(())
    });
}

fn name(number: usize) -> String {
    format!("crowd-{number}")
}

/// Joins one more node and starts its agent. All agents run on one host.
fn start_agent(world: &World<'_>, number: usize) -> Result<Process> {
    let node = name(number);
    let site = world.lab.site(Host::Edge1);
    let agent = || site.command(workspace::binary("culvert-agent"));
    let join = world
        .culvert
        .create_node_token(&node, &["--port".into(), OWN.to_string()])?;
    workspace::output(agent().args(join).arg("--state-dir").arg(site.file(&node)))?;
    let mut command = agent();
    command
        .arg("--state-dir")
        .arg(site.file(&node))
        .args(["--port", &OWN.to_string()]);
    command.args(["--admin-listen", &format!("127.0.0.1:{}", 7440 + number)]);
    let agent = site.start_process(&node, &mut command)?;
    wait::until(&format!("{node} has its tunnels"), PATIENCE, || {
        ensure!(world.culvert.tunnels(&node)? == 2, "not yet");
        Ok(())
    })?;
    Ok(agent)
}
