//! Further proxies in the cloud of a lab, beside the first one. The ports and files of proxy N are
//! those of the first one with another number: 7N00 to 7N13, `proxy-N`, `connect-N.sock`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::cloud_host::CloudHost;
use culvert_lab::culvert::{Options, ask, link_sockets, printed};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, wait, workspace};
use serde_json::Value;

use crate::world::{self, World};
use culvert_lab::pki::{Authority, text};

const START_TIME: Duration = Duration::from_secs(60);

/// The number of the first proxy in the port numbers.
pub(crate) const FIRST: u16 = 4;
/// The other two of three proxies.
pub(crate) const SECOND: u16 = 5;
pub(crate) const THIRD: u16 = 6;
/// All three.
pub(crate) const THREE: [u16; 3] = [FIRST, SECOND, THIRD];

/// The address at which agents reach the proxy.
pub(crate) fn for_agents(number: u16) -> String {
    format!("203.0.113.1:7{number}00")
}

/// Where other proxies reach the proxy.
pub(crate) fn for_peers(number: u16) -> String {
    format!("203.0.113.1:7{number}01")
}

/// The proxy's peer port.
pub(crate) fn peer_port(number: u16) -> u16 {
    7001 + 100 * number
}

/// The port of the proxy's admin server on loopback.
pub(crate) fn admin(number: u16) -> u16 {
    7009 + 100 * number
}

/// The proxy's CONNECT socket.
pub(crate) fn connect_socket(world: &World<'_>, number: u16) -> PathBuf {
    world.culvert.socket(&file("connect", number))
}

/// A `culvert` command that asks proxy `number`.
pub(crate) fn control(world: &World<'_>, number: u16, args: &[&str]) -> Result<String> {
    workspace::output(&mut command(world, number, args)?)
}

/// What `culvert why` says of a destination at proxy `number`, reached or not.
pub(crate) fn why(world: &World<'_>, number: u16, destination: &str) -> Result<String> {
    printed(&mut command(world, number, &["why", destination])?)
}

fn command(world: &World<'_>, number: u16, args: &[&str]) -> Result<Command> {
    let folder = world.culvert.socket(&format!("run-{number}"));
    let sockets = [
        ("control.sock", "control"),
        ("connect.sock", "connect"),
        ("proxy/admin.sock", "admin"),
    ];
    let sockets = sockets.map(|(place, name)| (place, world.culvert.socket(&file(name, number))));
    link_sockets(&folder, &sockets)?;
    Ok(ask(world.lab.site(Host::Cloud), &folder, args))
}

/// The other proxies that proxy `number` knows, as its page has them.
pub(crate) fn peers(world: &World<'_>, number: u16) -> Result<Vec<Value>> {
    // The proxy is asked at its socket: some tests have proxies on several hosts.
    let socket = text(&world.culvert.socket(&file("admin", number)));
    let asked = [
        "-sf",
        "--unix-socket",
        &socket,
        "http://localhost/debug/peers",
    ];
    let page = world.lab.site(Host::Cloud).output("curl", asked)?;
    serde_json::from_str(&page).context("no list")
}

/// How many of them have a link whose round trip is measured.
pub(crate) fn linked(peers: &[Value]) -> usize {
    let mut count = 0;
    for peer in peers {
        let has_links = peer["links"].as_u64().is_some_and(|links| links > 0);
        count += usize::from(has_links && peer["round_trip_seconds"].is_number());
    }
    count
}

fn file(socket: &str, number: u16) -> String {
    match number {
        FIRST => format!("{socket}.sock"),
        _ => format!("{socket}-{number}.sock"),
    }
}

/// The authority and the nodes that all proxies of the lab have.
pub(crate) fn prepare(lab: &Lab, nodes: &[Host]) -> Result<Options> {
    let cloud = lab.site(Host::Cloud);
    let authority = Authority::at(cloud.file("operator")).make()?;
    let nodes: String = nodes
        .iter()
        .map(|host| format!("[nodes.{}]\n", host.name()))
        .collect();
    std::fs::write(cloud.file("nodes.toml"), nodes)?;
    Ok(world::proxy_options(authority.proxy_flags()))
}

