//! How agents reach their proxies: at another address, through a forward proxy, and several
//! proxies.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Culvert, Options, PROXY_ADMIN, PROXY_FOR_AGENTS};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, inside};

use crate::connect;
use crate::proxies;
use crate::world::{self, GREET, World};

const EDGE: &[Host] = &[Host::Edge1];

#[test]
fn an_agent_reaches_the_proxy_under_another_address_through_a_forwarder() {
    world::in_lab(|lab| {
        let cloud = lab.site(Host::Cloud);
        let mut forwarder = cloud.command(world::xtask());
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
        world.wait_greeting("10.0.3.7", PATIENCE)
    });
}

/// Both edges reach the same agent port: one through a balancer that says whose its connections
/// are, and one directly.
#[test]
fn behind_a_balancer_with_proxy_headers_agents_are_known_by_their_own_addresses() {
    world::in_lab(|lab| {
        let cloud = lab.site(Host::Cloud);
        let mut balancer = cloud.command(world::xtask());
        balancer.args([
            "probe",
            "serve",
            &format!("7444=forward-with-header:{PROXY_FOR_AGENTS}"),
        ]);
        let _balancer = cloud.start_process("balancer", &mut balancer)?;
        let backends = world::serve(lab, Host::Edge1)?;
        let options = world::with_defaults(Options {
            proxy: vec![
                "--advertise=203.0.113.1:7444".into(),
                "--proxy-protocol=203.0.113.1/32".into(),
            ],
            ..Options::default()
        });
        let mut world = World::of(lab, Culvert::start(lab, &[], options)?, vec![backends]);
        for (edge, address) in [
            (Host::Edge1, "203.0.113.1:7444"),
            (Host::Edge2, PROXY_FOR_AGENTS),
        ] {
            let mut join = world.culvert.create_token(edge, &[])?;
            only_by(&mut join, address)?;
            world.culvert.join(edge, &join)?;
            world.culvert.start_agent(edge)?;
            world.culvert.wait_online(edge)?;
        }
        for (node, address) in [("edge-1", "198.51.100.1:"), ("edge-2", "198.51.100.5:")] {
            let agents = agents_of(&world, node)?;
            ensure!(
                !agents.is_empty() && agents.iter().all(|agent| agent.starts_with(address)),
                "{node} from {agents:?}"
            );
        }
        headers_are_read_of_the_balancer_alone(&world)?;
        world.wait_greeting("10.0.3.7", PATIENCE)
    });
}

/// The balancer is refused without a header, and an edge with one.
fn headers_are_read_of_the_balancer_alone(world: &World<'_>) -> Result<()> {
    let proxy: SocketAddr = PROXY_FOR_AGENTS.parse()?;
    let send = |from: Host, bytes: &'static [u8]| {
        inside::run(world.lab.site(from).netns(), || {
            let mut stream = TcpStream::connect_timeout(&proxy, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(bytes)?;
            // It is ended by the proxy, with or without a word.
            stream.read_to_end(&mut Vec::new()).ok();
            Ok(())
        })
    };
    send(Host::Cloud, b"GET / HTTP/1.1\r\n\r\n")?;
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0 and no TLS after it";
    send(Host::Edge2, local)?;
    let cloud = world.lab.site(Host::Cloud);
    for outcome in ["header_refused", "handshake_failed"] {
        let metric = format!("culvert_proxy_agent_connections_total{{outcome=\"{outcome}\"}}");
        wait::until(&metric, PATIENCE, || {
            let count = cloud.metric(PROXY_ADMIN, &metric)?;
            ensure!((count - 1.0).abs() < f64::EPSILON, "{count}");
            Ok(())
        })?;
    }
    for reason in ["does not begin with a PROXY header", "not TLS"] {
        world.wait_proxy_log("agent connection", &[("reason", reason)])?;
    }
    Ok(())
}

/// Leaves only one of the proxy's addresses in a join command.
fn only_by(join: &mut Vec<String>, address: &str) -> Result<()> {
    while let Some(other) = join
        .iter()
        .skip(1)
        .zip(1..)
        .find_map(|(word, at)| (join[at - 1] == "--proxy" && word != address).then_some(at))
    {
        join.drain(other - 1..=other);
    }
    ensure!(join.iter().any(|word| word == address), "{join:?}");
    Ok(())
}

#[test]
fn an_agent_behind_an_http_proxy_dials_out_through_it() {
    world::in_lab(|lab| {
        let cloud = lab.site(Host::Cloud);
        let mut proxy = cloud.command(world::xtask());
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
        world.wait_greeting("10.0.3.7", PATIENCE)
    });
}

/// The addresses that the tunnels of a node come from.
fn agents_of(world: &World<'_>, node: &str) -> Result<Vec<String>> {
    let mut agents = Vec::new();
    for tunnel in world.tunnels_of(node)? {
        agents.push(tunnel["agent"].as_str().context("no address")?.to_owned());
    }
    Ok(agents)
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
