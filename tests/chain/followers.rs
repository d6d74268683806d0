//! Several proxies without a cluster: one of them, the primary, has the nodes, VIPs and tokens, and
//! the others follow it.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, workspace};
use serde_json::Value;

use crate::connect;
use crate::proxies::{self, FIRST};
use crate::world::{self, ECHO, GREET, World};
use culvert_lab::pki::Authority;

const EDGES: &[Host] = &[Host::Edge1];
const TIME: Duration = Duration::from_secs(60);
/// The follower; the first proxy is the primary.
const SECOND: u16 = 5;
/// The admin port of a second agent on a host.
const SECOND_AGENT: u16 = 7430;

/// The primary, which knows the follower as a peer.
fn primary(lab: &Lab) -> Result<Options> {
    let authority = Authority::at(lab.site(Host::Cloud).file("operator")).make()?;
    let mut options = world::proxy_options(authority.proxy_flags());
    options
        .proxy
        .extend(["--peer".to_owned(), proxies::for_peers(SECOND)]);
    Ok(options)
}

fn start_follower(world: &World<'_>) -> Result<Process> {
    let follow = ["--follow".to_owned(), proxies::for_peers(FIRST)];
    proxies::start_bare(world, SECOND, &follow)
}

/// A token of proxy `number` for a node: the arguments of `culvert-agent` that join it at proxy
/// `at`.
fn token(world: &World<'_>, number: u16, node: &str, at: u16) -> Result<Vec<String>> {
    let made = proxies::control(world, number, &["token", "create", node])?;
    let words = made.split_whitespace().skip(1).map(str::to_owned);
    let mut join: Vec<String> = words.collect();
    let proxy = join.iter().position(|word| word == "--proxy");
    let value = proxy.and_then(|proxy| join.get_mut(proxy + 1));
    *value.with_context(|| made.clone())? = proxies::for_agents(at);
    Ok(join)
}

/// Starts another agent of edge-1 with tunnels to proxy `number` only.
fn agent_at(world: &World<'_>, number: u16) -> Result<Process> {
    let site = world.lab.site(Host::Edge1);
    let mut command = site.command(workspace::binary("culvert-agent"));
    command.env("CULVERT_LOG_FORMAT", "json");
    command.arg("--state-dir").arg(site.file("agent"));
    command.args(["--proxy", &proxies::for_agents(number)]);
    command.args(["--admin-listen", &format!("127.0.0.1:{SECOND_AGENT}")]);
    for port in [ECHO, GREET] {
        command.args(["--port", &port.to_string()]);
    }
    site.start_process("second-agent", &mut command)
}

/// What an operator reads of a failed command at proxy `number`.
fn refused(world: &World<'_>, number: u16, args: &[&str]) -> Result<String> {
    match proxies::control(world, number, args) {
        Ok(answer) => bail!("{args:?} went through: {answer}"),
        Err(error) => Ok(error.to_string()),
    }
}

/// Each node with its VIPs at proxy `number`.
fn vips(world: &World<'_>, number: u16) -> Result<Vec<[Value; 3]>> {
    let cloud = world.lab.site(Host::Cloud);
    let nodes = cloud.json(proxies::admin(number), "/debug/nodes")?;
    let nodes = nodes.as_array().context("no list")?.iter();
    Ok(nodes
        .map(|node| ["name", "vip4", "vip6"].map(|field| node[field].clone()))
        .collect())
}

fn greets_through(world: &World<'_>, number: u16) -> Result<()> {
    let target = format!("edge-1:{GREET}");
    connect::check_greeting(&proxies::connect_socket(world, number), &target)
}

/// Waits until the follower has written down that it has seen edge-1.
fn wait_seen(world: &World<'_>) -> Result<()> {
    let state = format!("proxy-{SECOND}/certificates.jsonl");
    let ledger = world.lab.site(Host::Cloud).file(&state);
    wait::until("the node is written down", TIME, || {
        let text = std::fs::read_to_string(&ledger)?;
        ensure!(text.contains("edge-1"), "{text}");
        Ok(())
    })
}

/// Waits until proxy `number` has refused the certificate of edge-1.
fn wait_refused(number: u16, proxy: &Process) -> Result<()> {
    let reason = "the certificate of edge-1 was revoked";
    proxy
        .wait_logged("agent connection", &[("reason", reason)], TIME)
        .with_context(|| format!("proxy {number}"))
        .map(drop)
}

