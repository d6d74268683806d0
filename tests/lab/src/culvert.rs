//! Culvert in a lab: proxy and redirector in the cloud, an agent on each edge. The agents join with
//! the proxy's tokens, as the README describes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::host::Host;
use crate::process::Process;
use crate::site::Site;
use crate::{Lab, wait, workspace};

/// Port of the proxy's admin server on loopback.
pub const PROXY_ADMIN: u16 = 7409;
/// Port of the redirector's admin server on loopback.
pub const REDIRECTOR_ADMIN: u16 = 7419;
/// Port of the agent's admin server on loopback.
pub const AGENT_ADMIN: u16 = 7429;

/// The address at which agents reach the proxy.
pub const PROXY_FOR_AGENTS: &str = "203.0.113.1:7400";

/// Time for programs that start side by side on two cores.
const START_TIME: Duration = Duration::from_secs(90);

/// Settings in which a test differs from the default.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Further ports of every edge node, beside the default ones.
    pub ports: Vec<u16>,
    /// Further arguments of the proxy.
    pub proxy: Vec<String>,
    /// Further arguments of the redirector.
    pub redirector: Vec<String>,
    /// Further arguments of every agent.
    pub agent: Vec<String>,
    /// Environment variables of the proxy and the redirector.
    pub cloud_env: Vec<(String, String)>,
    /// Environment variables of every agent, for joining too.
    pub agent_env: Vec<(String, String)>,
}

/// Sooner than by default, agents of labs ask whether a silent proxy is there: many tests cut links.
const KEEPALIVE: &str = "6s";

/// Ports of every edge node in a lab that are steered.
const DEFAULT_PORTS: [u16; 4] = [9100, 10250, 10255, 7429];

/// Culvert's programs, running in a lab. Dropping it ends them.
pub struct Culvert<'lab> {
    lab: &'lab Lab,
    options: Options,
    /// The proxy.
    pub proxy: Process,
    /// The redirector.
    pub redirector: Process,
    agents: Vec<Process>,
}

impl<'lab> Culvert<'lab> {
    /// Starts the proxy and the redirector, joins the agents of `edges`, and waits until all are
    /// ready.
    ///
    /// # Errors
    /// A program does not start or is not ready in time.
    pub fn start(lab: &'lab Lab, edges: &[Host], options: Options) -> Result<Self> {
        let proxy = start_proxy(lab, &options)?;
        let redirector = start_redirector(lab, &options)?;
        let mut culvert = Self {
            lab,
            options,
            proxy,
            redirector,
            agents: Vec::new(),
        };
        culvert.link_sockets()?;
        culvert.wait_for_proxy()?;
        for host in edges {
            let join = culvert.create_token(*host, &[])?;
            culvert.join(*host, &join)?;
            culvert.start_agent(*host)?;
        }
        culvert.wait_for_redirector()?;
        for host in edges {
            culvert.wait_online(*host)?;
        }
        if !edges.is_empty() {
            culvert.wait_steered(edges.len())?;
        }
        Ok(culvert)
    }

    /// Starts the proxy again after it was ended; see [`Self::wait_for_proxy`].
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn restart_proxy(&mut self) -> Result<()> {
        self.proxy = start_proxy(self.lab, &self.options)?;
        Ok(())
    }

    /// Starts a proxy beside the one that runs, to take its place. Returns the one before; see
    /// [`Self::wait_for_proxy`].
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn succeed_proxy(&mut self) -> Result<Process> {
        let successor = start_proxy(self.lab, &self.options)?;
        Ok(std::mem::replace(&mut self.proxy, successor))
    }

    /// A proxy that would take the place of the one that runs, with further arguments.
    pub fn successor(&self, args: &[&str]) -> Command {
        let mut command = proxy_command(self.lab, &self.options);
        command.args(args);
        command
    }

    /// Waits until the proxy is ready.
    ///
    /// # Errors
    /// It is not ready in time.
    pub fn wait_for_proxy(&mut self) -> Result<()> {
        wait_ready(
            "culvert-proxy",
            self.lab,
            Host::Cloud,
            PROXY_ADMIN,
            &mut self.proxy,
        )
    }

    /// Starts the redirector again after it was ended; see [`Self::wait_for_redirector`].
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn restart_redirector(&mut self) -> Result<()> {
        self.redirector = start_redirector(self.lab, &self.options)?;
        Ok(())
    }

    /// Waits until the redirector is ready.
    ///
    /// # Errors
    /// It is not ready in time.
    pub fn wait_for_redirector(&mut self) -> Result<()> {
        wait_ready(
            "culvert-redirector",
            self.lab,
            Host::Cloud,
            REDIRECTOR_ADMIN,
            &mut self.redirector,
        )
    }

