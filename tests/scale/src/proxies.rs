//! The proxies: the real program, each with an address of its own on the loopback.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::process::{KernelResources, Process, bound};
use culvert_lab::{progress, wait};
use serde_json::Value;

use crate::config::Config;
use crate::folder::Folder;
use crate::programs::Programs;
use crate::{network, node_name};

/// Time for programs that start side by side, with 10,000 nodes.
const START_TIME: Duration = Duration::from_secs(60);
const AGENT_PORT: u16 = 7400;
const PEER_PORT: u16 = 7401;
const ADMIN_PORT: u16 = 7500;
/// The connections that carry streams, from one proxy to another one.
const LINKS: u64 = 2;

/// All proxies, running.
pub(crate) struct Proxies<'a> {
    folder: &'a Folder,
    programs: &'a Programs,
    all: Vec<Process>,
    extra: Vec<String>,
    agents: u32,
    proxies: u32,
}

/// What a proxy uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) resident: u64,
    pub(crate) peak: u64,
    pub(crate) processor: Duration,
}

impl Usage {
    fn of(proxy: &Process) -> Result<Self> {
        Ok(Self {
            resident: proxy.resident()?,
            peak: proxy.peak_resident()?,
            processor: proxy.cpu_time()?,
        })
    }
}

impl<'a> Proxies<'a> {
    /// Starts them with a directory of all nodes, and waits until they are ready and linked.
    pub(crate) fn start(
        config: &Config,
        folder: &'a Folder,
        programs: &'a Programs,
    ) -> Result<Self> {
        let mut proxies = Self {
            folder,
            programs,
            all: Vec::new(),
            extra: Vec::new(),
            agents: config.agents,
            proxies: config.proxies,
        };
        proxies.write_directory()?;
        for number in 0..config.proxies {
            proxies.all.push(proxies.start_one(number)?);
        }
        proxies.wait_ready()?;
        proxies.wait_linked()?;
        Ok(proxies)
    }

    /// Kills all at once, starts them again, and waits until they are ready.
    pub(crate) fn kill_and_restart(&mut self) -> Result<()> {
        self.all.iter_mut().try_for_each(Process::kill)?;
        for number in 0..self.count() {
            self.all[number as usize] = self.start_one(number)?;
        }
        self.wait_ready()
    }

    /// Adds a node to the directory file.
    pub(crate) fn add_node(&mut self, name: &str) -> Result<()> {
        self.extra.push(name.to_owned());
        self.write_directory()
    }

    fn start_one(&self, number: u32) -> Result<Process> {
        let name = format!("proxy-{number}");
        let state = self.folder.file(&format!("{name}-state"));
        let mut command = bound(&self.programs.proxy());
        command.args(["--log", "warn", "--state-dir", &state]);
        command.args(["--directory", &self.folder.file("nodes.toml")]);
        command.args(["--ca-cert", &self.folder.file("ca.crt")]);
        command.args(["--ca-key", &self.folder.file("ca.key")]);
        for (flag, port) in [
            ("--agent-listen", AGENT_PORT),
            ("--advertise", AGENT_PORT),
            ("--peer-listen", PEER_PORT),
            ("--intercept-listen", 7410),
        ] {
            let address = SocketAddr::from((address(number), port));
            command.args([flag, &address.to_string()]);
        }
        for peer in 0..self.proxies {
            if peer != number {
                let peer = SocketAddr::from((address(peer), PEER_PORT));
                command.args(["--peer", &peer.to_string()]);
            }
        }
        command.args(["--admin-listen", &format!("127.0.0.1:{}", admin(number))]);
        for socket in ["connect", "control", "admin"] {
            let path = self.folder.file(&format!("{name}-{socket}"));
            command.args([format!("--{socket}-socket"), path]);
        }
        command
            .arg("--directory-socket")
            .arg(self.directory_socket(number));
        Process::start(&name, self.folder.path(), &mut command)
    }

    fn wait_ready(&mut self) -> Result<()> {
        wait::until("all proxies are ready", START_TIME, || {
            self.check()?;
            (0..self.count())
                .try_for_each(|number| network::get(admin(number), "/readyz").map(drop))
        })
    }

    /// Waits until each proxy has all its links to each other one.
    fn wait_linked(&mut self) -> Result<()> {
        let all = LINKS * u64::from(self.count() - 1);
        wait::until("all proxies are linked", START_TIME, || {
            self.check()?;
            (0..self.count()).try_for_each(|number| {
                let peers = network::get(admin(number), "/debug/peers")?;
                let peers: Vec<Value> = serde_json::from_str(&peers)?;
                let links: u64 = peers.iter().filter_map(|peer| peer["links"].as_u64()).sum();
                ensure!(links == all, "proxy-{number} has {links} of {all} links");
                Ok(())
            })
        })
    }

