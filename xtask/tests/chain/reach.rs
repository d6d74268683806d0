//! How agents reach their proxies: at another address, through a forward proxy, and several
//! proxies.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Culvert, Options, PROXY_ADMIN, PROXY_FOR_AGENTS};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, wait};

use crate::connect;
use crate::proxies;
use crate::world::{self, GREET, World};

const EDGE: &[Host] = &[Host::Edge1];

#[test]
fn an_agent_reaches_the_proxy_under_another_address_through_a_forwarder() {
    world::in_lab(|lab| {
        let cloud = lab.site(Host::Cloud);
        let mut forwarder = cloud.command(world::XTASK);
        forwarder.args([
            "probe",
            "serve",
            &format!("7444=forward:{PROXY_FOR_AGENTS}"),
        ]);
        let _forwarder = cloud.start_process("forwarder", &mut forwarder)?;
        let backends = world::serve(lab, Host::Edge1)?;
        let options = world::with_defaults(Options {
            proxy: vec!["--advertise".into(), "203.0.113.1:7444".into()],
            ..Options::default()
        });
        let mut world = World::of(lab, Culvert::start(lab, &[], options)?, vec![backends]);
        let mut join = world.culvert.create_token(Host::Edge1, &[])?;
        // The proxy prints two addresses of itself; this agent gets only the second one.
        let direct = join
            .iter()
            .position(|word| word == PROXY_FOR_AGENTS)
            .context("no direct way in the join command")?;
        join.drain(direct - 1..=direct);
        ensure!(
            join.iter().any(|word| word == "203.0.113.1:7444"),
            "{join:?}"
        );
        world.culvert.join(Host::Edge1, &join)?;
        world.culvert.start_agent(Host::Edge1)?;
        world.culvert.wait_online(Host::Edge1)?;
        came_from_the_cloud(&world)?;
        world.wait_greeting("10.0.3.7", Duration::from_secs(5))
    });
}

#[test]
fn an_agent_behind_an_http_proxy_dials_out_through_it() {
    world::in_lab(|lab| {
        let cloud = lab.site(Host::Cloud);
        let mut proxy = cloud.command(world::XTASK);
        let _proxy = cloud.start_process(
            "http-proxy",
            proxy.args(["probe", "serve", "3128=http-proxy"]),
        )?;
        let backends = world::serve(lab, Host::Edge1)?;
        let agent_env = vec![(
            "HTTPS_PROXY".to_owned(),
            "http://203.0.113.1:3128".to_owned(),
        )];
        let options = world::with_defaults(Options {
            agent_env,
            ..Options::default()
        });
        let world = World::of(lab, Culvert::start(lab, EDGE, options)?, vec![backends]);
        came_from_the_cloud(&world)?;
        world.wait_greeting("10.0.3.7", Duration::from_secs(5))
    });
}

/// Proves that the tunnels' peer is the forwarder's address, not the edge's.
fn came_from_the_cloud(world: &World<'_>) -> Result<()> {
    let tunnels = world
        .lab
        .site(Host::Cloud)
        .json(PROXY_ADMIN, "/debug/tunnels")?;
    let agents: Vec<&str> = tunnels
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tunnel| tunnel["agent"].as_str())
        .collect();
    ensure!(
        !agents.is_empty() && agents.iter().all(|agent| agent.contains("203.0.113.1")),
        "tunnels from {agents:?}"
    );
    Ok(())
}

/// The other one of two proxies that are no peers.
const SECOND: u16 = 5;

#[test]
fn one_agent_serves_two_proxies_and_does_without_either() {
    world::prepared(EDGE, with_two_proxies, |world| {
        let second = start_second_proxy(world)?;
        wait::until(
            "the agent has two tunnels to each proxy",
            Duration::from_secs(30),
            || {
                let tunnels = world
                    .lab
                    .site(Host::Edge1)
                    .json(AGENT_ADMIN, "/debug/tunnels")?;
                let up = tunnels
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(|tunnel| tunnel["state"] == "up")
                    .count();
                ensure!(up == 4, "{tunnels}");
                Ok(())
            },
        )?;
        let target = format!("edge-1:{GREET}");
        for socket in ["connect.sock", "connect-5.sock"] {
            connect::check_greeting(&world.culvert.socket(socket), &target).context(socket)?;
        }
        drop(second);
        connect::check_greeting(&world.culvert.socket("connect.sock"), &target)
            .context("without the second")?;
        let _second = start_second_proxy(world)?;
        world.culvert.proxy.kill()?;
        wait::until(
            "the second proxy has the node again",
            Duration::from_secs(30),
            || connect::check_greeting(&proxies::connect_socket(world, SECOND), &target),
        )
    });
}

/// Both proxies read the same directory file and use the same authority.
fn with_two_proxies(lab: &Lab) -> Result<Options> {
    let mut options = proxies::prepare(lab, EDGE)?;
    let second = proxies::for_agents(SECOND);
    options.agent = ["--proxy", PROXY_FOR_AGENTS, "--proxy", &second]
        .map(str::to_owned)
        .to_vec();
    Ok(options)
}

fn start_second_proxy(world: &World<'_>) -> Result<Process> {
    let proxy = proxies::start(world, SECOND, &[])?;
    proxies::wait_for_tunnels(world, SECOND)?;
    Ok(proxy)
}
