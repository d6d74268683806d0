//! A proxy of a bare API server's cluster, on this host's loopback, without a redirector.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::culvert::{ask_local, link_sockets, printed};
use culvert_lab::ports::free_address;
use culvert_lab::process::{Process, bound};
use culvert_lab::{wait, workspace};
use serde_json::Value;

use crate::cluster::DEADLINE;
use crate::loopback::{STREAM_TIMEOUT, echo, http_get};

/// Ranges that a bare API server does not publish: that of pods, and before 1.31 those of Services.
const RANGES: [&str; 4] = [
    "--service-range",
    "10.96.0.0/16",
    "--pod-range",
    "10.244.0.0/16",
];

pub(crate) struct Proxy {
    pub(crate) process: Process,
    /// The address of its agent port.
    pub(crate) agents: SocketAddr,
    admin: SocketAddr,
    folder: PathBuf,
    command: Command,
    name: String,
    logs: PathBuf,
}

impl Proxy {
    /// Starts a proxy named `name` as an administrator of the cluster. Flags give it the cluster's
    /// own ranges.
    pub(crate) fn start(server: &ApiServer, name: &str, further: &[&str]) -> Result<Self> {
        Self::start_as(
            server,
            &server.kubeconfig(),
            name,
            &[&RANGES, further].concat(),
        )
    }

    /// Starts a proxy with the permissions of this kubeconfig.
    pub(crate) fn start_as(
        server: &ApiServer,
        kubeconfig: &Path,
        name: &str,
        further: &[&str],
    ) -> Result<Self> {
        let folder = server.folder().join(name);
        fs::create_dir_all(&folder)?;
        let agents = free_address()?;
        let peers = free_address()?;
        let admin = free_address()?;
        let mut command = program("culvert-proxy");
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--state-dir")
            .arg(folder.join("state"));
        for socket in ["connect", "directory", "control", "admin"] {
            command
                .arg(format!("--{socket}-socket"))
                .arg(folder.join(format!("{socket}.sock")));
        }
        let sockets = [
            ("control.sock", "control.sock"),
            ("connect.sock", "connect.sock"),
            ("proxy/admin.sock", "admin.sock"),
        ];
        let sockets = sockets.map(|(place, name)| (place, folder.join(name)));
        link_sockets(&folder.join("run"), &sockets)?;
        command.args([
            "--agent-listen",
            &agents.to_string(),
            "--peer-listen",
            &peers.to_string(),
            "--admin-listen",
            &admin.to_string(),
        ]);
        command
            .args(["--intercept-listen", "127.0.0.1:0"])
            .args(further);
        let process = Process::start(name, server.folder(), &mut command)?;
        let name = name.to_owned();
        let logs = server.folder().to_owned();
        Ok(Self {
            process,
            agents,
            admin,
            folder,
            command,
            name,
            logs,
        })
    }