#[test]
fn a_token_of_one_proxy_works_at_another_and_once_and_vips_are_equal() {
    world::prepared(EDGES, primary, |world| {
        let _follower = start_follower(world)?;
        let of_follower = token(world, SECOND, "edge-2", FIRST)?;
        world.culvert.join(Host::Edge2, &of_follower)?;
        let of_primary = token(world, FIRST, "edge-3", SECOND)?;
        world.culvert.join(Host::Edge3, &of_primary)?;
        for (host, join) in [(Host::Edge3, &of_follower), (Host::Edge2, &of_primary)] {
            let error = world.culvert.join(host, join);
            let error = error.err().context("a used token works")?.to_string();
            ensure!(error.contains("was used already"), "{error}");
        }
        for number in [FIRST, SECOND] {
            let listed = proxies::control(world, number, &["token", "list"])?;
            ensure!(listed.matches("used").count() == 3, "{listed}");
        }
        wait::until("all VIPs are equal", PATIENCE, || {
            let own = vips(world, FIRST)?;
            let followed = vips(world, SECOND)?;
            ensure!(own.len() == 3 && own == followed, "{own:?}, {followed:?}");
            Ok(())
        })
    });
}

#[test]
fn a_node_that_is_removed_at_a_follower_is_out_at_all_proxies() {
    world::prepared(EDGES, primary, |world| {
        let follower = start_follower(world)?;
        let _agent = agent_at(world, SECOND)?;
        proxies::wait_for_tunnels(world, SECOND)?;
        proxies::control(world, SECOND, &["node", "remove", "edge-1"])?;
        world.culvert.wait_offline(Host::Edge1, PATIENCE)?;
        for number in [FIRST, SECOND] {
            wait::until("no tunnel is left", PATIENCE, || {
                let cloud = world.lab.site(Host::Cloud);
                let tunnels = cloud.json(proxies::admin(number), "/debug/tunnels")?;
                ensure!(tunnels == serde_json::json!([]), "{number}: {tunnels}");
                Ok(())
            })?;
            let listed = proxies::control(world, number, &["nodes"])?;
            ensure!(!listed.contains("edge-1"), "{listed}");
        }
        // The node is there again, but its agents have the old certificate.
        proxies::control(world, SECOND, &["token", "create", "edge-1"])?;
        wait_refused(FIRST, &world.culvert.proxy)?;
        wait_refused(SECOND, &follower)
    });
}

#[test]
fn a_proxy_that_was_away_when_a_node_was_removed_refuses_its_certificate() {
    world::prepared(EDGES, primary, |world| {
        let mut follower = start_follower(world)?;
        let _agent = agent_at(world, SECOND)?;
        proxies::wait_for_tunnels(world, SECOND)?;
        follower.kill()?;
        // Its log goes on in the same file.
        let before = follower.logged("tunnel up", &[]).len();
        proxies::control(world, FIRST, &["node", "remove", "edge-1"])?;
        proxies::control(world, FIRST, &["token", "create", "edge-1"])?;
        let follower = start_follower(world)?;
        wait_refused(SECOND, &follower)?;
        let after = follower.logged("tunnel up", &[]).len();
        ensure!(after == before, "it admitted the agent");
        Ok(())
    });
}

#[test]
fn without_the_primary_a_follower_serves_its_nodes_and_says_what_it_cannot_do() {
    world::prepared(EDGES, primary, |world| {
        let mut follower = start_follower(world)?;
        let _agent = agent_at(world, SECOND)?;
        proxies::wait_for_tunnels(world, SECOND)?;
        wait_seen(world)?;
        let before = vips(world, SECOND)?;
        world.culvert.proxy.kill()?;
        follower.kill()?;
        let _follower = start_follower(world)?;
        wait::until("the follower reaches the node", TIME, || {
            greets_through(world, SECOND)
        })?;
        ensure!(vips(world, SECOND)? == before, "other VIPs than before");
        let primary = proxies::for_peers(FIRST);
        for args in [
            &["token", "create", "edge-9"][..],
            &["token", "list"],
            &["node", "remove", "edge-1"],
        ] {
            let error = refused(world, SECOND, args)?;
            ensure!(error.contains(&primary), "{args:?}: {error}");
        }
        // The node could not be removed. It is shut out nevertheless.
        wait::until("its tunnels are closed", PATIENCE, || {
            let cloud = world.lab.site(Host::Cloud);
            let tunnels = cloud.json(proxies::admin(SECOND), "/debug/tunnels")?;
            ensure!(tunnels == serde_json::json!([]), "{tunnels}");
            Ok(())
        })?;
        world.culvert.restart_proxy()?;
        world.culvert.wait_for_proxy()?;
        wait_refused(FIRST, &world.culvert.proxy)
    });
}