    pub(crate) fn check(&mut self) -> Result<()> {
        self.all.iter_mut().try_for_each(Process::check)
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.all.len()).unwrap_or(u32::MAX)
    }

    /// Their agent ports.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.count())
            .map(|number| SocketAddr::from((address(number), AGENT_PORT)))
            .collect()
    }

    pub(crate) fn directory_socket(&self, number: u32) -> PathBuf {
        self.folder.path().join(format!("proxy-{number}-directory"))
    }

    pub(crate) fn usage(&self) -> Result<Vec<Usage>> {
        self.all.iter().map(Usage::of).collect()
    }

    pub(crate) fn resources(&self) -> Result<Vec<KernelResources>> {
        self.all.iter().map(Process::kernel_resources).collect()
    }

    /// The tunnels that each proxy has.
    pub(crate) fn tunnels(&self) -> Result<Vec<u32>> {
        let mut tunnels = Vec::new();
        for number in 0..self.count() {
            let metrics = network::get(admin(number), "/metrics")?;
            tunnels.push(sum(&metrics, "culvert_proxy_tunnels", "") as u32);
        }
        Ok(tunnels)
    }

    /// The connections at all agent ports that had this outcome.
    pub(crate) fn outcomes(&self, outcome: &str) -> Result<f64> {
        let label = format!("outcome=\"{outcome}\"");
        let mut connections = 0.0;
        for number in 0..self.count() {
            let metrics = network::get(admin(number), "/metrics")?;
            connections += sum(&metrics, "culvert_proxy_agent_connections_total", &label);
        }
        Ok(connections)
    }

    /// Shows what the proxies printed, for a run that failed.
    pub(crate) fn show_logs(&self) {
        for (number, proxy) in self.all.iter().enumerate() {
            let log = proxy.log();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            progress::say(&format!("    proxy-{number} printed last: {last:?}"));
        }
    }

    /// Replaces the file as an editor does.
    fn write_directory(&self) -> Result<()> {
        let mut text = "[nodes]\n".to_owned();
        for number in 0..self.agents {
            let [_, high, middle, low] = number.to_be_bytes();
            writeln!(
                text,
                "[nodes.{}]\naddresses = [\"10.{high}.{middle}.{low}\"]\nports = [9100, 10250]",
                node_name(number)
            )?;
        }
        for name in &self.extra {
            writeln!(text, "[nodes.{name}]")?;
        }
        let new = self.folder.file("nodes.new");
        let path = self.folder.file("nodes.toml");
        std::fs::write(&new, text).with_context(|| format!("write {new}"))?;
        std::fs::rename(&new, &path).with_context(|| format!("write {path}"))
    }
}

fn address(number: u32) -> Ipv4Addr {
    let [.., low] = number.to_be_bytes();
    Ipv4Addr::new(127, 0, 1, low + 1)
}

fn admin(number: u32) -> u16 {
    ADMIN_PORT + u16::try_from(number).unwrap_or_default()
}

/// The sum of a metric's samples that have the label.
fn sum(metrics: &str, name: &str, label: &str) -> f64 {
    let mut sum = 0.0;
    for line in metrics.lines() {
        if let Some(rest) = line.strip_prefix(name)
            && let Some((labels, value)) = rest.rsplit_once(' ')
            && (labels.is_empty() || labels.starts_with('{'))
            && labels.contains(label)
        {
            sum += value.parse().unwrap_or(0.0);
        }
    }
    sum
}

/// Whether nothing is left of what tunnels needed.
pub(crate) fn ensure_released(before: &[KernelResources], after: &[KernelResources]) -> Result<()> {
    for (number, (after, before)) in after.iter().zip(before).enumerate() {
        ensure!(
            after.is_within(*before),
            "proxy-{number} keeps {after:?}, and had {before:?} before the agents came"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_the_samples_that_have_the_label() {
        let metrics = "# TYPE a gauge\na{x=\"1\"} 2\na{x=\"2\"} 3\na_b{x=\"1\"} 7\nb 5\n";
        assert_eq!(sum(metrics, "a", ""), 5.0);
        assert_eq!(sum(metrics, "a", "x=\"2\""), 3.0);
        assert_eq!(sum(metrics, "b", ""), 5.0);
    }
}