/// The same for three proxies. Each knows all three, itself included.
pub(crate) fn prepare_three(lab: &Lab, nodes: &[Host]) -> Result<Options> {
    let mut options = prepare(lab, nodes)?;
    options.proxy.extend(peer_flags());
    Ok(options)
}

/// What tells a proxy of all three.
pub(crate) fn peer_flags() -> Vec<String> {
    THREE
        .iter()
        .flat_map(|number| ["--peer".to_owned(), for_peers(*number)])
        .collect()
}

/// Starts proxy `number` with the nodes that all have and further arguments, and waits until it is
/// ready.
pub(crate) fn start(world: &World<'_>, number: u16, further: &[String]) -> Result<Process> {
    let operator = world.lab.site(Host::Cloud).file("operator");
    start_under(&Authority::at(operator), world, number, further)
}

/// The same, with another authority.
pub(crate) fn start_under(
    authority: &Authority,
    world: &World<'_>,
    number: u16,
    further: &[String],
) -> Result<Process> {
    let further = [&nodes(world), further].concat();
    start_bare_under(authority, world, number, &further)
}

/// The nodes that all have.
pub(crate) fn nodes(world: &World<'_>) -> [String; 2] {
    let nodes = world.lab.site(Host::Cloud).file("nodes.toml");
    ["--directory".to_owned(), text(&nodes)]
}

/// Starts proxy `number` without nodes.
pub(crate) fn start_bare(world: &World<'_>, number: u16, further: &[String]) -> Result<Process> {
    let operator = world.lab.site(Host::Cloud).file("operator");
    start_bare_under(&Authority::at(operator), world, number, further)
}

fn start_bare_under(
    authority: &Authority,
    world: &World<'_>,
    number: u16,
    further: &[String],
) -> Result<Process> {
    let further = [&authority.proxy_flags(), further].concat();
    start_on(world, number, (CloudHost::First, &[]), &further)
}

/// Starts proxy `number` on a host of the cloud with further environment variables, an authority
/// and further arguments, and waits until it is ready.
pub(crate) fn start_on(
    world: &World<'_>,
    number: u16,
    (host, environment): (CloudHost, &[(&str, String)]),
    further: &[String],
) -> Result<Process> {
    let cloud = world.lab.site(Host::Cloud);
    let mut command = host.command(world.lab, workspace::binary("culvert-proxy"));
    command.env("CULVERT_LOG_FORMAT", "json");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.args([
        "--state-dir",
        &text(&cloud.file(&format!("proxy-{number}"))),
    ]);
    command.args(["--agent-listen", &format!("[::]:7{number}00")]);
    command.args(["--peer-listen", &format!("[::]:7{number}01")]);
    command.args(["--intercept-listen", &format!("[::]:7{number}10")]);
    command.args(["--admin-listen", &format!("127.0.0.1:{}", admin(number))]);
    for socket in ["connect", "directory", "control", "admin"] {
        command
            .arg(format!("--{socket}-socket"))
            .arg(cloud.file(&file(socket, number)));
    }
    command.args(further);
    let mut proxy = cloud.start_process(&format!("culvert-proxy-{number}"), &mut command)?;
    wait::until(&format!("proxy {number} is ready"), START_TIME, || {
        proxy.check()?;
        host.http_get(world.lab, admin(number), "/readyz").map(drop)
    })?;
    Ok(proxy)
}

/// Waits until proxy `number` has tunnels of agents.
pub(crate) fn wait_for_tunnels(world: &World<'_>, number: u16) -> Result<()> {
    let what = format!("proxy {number} has tunnels");
    wait::until(&what, START_TIME, || {
        let tunnels = world
            .lab
            .site(Host::Cloud)
            .json(admin(number), "/debug/tunnels")?;
        let tunnels = tunnels.as_array().context("no list")?;
        ensure!(!tunnels.is_empty(), "it has none");
        Ok(())
    })
}
