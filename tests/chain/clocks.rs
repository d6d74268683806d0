//! Proxies whose clocks differ, one fast and one slow.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::cloud_host::CloudHost;
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, skewed_clock, wait, workspace};

use crate::connect;
use crate::proxies::{self, FIRST};
use crate::world::{self, GREET, World};
use culvert_lab::pki::{Authority, text};

const EDGES: &[Host] = &[Host::Edge1];
const TIME: Duration = Duration::from_secs(60);
const FAST: u16 = 5;
const SLOW: u16 = 6;
/// A quarter of an hour.
const SKEW: i64 = 900;
/// The admin port of a second agent on a host.
const SECOND_AGENT: u16 = 7430;

fn peer_flags() -> Vec<String> {
    let flags = |number| ["--peer".to_owned(), proxies::for_peers(number)];
    [FIRST, FAST, SLOW].into_iter().flat_map(flags).collect()
}

fn three(lab: &Lab) -> Result<Options> {
    let mut options = proxies::prepare(lab, EDGES)?;
    options.proxy.extend(peer_flags());
    Ok(options)
}

/// Starts a proxy whose clock is wrong by that many seconds.
fn start_skewed(world: &World<'_>, number: u16, seconds: i64) -> Result<Process> {
    let cloud = world.lab.site(Host::Cloud);
    let environment = skewed_clock::environment(&cloud.file(""), seconds)?;
    let authority = Authority::at(cloud.file("operator")).proxy_flags();
    let further = [&authority[..], &proxies::nodes(world), &peer_flags()].concat();
    proxies::start_on(world, number, (CloudHost::First, &environment), &further)
}

/// The time that is so much from now, as logs have it.
fn log_time(away: &str) -> Result<String> {
    workspace::output(Command::new("date").args(["-u", "-d", away, "+%FT%T"]))
}

/// The time of a proxy's first log line.
fn first_time(proxy: &Process) -> Result<String> {
    let lines = proxy.log_lines();
    Ok(lines.first().context("no log")?.timestamp.clone())
}

/// Starts an agent of edge-1 with the certificate in that folder and tunnels to one proxy.
fn agent_at(world: &World<'_>, number: u16, folder: &str) -> Result<Process> {
    let site = world.lab.site(Host::Edge1);
    let mut command = site.command(workspace::binary("culvert-agent"));
    command.env("CULVERT_LOG_FORMAT", "json");
    command.args(["--state-dir", &text(&site.file(folder))]);
    command.args(["--proxy", &proxies::for_agents(number)]);
    command.args(["--port", &GREET.to_string()]);
    command.args(["--admin-listen", &format!("127.0.0.1:{SECOND_AGENT}")]);
    site.start_process("second-agent", &mut command)
}

fn wait_greets_everywhere(world: &World<'_>) -> Result<()> {
    let target = format!("edge-1:{GREET}");
    for number in [FIRST, FAST, SLOW] {
        let socket = proxies::connect_socket(world, number);
        wait::until(&format!("proxy {number} reaches the node"), TIME, || {
            connect::check_greeting(&socket, &target)
        })?;
    }
    Ok(())
}

/// Makes the node leave the directory of all proxies, and come back. Each of them revokes it.
fn revoke(world: &World<'_>) -> Result<()> {
    let file = world.lab.site(Host::Cloud).file("nodes.toml");
    std::fs::write(&file, "[nodes]\n")?;
    proxies::control(world, FIRST, &["node", "remove", "edge-1"])?;
    for number in [FIRST, FAST, SLOW] {
        wait::until(&format!("proxy {number} has no node"), TIME, || {
            let listed = proxies::control(world, number, &["nodes"])?;
            ensure!(!listed.contains("edge-1"), "{listed}");
            Ok(())
        })?;
    }
    std::fs::write(&file, "[nodes.edge-1]\n")?;
    proxies::control(world, FIRST, &["token", "create", "edge-1"]).map(drop)
}

#[test]
fn proxies_whose_clocks_differ_reach_each_other_and_agree_on_who_is_revoked() {
    world::prepared(EDGES, three, |world| {
        let fast = start_skewed(world, FAST, SKEW)?;
        let slow = start_skewed(world, SLOW, -SKEW)?;
        ensure!(first_time(&fast)? > log_time("10 minutes")?, "not fast");
        ensure!(first_time(&slow)? < log_time("-10 minutes")?, "not slow");
        wait_greets_everywhere(world)?;

        let edge = world.lab.site(Host::Edge1);
        let agent = text(&edge.file("agent"));
        let revoked = text(&edge.file("revoked"));
        edge.output("cp", ["-r", &agent, &revoked])?;
        revoke(world)?;
        for (number, proxy) in [(FIRST, &world.culvert.proxy), (FAST, &fast), (SLOW, &slow)] {
            let _agent = agent_at(world, number, "revoked")?;
            let reason = [("reason", "the certificate of edge-1 was revoked")];
            proxy
                .wait_logged("agent connection", &reason, TIME)
                .with_context(|| format!("proxy {number}"))?;
        }

        // Whichever proxy makes the next certificate, it is good at all of them.
        for (maker, others) in [(SLOW, [FIRST, FAST]), (FAST, [FIRST, SLOW])] {
            let made = proxies::control(world, maker, &["token", "create", "edge-1"])?;
            let words = made.split_whitespace().skip(1).map(str::to_owned);
            let mut join: Vec<String> = words.collect();
            let proxy = join.iter().position(|word| word == "--proxy");
            let value = proxy.and_then(|proxy| join.get_mut(proxy + 1));
            *value.with_context(|| made.clone())? = proxies::for_agents(maker);
            world.culvert.join(Host::Edge1, &join)?;
            for number in others {
                let _agent = agent_at(world, number, "agent")?;
                proxies::wait_for_tunnels(world, number)?;
            }
        }
        wait_greets_everywhere(world)
    });
}