    /// Starts the agent of an edge that has joined.
    ///
    /// # Errors
    /// It cannot be started. That it does not connect is not detected here.
    pub fn start_agent(&mut self, host: Host) -> Result<()> {
        let agent = start_agent(self.lab, host, &self.options)?;
        self.agents.push(agent);
        Ok(())
    }

    /// Restarts the agent with index `nth`, which runs on `host`, after it was ended.
    ///
    /// # Errors
    /// It cannot be started. That it does not connect is not detected here.
    ///
    /// # Panics
    /// There are fewer agents.
    pub fn restart_agent(&mut self, nth: usize, host: Host) -> Result<()> {
        self.agents[nth] = start_agent(self.lab, host, &self.options)?;
        Ok(())
    }

    /// Gives these flags to agents that start from now on.
    pub fn add_agent_args(&mut self, args: &[&str]) {
        let args = args.iter().copied().map(str::to_owned);
        self.options.agent.extend(args);
    }

    /// The agent with index `nth`, counted from zero in the order of their starts.
    ///
    /// # Panics
    /// There are fewer agents.
    pub fn agent(&mut self, nth: usize) -> &mut Process {
        &mut self.agents[nth]
    }

    /// A `culvert` command in the cloud that asks the running proxy and redirector.
    pub fn control(&self, args: &[&str]) -> Command {
        ask(self.lab.site(Host::Cloud), &self.socket("run"), args)
    }

    /// What `culvert why` says of a destination, reached or not.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn why(&self, destination: &str) -> Result<String> {
        printed(&mut self.control(&["why", destination]))
    }

    /// The folder of sockets of its programs, as a host has it.
    fn link_sockets(&self) -> Result<()> {
        let sockets = [
            ("control.sock", "control.sock"),
            ("connect.sock", "connect.sock"),
            ("proxy/admin.sock", "admin.sock"),
            ("redirector/admin.sock", "redirector.sock"),
        ];
        let sockets = sockets.map(|(place, name)| (place, self.socket(name)));
        link_sockets(&self.socket("run"), &sockets)
    }

    /// One of the sockets in the cloud.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.lab.site(Host::Cloud).file(name)
    }

    /// Creates a token for a node. Returns the arguments of `culvert-agent` that join it.
    ///
    /// # Errors
    /// The proxy creates no token.
    pub fn create_token(&self, host: Host, further: &[&str]) -> Result<Vec<String>> {
        let address = host.address().to_string();
        let mut args = vec!["--address".to_owned(), address];
        for port in DEFAULT_PORTS.iter().chain(&self.options.ports) {
            args.extend(["--port".to_owned(), port.to_string()]);
        }
        args.extend(further.iter().copied().map(str::to_owned));
        self.create_bare_token(host, &args)
    }

    /// Creates a token for a node with only the given settings. Returns the arguments of
    /// `culvert-agent` that join it.
    ///
    /// # Errors
    /// The proxy creates no token.
    pub fn create_bare_token(&self, host: Host, settings: &[String]) -> Result<Vec<String>> {
        self.create_node_token(host.name(), settings)
    }

    /// The same for a node that is not a host of the lab.
    ///
    /// # Errors
    /// The proxy creates no token.
    pub fn create_node_token(&self, node: &str, settings: &[String]) -> Result<Vec<String>> {
        let mut command = self.control(&["token", "create", node]);
        join_arguments(&workspace::output(command.args(settings))?)
    }

    /// Creates a token for several nodes. Returns the arguments of `culvert-agent` that join one.
    ///
    /// # Errors
    /// The proxy creates no token.
    pub fn create_group_token(&self, settings: &[&str]) -> Result<Vec<String>> {
        let mut command = self.control(&["token", "create"]);
        join_arguments(&workspace::output(command.args(settings))?)
    }

    /// Runs `culvert-agent join ...` on an edge.
    ///
    /// # Errors
    /// The join fails; the error contains the agent's output.
    pub fn join(&self, host: Host, join: &[String]) -> Result<()> {
        let site = self.lab.site(host);
        let state = site.file("agent").display().to_string();
        let args = join.iter().cloned().chain(["--state-dir".into(), state]);
        let mut command = site.command(workspace::binary("culvert-agent"));
        command
            .args(args)
            .envs(self.options.agent_env.iter().cloned());
        workspace::output(&mut command)?;
        Ok(())
    }

    /// Waits until a node has a tunnel.
    ///
    /// # Errors
    /// It has none in time.
    pub fn wait_online(&self, host: Host) -> Result<()> {
        wait::until(
            &format!("{} has its tunnels", host.name()),
            START_TIME,
            || self.check_tunnels(host.name(), |tunnels| tunnels > 0),
        )
    }

    /// The nodes of the directory in a state.
    fn nodes(&self, state: &str) -> Result<f64> {
        let name = format!("culvert_proxy_nodes{{state=\"{state}\"}}");
        self.lab.site(Host::Cloud).metric(PROXY_ADMIN, &name)
    }

    /// The destinations of the redirector in a state.
    fn destinations(&self, state: &str) -> Result<f64> {
        let name = format!("culvert_redirector_destinations{{state=\"{state}\"}}");
        self.lab.site(Host::Cloud).metric(REDIRECTOR_ADMIN, &name)
    }

    /// Waits until the directory has `online` nodes that are, and the redirector knows it too, if
    /// all nodes are online.
    fn wait_steered(&self, online: usize) -> Result<()> {
        wait::until("the redirector steers to all nodes", START_TIME, || {
            let in_directory = self.nodes("online")?;
            ensure!(
                in_directory >= online as f64,
                "{in_directory} of {online} nodes are online in the directory"
            );
            if self.nodes("offline")? > 0.0 {
                return Ok(());
            }
            let online = self.destinations("online")?;
            let offline = self.destinations("offline")?;
            ensure!(
                online > 0.0 && offline == 0.0,
                "{online} destinations are online, {offline} offline"
            );
            Ok(())
        })
    }

    /// Waits until the proxy knows that a node has no tunnel.
    ///
    /// # Errors
    /// It still has one at the deadline.
    pub fn wait_offline(&self, host: Host, deadline: Duration) -> Result<()> {
        wait::until(&format!("{} is offline", host.name()), deadline, || {
            self.check_tunnels(host.name(), |tunnels| tunnels == 0)
        })
    }

    fn check_tunnels(&self, node: &str, expected: impl Fn(usize) -> bool) -> Result<()> {
        let tunnels = self.tunnels(node)?;
        ensure!(expected(tunnels), "it has {tunnels} tunnels");
        Ok(())
    }

    /// The number of a node's tunnels, by the proxy's admin page.
    ///
    /// # Errors
    /// The page does not answer.
    pub fn tunnels(&self, node: &str) -> Result<usize> {
        let tunnels = self
            .lab
            .site(Host::Cloud)
            .json(PROXY_ADMIN, "/debug/tunnels")?;
        let list = tunnels
            .as_array()
            .with_context(|| format!("no list of tunnels: {tunnels}"))?;
        Ok(list.iter().filter(|tunnel| tunnel["node"] == node).count())
    }
}

