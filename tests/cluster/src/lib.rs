//! `cargo xtask cluster`: a real Kubernetes cluster on this machine. Each node is as good as a host:
//! a network namespace with its own host name, mounts and cgroup, with a real kubelet, containerd
//! and kube-proxy.
//!
//! ```text
//!   master   203.0.113.1   etcd, API server, controllers ─┐               ┌─ 198.51.100.5   edge-1 10.0.3.7
//!   cloud-2  203.0.113.9  ────────────────────────────────┼── internet ───┼─ 198.51.100.9   edge-2 192.168.1.10
//!   cloud-3  203.0.113.13 ────────────────────────────────┘               └─ 198.51.100.13  edge-3 192.168.1.10
//! ```
//!
//! Edge nodes can dial the cloud. Nothing can dial an edge node: each is behind an address that lets
//! it dial out only, and the internet drops packets to private addresses. Each node's pods have
//! 10.244.N.0/24. The pods of cloud nodes reach each other; no other site has a route to those of an
//! edge node, nor an edge node to any other's.
#![forbid(unsafe_code)]

mod certificates;
mod cluster;
mod control_plane;
mod host;
mod image;
mod network;
mod node;
mod runtime;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use culvert_lab::kubernetes::{Programs, Release};
use culvert_lab::{progress, wait, workspace};

use cluster::Cluster;
use host::Host;
use node::Node;

/// Time for all nodes to be ready, on two busy cores.
const READY: std::time::Duration = std::time::Duration::from_mins(8);

/// What to do with the cluster.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Task,
}

#[derive(clap::Subcommand)]
enum Task {
    /// Start it, and wait until all nodes are ready
    Up(Up),
    /// Print where it is, as variables of a shell
    Env,
    /// Run kubectl as an administrator, on the master
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run a command as a process of a node
    Enter {
        node: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Load an archive of images on every node
    Load { archive: PathBuf },
    /// Make an image of one folder, and load it on every node
    Image {
        name: String,
        folder: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Restart kube-apiserver with these flags in addition to its own
    Apiserver {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Stop everything and remove what it made
    Down,
}

#[derive(clap::Args)]
struct Up {
    /// Its nodes, separated by spaces: `master`, and any of cloud-2 to cloud-9 and edge-1 to edge-3
    #[arg(long, env = "NODES", default_value = "master edge-1 edge-2 edge-3")]
    nodes: String,
    /// Flags of kube-apiserver in addition to its own, separated by spaces
    #[arg(
        long,
        env = "APISERVER_ARGS",
        default_value = "",
        allow_hyphen_values = true
    )]
    apiserver_flags: String,
    /// The mode of kube-proxy on each node: `nftables` or `iptables` [default: nftables, before
    /// Kubernetes 1.31 iptables]
    #[arg(long)]
    proxy_mode: Option<String>,
    /// The release of Kubernetes [default: the programs that KUBEBUILDER_ASSETS names, or the newest
    /// that was tried]
    #[arg(long, value_name = "VERSION")]
    kube: Option<Release>,
}

impl Up {
    fn nodes(&self) -> Result<Vec<Node>> {
        let mut nodes: Vec<Node> = Vec::new();
        for name in self.nodes.split_whitespace() {
            nodes.push(name.parse()?);
        }
        ensure!(nodes.contains(&Node::Master), "a cluster has a master");
        Ok(nodes)
    }
}

impl Args {
    /// The programs of Kubernetes that must be there, if a cluster is to be started.
    pub fn programs(&self) -> Option<Programs> {
        let Task::Up(up) = &self.command else {
            return None;
        };
        Some(Programs::chosen(up.kube.as_ref()))
    }
}

/// Runs one of the cluster's commands.
///
/// # Errors
/// The process is not root, there is no such cluster, or the command fails.
pub fn run(args: Args) -> Result<ExitCode> {
    ensure!(
        workspace::is_root(),
        "the cluster's hosts are namespaces of this machine: run this as root"
    );
    let cluster = Cluster::default();
    match args.command {
        Task::Up(args) => up(&cluster, &args)?,
        Task::Env => print!("{}", cluster.variables()?),
        Task::Kubectl { args } => return ended(cluster.kubectl()?.args(args)),
        Task::Enter { node, command } => {
            let host = Host::of(&cluster, &cluster.node(&node)?)?;
            let (program, args) = command.split_first().context("a command")?;
            return ended(host.command(program)?.args(args));
        }
        Task::Load { archive } => image::load(&cluster, &archive)?,
        Task::Image {
            name,
            folder,
            command,
        } => image::make(&cluster, &name, &folder, &command)?,
        Task::Apiserver { flags } => control_plane::restart_apiserver(&cluster, &flags)?,
        Task::Down => down(&cluster)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command in the place of this program.
fn ended(command: &mut Command) -> Result<ExitCode> {
    let status = command
        .status()
        .with_context(|| format!("run {:?}", command.get_program()))?;
    // 255 stands for a signal.
    let code = match status.code() {
        Some(code) => u8::try_from(code).unwrap_or(u8::MAX),
        None => u8::MAX,
    };
    Ok(code.into())
}

fn up(cluster: &Cluster, args: &Up) -> Result<()> {
    let nodes = args.nodes()?;
    let flags: Vec<String> = args
        .apiserver_flags
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let programs = Programs::chosen(args.kube.as_ref()).folder();
    let _lock = Cluster::lock()?;
    cluster.create(&nodes, &programs)?;
    network::make(&nodes)?;
    for node in &nodes {
        Host::start(cluster, node)?;
    }
    certificates::make(cluster, &nodes)?;
    progress::say("start etcd, kube-apiserver and the controllers");
    control_plane::start(cluster, &flags)?;
    progress::say("start containerd, kubelet and kube-proxy on each node");
    for node in &nodes {
        runtime::start(cluster, node, args.proxy_mode.as_deref())?;
    }
    image::make_basic(cluster)?;
    wait::until("all nodes are ready", READY, || {
        all_ready(cluster, nodes.len())
    })?;
    show_nodes(cluster)
}

fn show_nodes(cluster: &Cluster) -> Result<()> {
    let mut kubectl = cluster.kubectl()?;
    let nodes = workspace::output(kubectl.args(["get", "nodes", "--output", "wide"]))?;
    print!("{nodes}");
    Ok(())
}

fn all_ready(cluster: &Cluster, nodes: usize) -> Result<()> {
    const READY: &str = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
    let said = workspace::output(cluster.kubectl()?.args(["get", "nodes", "--output", READY]))?;
    let ready = said
        .split_whitespace()
        .filter(|status| *status == "True")
        .count();
    ensure!(ready == nodes, "{ready} of {nodes} nodes are ready");
    Ok(())
}

/// What a killed command left is removed too, even if nothing says that there is a cluster.
fn down(cluster: &Cluster) -> Result<()> {
    let _lock = Cluster::lock()?;
    cluster.remove()
}