    /// Terminates it and starts it again.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.process.terminate(DEADLINE)?;
        self.start_again()
    }

    /// Starts it again once it has ended.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.process = Process::start(&self.name, &self.logs, &mut self.command)?;
        Ok(())
    }

    /// Starts another one of the same flags and state directory, which takes its place. Returns the
    /// one before.
    pub(crate) fn succeed(&mut self) -> Result<Process> {
        let next = Process::start(&self.name, &self.logs, &mut self.command)?;
        Ok(std::mem::replace(&mut self.process, next))
    }

    /// The authority in its state directory.
    pub(crate) fn authority(&self) -> Result<String> {
        fs::read_to_string(self.folder.join("state/cluster-authority.pem"))
            .context("the authority on disk")
    }

    /// A `culvert ARGS` command that asks this proxy.
    pub(crate) fn control(&self, args: &[&str]) -> Command {
        let mut command = program("culvert");
        ask_local(&mut command, &self.folder.join("run"));
        command.args(args);
        command
    }

    /// The address of its admin pages.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Its list of nodes: a line for each with its tunnels, addresses, VIPs and ports, then the
    /// reasons why some of the addresses, those with a star, do not lead to their nodes.
    pub(crate) fn nodes(&self) -> Result<String> {
        let listed = workspace::output(&mut self.control(&["nodes", "--output", "json"]))?;
        let listed: Value = serde_json::from_str(&listed)?;
        let mut lines = String::new();
        let mut reasons = String::new();
        for node in listed["nodes"].as_array().context("no list")? {
            let mut addresses = Vec::new();
            for own in node["addresses"].as_array().context("no addresses")? {
                let problem = own["problem"].as_str().unwrap_or_default();
                let star = if problem.is_empty() { "" } else { "*" };
                addresses.push(format!("{}{star}", own["address"].as_str().unwrap_or("?")));
                reasons += &format!("* {problem}\n");
            }
            let text = |field: &str| node[field].as_str().unwrap_or_default();
            let ports = node["ports"].as_array().context("no ports")?;
            let ports: Vec<String> = ports.iter().map(Value::to_string).collect();
            if addresses.is_empty() {
                addresses.push("-".to_owned());
            }
            lines += &format!(
                "{} {} {} {} {} {}\n",
                text("node"),
                node["tunnels"],
                addresses.join(","),
                text("vip4"),
                text("vip6"),
                ports.join(",")
            );
        }
        Ok(lines + &reasons)
    }

    /// Waits until its list has a line of a node with these words.
    pub(crate) fn wait_for_node(&mut self, node: &str, words: &[&str]) -> Result<()> {
        wait::until(&format!("{node} with {words:?}"), DEADLINE, || {
            self.process.check()?;
            let nodes = self.nodes()?;
            let line = nodes
                .lines()
                .find(|line| line.split_whitespace().next() == Some(node));
            let line = line.with_context(|| format!("no {node} in {nodes}"))?;
            ensure!(words.iter().all(|word| line.contains(word)), "{line}");
            Ok(())
        })
    }

    /// What `culvert why` says of a destination, reached or not.
    pub(crate) fn why(&self, destination: &str) -> Result<String> {
        printed(&mut self.control(&["why", destination]))
    }

    /// The socket on which it serves the directory to the redirector.
    pub(crate) fn directory_socket(&self) -> PathBuf {
        self.folder.join("directory.sock")
    }

    /// The JSON page at this path.
    pub(crate) fn json(&self, path: &str) -> Result<Value> {
        let answer = http_get(self.admin, path)?;
        let (_, body) = answer
            .split_once("\r\n\r\n")
            .context("an answer without a head")?;
        serde_json::from_str(body).with_context(|| format!("{path} is not JSON: {body}"))
    }

    /// The value of a metric; `None` if it is not served. `series` is written as in `/metrics`.
    pub(crate) fn metric(&self, series: &str) -> Result<Option<f64>> {
        let text = http_get(self.admin, "/metrics")?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value
            .map(|value| {
                value
                    .trim()
                    .parse()
                    .with_context(|| format!("{series} {value}"))
            })
            .transpose()
    }

    /// Opens a stream by HTTP CONNECT.
    pub(crate) fn stream(&self, target: &str) -> Result<UnixStream> {
        let mut stream =
            UnixStream::connect(self.folder.join("connect.sock")).context("the CONNECT socket")?;
        stream.set_read_timeout(Some(STREAM_TIMEOUT))?;
        write!(
            stream,
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
        )?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream
                .read_exact(&mut byte)
                .with_context(|| String::from_utf8_lossy(&head).into_owned())?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        Ok(stream)
    }

    /// Waits until a stream to an echo works.
    pub(crate) fn wait_for_stream(&mut self, target: &str) -> Result<UnixStream> {
        wait::until(&format!("a stream to {target}"), DEADLINE, || {
            self.process.check()?;
            let mut stream = self.stream(target)?;
            echo(&mut stream)?;
            Ok(stream)
        })
    }
}

/// A program without environment variables for proxies. It is killed when its test ends.
pub(crate) fn program(name: &str) -> Command {
    without_proxies(&workspace::binary(name))
}

/// The same for any program.
pub(crate) fn without_proxies(program: &Path) -> Command {
    let mut command = bound(program);
    command.env("CULVERT_LOG_FORMAT", "json");
    for variable in [
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ] {
        command.env_remove(variable);
    }
    command
}