/// A `culvert` command of a host that asks the programs of a folder of sockets.
pub fn ask(site: &Site, folder: &Path, args: &[&str]) -> Command {
    let mut command = site.command(workspace::binary("culvert"));
    ask_local(&mut command, folder);
    command.args(args);
    command
}

/// Has a `culvert` ask the programs of a folder of sockets alone, and find its `culvert-proxy`.
pub fn ask_local(command: &mut Command, folder: &Path) {
    let programs = workspace::binary("culvert-proxy");
    if let Ok(path) = workspace::path_with_folder_of(&programs) {
        command.env("PATH", path);
    }
    command.args(["--local", "--run-dir"]).arg(folder);
}

/// What a command prints, whatever its exit status.
///
/// # Errors
/// It cannot be run.
pub fn printed(command: &mut Command) -> Result<String> {
    let done = command.output().context("run a command")?;
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// A folder of sockets as a host has it, of links to those of a lab.
///
/// # Errors
/// It is not made.
pub fn link_sockets(folder: &Path, sockets: &[(&str, PathBuf)]) -> Result<()> {
    for (place, socket) in sockets {
        let place = folder.join(place);
        std::fs::create_dir_all(place.parent().context("it is in a folder")?)?;
        match std::os::unix::fs::symlink(socket, &place) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| place.display().to_string());
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// The capabilities that the units in `deploy/systemd` give to the programs, in the syntax of
/// setpriv.
const PROXY_CAPABILITIES: &str = "-all,+bpf";
const REDIRECTOR_CAPABILITIES: &str = "-all,+bpf,+net_admin,+net_bind_service";
const AGENT_CAPABILITIES: &str = "-all";

/// One of the project's programs, with only the capabilities of its unit.
fn confined(site: &Site, capabilities: &str, program: &str) -> Command {
    let mut command = site.command("setpriv");
    confine(&mut command, capabilities, program);
    command
}

/// Completes a command line that ends in setpriv.
fn confine(command: &mut Command, capabilities: &str, program: &str) {
    command.args([
        "--no-new-privs",
        "--inh-caps",
        "-all",
        "--bounding-set",
        capabilities,
        "--",
    ]);
    command.arg(workspace::binary(program));
}

fn start_proxy(lab: &Lab, options: &Options) -> Result<Process> {
    let mut command = proxy_command(lab, options);
    lab.site(Host::Cloud)
        .start_process("culvert-proxy", &mut command)
}

fn proxy_command(lab: &Lab, options: &Options) -> Command {
    let cloud = lab.site(Host::Cloud);
    let mut command = confined(cloud, PROXY_CAPABILITIES, "culvert-proxy");
    command
        .args(["--advertise", PROXY_FOR_AGENTS, "--state-dir"])
        .arg(cloud.file("proxy"));
    for socket in ["connect", "directory", "control", "admin"] {
        command
            .arg(format!("--{socket}-socket"))
            .arg(cloud.file(&format!("{socket}.sock")));
    }
    command
        .arg("--redirector-handover-socket")
        .arg(cloud.file("redirector-handover.sock"));
    command
        .args(&options.proxy)
        .envs(options.cloud_env.iter().cloned());
    command
}

fn start_redirector(lab: &Lab, options: &Options) -> Result<Process> {
    let cloud = lab.site(Host::Cloud);
    // LimitMEMLOCK of the unit. Root without CAP_SYS_RESOURCE keeps its limit, which matters only
    // to kernels before 5.11.
    let mut command = cloud.command("sh");
    command.args([
        "-c",
        "ulimit -l unlimited 2>/dev/null; exec \"$@\"",
        "sh",
        "setpriv",
    ]);
    confine(&mut command, REDIRECTOR_CAPABILITIES, "culvert-redirector");
    command
        .arg("--cgroup")
        .arg(cloud.cgroup())
        .arg("--directory-socket")
        .arg(cloud.file("directory.sock"))
        .arg("--admin-socket")
        .arg(cloud.file("redirector.sock"))
        .arg("--handover-socket")
        .arg(cloud.file("redirector-handover.sock"))
        .arg("--state-dir")
        .arg(cloud.file("redirector"))
        // The address range of pods.
        .args(["--dns-client", "10.244.0.0/16"]);
    cloud.start_process(
        "culvert-redirector",
        command
            .args(&options.redirector)
            .envs(options.cloud_env.iter().cloned()),
    )
}

fn start_agent(lab: &Lab, host: Host, options: &Options) -> Result<Process> {
    let site = lab.site(host);
    let mut command = confined(site, AGENT_CAPABILITIES, "culvert-agent");
    command
        .arg("--state-dir")
        .arg(site.file("agent"))
        .arg("--admin-socket")
        .arg(site.file("agent.sock"));
    for port in &options.ports {
        command.args(["--port", &port.to_string()]);
    }
    command
        .args(&options.agent)
        .env("CULVERT_KEEPALIVE", KEEPALIVE)
        .envs(options.agent_env.iter().cloned());
    site.start_process("culvert-agent", &mut command)
}

fn wait_ready(name: &str, lab: &Lab, host: Host, admin: u16, process: &mut Process) -> Result<()> {
    wait::until(&format!("{name} is ready"), START_TIME, || {
        process.check()?;
        lab.site(host).http_get(admin, "/readyz").map(drop)
    })
}

/// The arguments after `culvert-agent` in the output of `token create`. They contain no spaces or
/// quotes.
///
/// # Errors
/// The output has no such command.
pub fn join_arguments(printed: &str) -> Result<Vec<String>> {
    let joined = printed.replace("\\\n", " ");
    for line in joined.lines() {
        if let Some((_, rest)) = line.split_once("culvert-agent join") {
            return Ok(std::iter::once("join")
                .chain(rest.split_whitespace())
                .map(str::to_owned)
                .collect());
        }
    }
    bail!("`token create` printed no `culvert-agent join`: {printed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_join_command_is_found_in_what_token_create_prints() {
        let printed = "Run this on edge-1 before noon:\n\n  sudo culvert-agent join --proxy \
            a:7400 \\\n    --token x\n";
        assert_eq!(
            join_arguments(printed).unwrap(),
            ["join", "--proxy", "a:7400", "--token", "x"]
        );
        assert!(join_arguments("nothing").is_err());
    }
}
