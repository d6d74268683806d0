//! Culvert: proxy, redirector and agents, with default settings.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::pki::{Authority, Issued, Use};
use culvert_lab::process::Process;
use culvert_lab::wait;

use super::{BACKENDS, Route, START_TIME, Starter, local};
use crate::load::Figures;
use crate::redirector;

/// The proxy's agent port.
pub(super) const PROXY: u16 = 7400;
const PROXY_ADMIN: u16 = 7409;
/// Its port for clients of CONNECT over TLS.
const TLS_CLIENTS: u16 = 7402;
const SECOND_PROXY: u16 = 7500;
/// A tunnel that was added for heavy streams ends a minute after them.
const UNUSED_TUNNELS_END: Duration = Duration::from_secs(120);
/// The peer ports of the proxy and of the second one.
const PEERS: [u16; 2] = [7401, 7501];
const SECOND_ADMIN: u16 = 7509;

/// The tunnels whose memory is measured: agents, and tunnels of each.
const MEASURED_TUNNELS: [usize; 2] = [4, 16];
/// Destinations of a node in the directory file: addresses, and ports.
const NODE_DESTINATIONS: [usize; 2] = [10, 50];

/// The programs, running.
pub(super) struct Culvert<'lab> {
    starter: Starter<'lab>,
    proxy: Process,
    /// Another proxy. All tunnels end at the first one.
    second: Option<Process>,
    /// A client of CONNECT over TLS.
    client: Issued,
    redirector: Process,
    agents: BTreeMap<String, Process>,
    destinations: usize,
}

/// How many proxies there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Proxies {
    One,
    Two,
}

impl<'lab> Culvert<'lab> {
    pub(super) fn start(starter: Starter<'lab>, proxies: Proxies) -> Result<Self> {
        std::fs::write(starter.site.file("nodes.toml"), directory(0))
            .context("write the directory file")?;
        let clients = clients(&starter).make()?;
        let proxy = start_proxy(&starter, proxies)?;
        let redirector = redirector::start(&starter, &starter.file("directory.sock"))?;
        let mut culvert = Self {
            starter,
            proxy,
            second: None,
            client: clients.issue("client", Use::Client)?,
            redirector,
            agents: BTreeMap::new(),
            destinations: 0,
        };
        culvert.wait_ready(PROXY_ADMIN)?;
        culvert.add_agent("near", PROXY, near_tunnels(proxies))?;
        culvert.wait_ready(redirector::ADMIN)?;
        if proxies == Proxies::Two {
            culvert.second = Some(start_second(&culvert.starter)?);
            culvert.wait_ready(SECOND_ADMIN)?;
            culvert.wait_for_peer()?;
        }
        Ok(culvert)
    }

    /// Restarts the proxy and the near agent, and waits until clients are steered there.
    pub(super) fn start_afresh(&mut self) -> Result<()> {
        self.proxy.kill()?;
        self.agents.remove("near");
        let proxies = match &self.second {
            Some(_) => Proxies::Two,
            None => Proxies::One,
        };
        self.proxy = start_proxy(&self.starter, proxies)?;
        self.wait_ready(PROXY_ADMIN)?;
        self.start_agent("near", PROXY, near_tunnels(proxies))?;
        self.wait_for_peer()?;
        redirector::wait_steered(self.starter.site, &self.vip("near")?, BACKENDS[0])
    }

    /// Waits until the second proxy, if there is one, reaches the near node through the first: also
    /// until the tunnels are gone to which heavy streams have moved.
    pub(super) fn wait_for_peer(&self) -> Result<()> {
        if self.second.is_none() {
            return Ok(());
        }
        wait::until("the second proxy reaches near", UNUSED_TUNNELS_END, || {
            let explained = self.starter.ask("second-control.sock", &["why", "near"])?;
            ensure!(explained.contains(" on the link to it"), "{explained}");
            Ok(())
        })
    }

    fn wait_ready(&mut self, admin: u16) -> Result<()> {
        wait::until(&format!("port {admin} says ready"), START_TIME, || {
            self.check()?;
            self.starter.site.http_get(admin, "/readyz").map(drop)
        })
    }

