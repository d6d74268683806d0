//! A proxy of a bare API server's cluster, on this host's loopback and with nothing to steer.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use xtask::kube::apiserver::ApiServer;
use xtask::lab::process::Process;
use xtask::{wait, workspace};

/// Two busy cores start an API server and some proxies.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

pub(crate) struct Proxy {
    pub(crate) process: Process,
    folder: PathBuf,
    /// Where it serves metrics.
    admin: String,
}

impl Proxy {
    /// Starts one named `name`, whose state of an earlier run it finds again.
    pub(crate) fn start(server: &ApiServer, name: &str, further: &[&str]) -> Result<Self> {
        let folder = server.folder().join(name);
        std::fs::create_dir_all(&folder)?;
        let mut command = Command::new(workspace::binary("culvert-proxy"));
        command.arg("--kubeconfig").arg(server.kubeconfig());
        command.arg("--state-dir").arg(folder.join("state"));
        for socket in ["connect", "directory", "control"] {
            command.arg(format!("--{socket}-socket")).arg(folder.join(format!("{socket}.sock")));
        }
        command.args(["--agent-listen", "127.0.0.1:0", "--intercept-listen", "127.0.0.1:0"]);
        let admin = free_address()?;
        command.args(["--advertise", "203.0.113.1:7400", "--admin-listen", &admin]).args(further);
        let process = Process::start(name, server.folder(), &mut command)?;
        Ok(Self { process, folder, admin })
    }

    /// The command line `culvert-proxy ARGS` of this proxy.
    pub(crate) fn control(&self, args: &[&str]) -> Command {
        let mut command = Command::new(workspace::binary("culvert-proxy"));
        command.args(args).arg("--control-socket").arg(self.folder.join("control.sock"));
        command
    }

    /// What it lists of its nodes.
    pub(crate) fn nodes(&self) -> Result<String> {
        workspace::output(&mut self.control(&["node", "list"]))
    }

    /// Where the redirector learns the directory.
    pub(crate) fn directory_socket(&self) -> PathBuf {
        self.folder.join("directory.sock")
    }

    /// The value of a metric, written as it is served.
    pub(crate) fn metric(&self, series: &str) -> Result<f64> {
        let text = workspace::output(Command::new("curl").args(["-sSf", &format!("http://{}/metrics", self.admin)]))?;
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no {series} in {text}"))?.trim().parse()?)
    }

    /// Waits until it lists a node with these words.
    pub(crate) fn wait_for_node(&mut self, node: &str, words: &[&str]) -> Result<()> {
        wait::until(&format!("{node} with {words:?}"), DEADLINE, || {
            self.process.check()?;
            let nodes = self.nodes()?;
            let line = nodes.lines().find(|line| line.split_whitespace().next() == Some(node));
            let line = line.with_context(|| format!("no {node} in {nodes}"))?;
            anyhow::ensure!(words.iter().all(|word| line.contains(word)), "{line}");
            Ok(())
        })
    }
}

fn free_address() -> Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr()?.to_string())
}

/// Makes, or changes, what this JSON says.
pub(crate) fn apply(server: &ApiServer, object: &Value) -> Result<()> {
    let path = server.folder().join("apply.json");
    std::fs::write(&path, object.to_string())?;
    workspace::output(server.kubectl().args(["apply", "-f"]).arg(path)).map(drop)
}

/// A Node with this address; edge nodes have the label.
pub(crate) fn node(server: &ApiServer, name: &str, address: &str, labels: &Value) -> Result<()> {
    apply(
        server,
        &serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}),
    )?;
    let status = serde_json::json!({"status": {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}});
    // kubectl learnt to write statuses much later than 1.20.
    patch_status(server, &format!("/api/v1/nodes/{name}/status"), &status)
}

/// Changes what this JSON says of the status, and nothing else.
pub(crate) fn patch_status(server: &ApiServer, path: &str, status: &Value) -> Result<()> {
    let current = workspace::output(server.kubectl().args(["get", "--raw", path]))?;
    let mut object: Value = serde_json::from_str(&current)?;
    object["status"] = status["status"].clone();
    let file = server.folder().join("status.json");
    std::fs::write(&file, object.to_string())?;
    workspace::output(server.kubectl().args(["replace", "--raw", path, "-f"]).arg(&file)).map(drop)
}

/// The objects of a kind, as JSON.
pub(crate) fn get(server: &ApiServer, args: &[&str]) -> Result<Value> {
    let text = workspace::output(server.kubectl().arg("get").args(args).args(["-o", "json"]))?;
    serde_json::from_str(&text).with_context(|| Path::new("kubectl").display().to_string())
}

/// An API server with Culvert's namespace, if there are programs for one.
pub(crate) fn server() -> Option<ApiServer> {
    let assets = xtask::kube::apiserver::assets()?;
    let server = ApiServer::start(&assets, &[]).expect("the API server");
    for namespace in ["culvert-system", "default", "kube-system"] {
        let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        apply(&server, &namespace).expect("the namespace");
    }
    Some(server)
}
