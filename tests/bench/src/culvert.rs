//! Culvert's proxy and the agent of one node, with default settings.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::join_arguments;
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::wait;

use crate::redirector;
use crate::starter::{Route, Starter};

/// Time for programs that start side by side on two cores, over a slow link.
const START_TIME: Duration = Duration::from_secs(60);

/// Where they listen, and what their files are called.
pub(crate) struct PairConfig {
    /// The name of the node, which files have too.
    pub(crate) name: &'static str,
    /// The proxy's ports are this and the next few.
    pub(crate) port: u16,
    pub(crate) tunnels: u8,
}

/// Both programs, running.
pub(crate) struct Culvert {
    proxy: Process,
    agent: Process,
    node: &'static str,
    admin: u16,
    socket: PathBuf,
}

impl Culvert {
    /// Starts them and waits for the tunnels. `address` is where the agent reaches the proxy's host,
    /// and `backends` are ports of the agent's host.
    pub(crate) fn start(
        cloud: &Starter<'_>,
        edge: &Starter<'_>,
        config: &PairConfig,
        address: &str,
        backends: &[u16],
    ) -> Result<Self> {
        let for_agents = format!("{address}:{}", config.port);
        let proxy = start_proxy(cloud, config, &for_agents)?;
        join(cloud, edge, config)?;
        let mut started = Self {
            proxy,
            agent: start_agent(edge, config, &for_agents, backends)?,
            node: config.name,
            admin: config.port + ADMIN,
            socket: cloud.site.file(&socket(config.name, "connect")),
        };
        wait::until("the agent has its tunnels", START_TIME, || {
            started.check()?;
            let listed = cloud.site.json(config.port + ADMIN, "/debug/tunnels")?;
            let count = listed.as_array().context("no list")?.len();
            let wanted = usize::from(config.tunnels);
            ensure!(count == wanted, "it has {count} of {wanted}");
            Ok(())
        })?;
        Ok(started)
    }

    /// Fails if one of them has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.proxy.check()?;
        self.agent.check()
    }

    /// The route by CONNECT to a port of the node.
    pub(crate) fn route(&self, port: u16) -> Route {
        Route {
            endpoint: format!("connect:{}:{}:{port}", self.socket.display(), self.node),
            pids: vec![self.proxy.pid(), self.agent.pid()],
        }
    }

    /// Where a redirector learns the directory.
    pub(crate) fn directory_socket(&self, cloud: &Site) -> String {
        file(cloud, &socket(self.node, "directory"))
    }

    /// The address of the node that a redirector steers.
    pub(crate) fn vip(&self, cloud: &Site) -> Result<String> {
        redirector::vip(cloud, self.admin, self.node)
    }

    pub(crate) fn agent(&self) -> &Process {
        &self.agent
    }
}

/// Behind the port for agents.
pub(crate) const ADMIN: u16 = 9;
const INTERCEPT: [u16; 4] = [10, 11, 12, 13];

pub(crate) fn socket(name: &str, what: &str) -> String {
    format!("{name}-{what}.sock")
}

fn file(site: &Site, name: &str) -> String {
    site.file(name).display().to_string()
}

/// Starts the proxy and waits until it is ready.
pub(crate) fn start_proxy(
    cloud: &Starter<'_>,
    config: &PairConfig,
    advertised: &str,
) -> Result<Process> {
    let mut command = proxy(cloud, config, advertised);
    let name = format!("{}-proxy", config.name);
    let mut proxy = cloud.site.start_process(&name, &mut command)?;
    wait::until("the proxy is ready", START_TIME, || {
        proxy.check()?;
        let admin = config.port + ADMIN;
        cloud.site.http_get(admin, "/readyz").map(drop)
    })?;
    Ok(proxy)
}

/// The command line of the proxy.
fn proxy(cloud: &Starter<'_>, config: &PairConfig, advertised: &str) -> Command {
    let name = config.name;
    let port = config.port;
    let mut command = cloud.command("culvert-proxy");
    command.args(["--log", "warn", "--advertise", advertised]);
    command.args(["--state-dir", &file(cloud.site, &format!("{name}-proxy"))]);
    command.args([
        format!("--agent-listen=[::]:{port}"),
        format!("--admin-listen=127.0.0.1:{}", port + ADMIN),
    ]);
    command.args(INTERCEPT.map(|behind| format!("--intercept-listen=[::]:{}", port + behind)));
    for what in ["connect", "directory", "control", "admin"] {
        let path = file(cloud.site, &socket(name, what));
        command.args([format!("--{what}-socket"), path]);
    }
    command
}

fn join(cloud: &Starter<'_>, edge: &Starter<'_>, config: &PairConfig) -> Result<()> {
    let create = ["token", "create", config.name];
    let printed = cloud.ask(&socket(config.name, "control"), &create)?;
    let mut join = join_arguments(&printed)?;
    join.extend(["--state-dir".to_owned(), agent_state(edge, config)]);
    edge.output("culvert-agent", &join).map(drop)
}

fn start_agent(
    edge: &Starter<'_>,
    config: &PairConfig,
    proxy: &str,
    backends: &[u16],
) -> Result<Process> {
    let state = agent_state(edge, config);
    let tunnels = config.tunnels;
    let run = format!(
        "--log warn --state-dir {state} --proxy {proxy} --admin-listen 127.0.0.1:0 --admin-socket \
         {state}.sock --tunnels {tunnels}"
    );
    let mut command = edge.command("culvert-agent");
    command.args(run.split(' '));
    for port in backends {
        command.args(["--port", &port.to_string()]);
    }
    let name = format!("{}-agent", config.name);
    edge.site.start_process(&name, &mut command)
}

fn agent_state(edge: &Starter<'_>, config: &PairConfig) -> String {
    file(edge.site, &format!("{}-agent", config.name))
}