    pub(super) fn starter(&self) -> &Starter<'lab> {
        &self.starter
    }

    pub(super) fn check(&mut self) -> Result<()> {
        [&mut self.proxy, &mut self.redirector]
            .into_iter()
            .chain(&mut self.second)
            .chain(self.agents.values_mut())
            .try_for_each(Process::check)
    }

    /// Joins a node's agent, starts it so that it reaches the proxy through `port`, and waits for
    /// its tunnels.
    pub(super) fn add_agent(&mut self, node: &str, port: u16, tunnels: usize) -> Result<()> {
        self.join(node)?;
        self.start_agent(node, port, tunnels)
    }

    fn join(&self, node: &str) -> Result<()> {
        let create = ["token", "create", node];
        let printed = self.starter.ask("control.sock", &create)?;
        let printed = printed.replace("\\\n", " ");
        let (_, join) = printed
            .split_once("culvert-agent ")
            .context("no join command")?;
        let mut join: Vec<String> = join.split_whitespace().map(str::to_owned).collect();
        join.extend([
            "--state-dir".to_owned(),
            self.starter.file(&format!("agent-{node}")),
        ]);
        self.starter.output("culvert-agent", &join)?;
        Ok(())
    }

    fn start_agent(&mut self, node: &str, port: u16, tunnels: usize) -> Result<()> {
        let state = self
            .starter
            .site
            .file(&format!("agent-{node}"))
            .display()
            .to_string();
        let run = format!(
            "--log warn --state-dir {state} --proxy {} --tunnels {tunnels} --port {},{} \
             --admin-listen 127.0.0.1:0 --admin-socket {state}.sock",
            local(port),
            BACKENDS[0],
            BACKENDS[1]
        );
        let mut command = self.starter.command("culvert-agent");
        let agent = self
            .starter
            .site
            .start_process(&format!("agent-{node}"), command.args(run.split(' ')))?;
        self.agents.insert(node.to_owned(), agent);
        wait::until(&format!("{node} has its tunnels"), START_TIME, || {
            self.agents.get_mut(node).context("no agent")?.check()?;
            let list = self.starter.site.json(PROXY_ADMIN, "/debug/tunnels")?;
            let up = list
                .as_array()
                .context("no list")?
                .iter()
                .filter(|tunnel| tunnel["node"] == node)
                .count();
            ensure!(up == tunnels, "it has {up} of {tunnels}");
            Ok(())
        })
    }

    fn pids(&self, node: &str) -> Vec<u32> {
        [Some(&self.proxy), self.agents.get(node)]
            .into_iter()
            .flatten()
            .map(Process::pid)
            .collect()
    }

    /// The route by CONNECT to a node's name.
    pub(super) fn by_connect(&self, node: &str) -> Route {
        let socket = self.starter.site.file("connect.sock");
        Route {
            endpoint: format!("connect:{}:{node}:{}", socket.display(), BACKENDS[0]),
            pids: self.pids(node),
        }
    }

    /// The same over TLS.
    pub(super) fn by_tls(&self, node: &str) -> Route {
        let authority = self.starter.site.file("proxy/ca.crt");
        let files = [&authority, &self.client.certificate, &self.client.key];
        let files = files.map(|file| file.display().to_string()).join(":");
        Route {
            endpoint: format!(
                "connect-tls:{}:{files}:{node}:{}",
                local(TLS_CLIENTS),
                BACKENDS[0]
            ),
            pids: self.pids(node),
        }
    }

    /// The route by CONNECT to a backend that the proxy dials itself.
    pub(super) fn by_direct(&self) -> Route {
        let socket = self.starter.site.file("connect.sock");
        Route {
            endpoint: format!("connect:{}:{}", socket.display(), local(BACKENDS[0])),
            pids: vec![self.proxy.pid()],
        }
    }

    /// The same at the second proxy.
    pub(super) fn by_peer(&self, node: &str) -> Route {
        let socket = self.starter.site.file("second-connect.sock");
        let second = self.second.iter().map(Process::pid);
        Route {
            endpoint: format!("connect:{}:{node}:{}", socket.display(), BACKENDS[0]),
            pids: self.pids(node).into_iter().chain(second).collect(),
        }
    }

    /// The route by a node's VIP, which the kernel steers.
    pub(super) fn by_address(&self, node: &str, port: u16) -> Result<Route> {
        Ok(Route {
            endpoint: format!("tcp:{}:{port}", self.vip(node)?),
            pids: self.pids(node),
        })
    }

    fn vip(&self, node: &str) -> Result<String> {
        redirector::vip(self.starter.site, PROXY_ADMIN, node)
    }

    /// Measures the memory of a tunnel on the proxy: the resident memory with many tunnels minus
    /// that without. Enrolments, and what the first tunnels allocate for all later ones, come
    /// before the measurement.
    pub(super) fn idle_tunnels(&mut self) -> Result<Figures> {
        let [agents, tunnels] = MEASURED_TUNNELS;
        let nodes: Vec<String> = (0..=agents)
            .map(|number| format!("idle-{number}"))
            .collect();
        for node in &nodes {
            self.join(node)?;
        }
        self.start_agent(&nodes[0], PROXY, tunnels)?;
        let before = self.proxy.resident()?;
        for node in &nodes[1..] {
            self.start_agent(node, PROXY, tunnels)?;
        }
        let taken = self.proxy.resident()?.saturating_sub(before);
        self.agents.retain(|node, _| !nodes.contains(node));
        Ok([(
            "kb_per_tunnel".to_owned(),
            taken as f64 / 1000.0 / (agents * tunnels) as f64,
        )]
        .into())
    }

    /// Fills the directory file and waits until the redirector has put all of it into the kernel.
    pub(super) fn set_destinations(&mut self, count: usize) -> Result<()> {
        if count == self.destinations {
            return Ok(());
        }
        let grows = count > self.destinations;
        let wanted = self.steered()? - self.destinations as f64 + count as f64;
        culvert_lab::progress::say(&format!("    {count} destinations"));
        let file = self.starter.site.file("nodes.toml");
        std::fs::write(file.with_extension("new"), directory(count))
            .context("write the directory file")?;
        std::fs::rename(file.with_extension("new"), &file).context("replace the directory file")?;
        wait::until(
            &format!("{count} destinations are steered"),
            START_TIME * 3,
            || {
                let steered = self.steered()?;
                ensure!(
                    if grows {
                        steered >= wanted
                    } else {
                        steered <= wanted
                    },
                    "{steered} of {wanted}"
                );
                Ok(())
            },
        )?;
        self.destinations = count;
        Ok(())
    }

    fn steered(&self) -> Result<f64> {
        Ok(self.destinations_that_are("online")? + self.destinations_that_are("offline")?)
    }

    fn destinations_that_are(&self, state: &str) -> Result<f64> {
        let name = format!("culvert_redirector_destinations{{state=\"{state}\"}}");
        self.starter.site.metric(redirector::ADMIN, &name)
    }
}

