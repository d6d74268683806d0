//! The hub of an edge node with a real API server: what kubelet and pods get by it.

mod clients;
mod clocks;
mod hostile;
mod others;
mod streams;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::{self, ApiServer};
use culvert_lab::process::{self, Process};
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::{ports, skewed_clock, wait, workspace};
use serde_json::{Value, json};

use crate::cluster::DEADLINE;
use crate::proxy::program;

const NODE: &str = "system:node:edge-1";

/// A hub, and the kubelet whose certificate it has.
struct Hub {
    folder: PathBuf,
    /// `IP:PORT`.
    listen: String,
    admin: String,
}

/// What the hub says of a collection.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    is_local: bool,
    names: Vec<String>,
}

/// Runs a test with an API server that has these flags in addition, and with the hub of a node that
/// may do everything, as the accounts of `default` may. It is not started.
///
/// # Panics
/// The test fails.
fn with_hub(flags: &[&str], test: impl FnOnce(&mut ApiServer, &Hub) -> Result<()>) {
    let Some(assets) = apiserver::assets() else {
        return;
    };
    let run = || -> Result<()> {
        let folder = tempfile::tempdir()?;
        let node = SelfSigned::make(
            folder.path(),
            "node",
            &format!("/O=system:nodes/CN={NODE}"),
            "extendedKeyUsage=clientAuth",
        )?;
        let authority = format!("--client-ca-file={}", node.certificate.display());
        let mut server = ApiServer::start(&assets, &[flags, &[&*authority]].concat())?;
        let binding = ["create", "clusterrolebinding", "hub"];
        let subjects = [
            "--clusterrole=cluster-admin",
            "--group=system:serviceaccounts:default",
        ];
        let mut bind = server.kubectl();
        bind.args(binding).args(subjects);
        workspace::output(bind.arg(format!("--user={NODE}")))?;
        let hub = Hub {
            folder: folder.path().to_owned(),
            listen: ports::free_address()?.to_string(),
            admin: ports::free_address()?.to_string(),
        };
        hub.install(&server, &node)?;
        let tested = test(&mut server, &hub);
        if tested.is_err() {
            process::show_logs(folder.path());
        }
        tested
    };
    if let Err(error) = run() {
        panic!("{error:#}");
    }
}

impl Hub {
    fn install(&self, server: &ApiServer, node: &SelfSigned) -> Result<()> {
        let cluster = json!({
            "server": format!("https://127.0.0.1:{}", server.port()),
            "certificate-authority": server.folder().join("certificates/apiserver.crt"),
        });
        let user = json!({"client-certificate": node.certificate, "client-key": node.key});
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "node",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "node", "user": user}],
            "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
        });
        let path = self.folder.join("kubelet.conf");
        std::fs::write(&path, kubeconfig.to_string())?;
        let mut install = self.command("install");
        workspace::output(install.arg("--kubelet-kubeconfig").arg(path)).map(drop)
    }

    /// Starts it with a clock that is wrong by that many seconds.
    fn start(&self, skew: i64) -> Result<Process> {
        let mut command = self.command("run");
        command.args(["--log", "info,culvert_hub::upstream=debug"]);
        if skew != 0 {
            command.envs(skewed_clock::environment(&self.folder, skew)?);
        }
        Process::start("culvert-hub", &self.folder, &mut command)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = program("culvert-hub");
        command.args([
            name,
            "--listen",
            &self.listen,
            "--admin-listen",
            &self.admin,
        ]);
        command.arg("--state-dir").arg(self.folder.join("state"));
        let socket = self.folder.join("admin.sock");
        command.arg("--admin-socket").arg(socket);
        command
    }

    /// Asks for a collection as kubelet, which has `names` in it when its API server answers.
    fn wait_for_link(&self, path: &str, names: &[&str]) -> Result<()> {
        wait::until("the API server answers by the hub", DEADLINE, || {
            let answer = self.ask(path)?;
            ensure!(!answer.is_local && answer.names == names, "{answer:?}");
            Ok(())
        })
    }

    /// One of the hub's pages for operators.
    fn page(&self, name: &str) -> Result<Value> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail-with-body", "-m", "5"]);
        let text = workspace::output(curl.arg(format!("http://{}/debug/{name}", self.admin)))?;
        serde_json::from_str(&text).with_context(|| text)
    }

    /// A file that `install` has made.
    fn local(&self, name: &str) -> PathBuf {
        self.folder.join("state/local").join(name)
    }

    /// Asks for a collection as kubelet.
    fn ask(&self, path: &str) -> Result<Answer> {
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "--fail-with-body",
            "-m",
            "5",
            "--include",
            "--http1.1",
        ]);
        // An API server makes other JSON for curl, for people to read.
        curl.args(["--user-agent", "kubelet"]);
        curl.arg("--cacert").arg(self.local("ca.crt"));
        curl.arg("--cert").arg(self.local("kubelet.crt"));
        curl.arg("--key").arg(self.local("kubelet.key"));
        let url = format!("https://{}{path}", self.listen);
        let said = workspace::output(curl.arg(url))?;
        let (head, body) = said.split_once("\r\n\r\n").unwrap_or_default();
        let list: Value = serde_json::from_str(body)?;
        let items = list["items"].as_array().into_iter().flatten();
        let mut names = Vec::new();
        for item in items {
            let name = item["metadata"]["name"].as_str();
            names.push(name.context("an item without a name")?.to_owned());
        }
        Ok(Answer {
            is_local: head.to_lowercase().contains("culvert-hub: local"),
            names,
        })
    }
}