/// The authority of clients of CONNECT over TLS.
fn clients(starter: &Starter<'_>) -> Authority {
    Authority::at(starter.site.file("clients"))
}

/// With a second proxy one: another tunnel would end there.
fn near_tunnels(proxies: Proxies) -> usize {
    match proxies {
        Proxies::One => 2,
        Proxies::Two => 1,
    }
}

fn start_proxy(starter: &Starter<'_>, proxies: Proxies) -> Result<Process> {
    let mut command = starter.command("culvert-proxy");
    command.args([
        "--log",
        "warn",
        "--advertise",
        &local(PROXY),
        "--state-dir",
        &starter.file("proxy"),
    ]);
    command.args([
        "--connect-listen",
        &local(TLS_CLIENTS),
        "--connect-client-ca",
        &clients(starter).certificate().display().to_string(),
        "--direct",
        "127.0.0.1/32",
    ]);
    for socket in ["connect", "directory", "control", "admin"] {
        command.args([
            format!("--{socket}-socket"),
            starter.file(&format!("{socket}.sock")),
        ]);
    }
    if proxies == Proxies::Two {
        command.args(["--peer", &local(PEERS[1])]);
    }
    starter.site.start_process(
        "proxy",
        command.args(["--directory", &starter.file("nodes.toml")]),
    )
}

/// Starts a proxy that has its nodes from the first one, and no agents.
fn start_second(starter: &Starter<'_>) -> Result<Process> {
    let mut command = starter.command("culvert-proxy");
    command.args(["--log", "warn", "--state-dir", &starter.file("second")]);
    command.args(["--advertise", &local(SECOND_PROXY)]);
    command.args(["--ca-cert", &starter.file("proxy/ca.crt")]);
    command.args(["--ca-key", &starter.file("proxy/ca.key")]);
    command.args(["--follow", &local(PEERS[0])]);
    for (listener, port) in [
        ("agent", SECOND_PROXY),
        ("peer", PEERS[1]),
        ("intercept", 7510),
        ("admin", SECOND_ADMIN),
    ] {
        command.args([format!("--{listener}-listen"), local(port)]);
    }
    for socket in ["connect", "directory", "control", "admin"] {
        let path = starter.file(&format!("second-{socket}.sock"));
        command.args([format!("--{socket}-socket"), path]);
    }
    starter.site.start_process("second", &mut command)
}

/// A directory file with that many destinations.
fn directory(count: usize) -> String {
    let [addresses, ports] = NODE_DESTINATIONS;
    let mut text = "[nodes]\n".to_owned();
    for node in 0..count / (addresses * ports) {
        let list: Vec<String> = (0..addresses)
            .map(|last| format!("\"10.{}.{}.{last}\"", node / 256, node % 256))
            .collect();
        let ports: Vec<String> = (0..ports).map(|port| (20_000 + port).to_string()).collect();
        writeln!(
            text,
            "[nodes.many-{node}]\naddresses = [{}]\nports = [{}]",
            list.join(", "),
            ports.join(", ")
        )
        .expect("a String takes it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_file_has_as_many_destinations_as_asked_for() {
        assert_eq!(directory(0), "[nodes]\n");
        let text = directory(1000);
        assert_eq!(text.matches("[nodes.").count(), 2);
        assert!(
            text.contains("\"10.0.1.9\"") && text.contains("20049]"),
            "{text}"
        );
    }
}
