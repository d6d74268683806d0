//! The hub of an edge node whose clock is wrong: it trusts no certificate of the API server then, and
//! its own ones are good on any date.

use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use culvert_lab::apiserver::{self, ApiServer};
use culvert_lab::process::Process;
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::{ports, skewed_clock, wait, workspace};
use serde_json::{Value, json};

use crate::cluster::DEADLINE;
use crate::proxy::program;

const NODE: &str = "system:node:edge-1";
const NAMESPACES: &str = "/api/v1/namespaces";
const YEAR: i64 = 365 * 24 * 3600;

/// A hub, and the kubelet whose certificate it has.
struct Hub {
    folder: PathBuf,
    /// `IP:PORT`.
    listen: String,
    admin: String,
}

/// What the hub says of the namespaces.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    is_local: bool,
    names: Vec<String>,
}

#[test]
fn a_hub_whose_clock_is_wrong_by_decades_serves_what_it_remembers() {
    let Some(assets) = apiserver::assets() else {
        return;
    };
    if let Err(error) = clocks(&assets) {
        panic!("{error:#}");
    }
}

fn clocks(assets: &std::path::Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let node = SelfSigned::make(
        folder.path(),
        "node",
        &format!("/O=system:nodes/CN={NODE}"),
        "extendedKeyUsage=clientAuth",
    )?;
    let authority = format!("--client-ca-file={}", node.certificate.display());
    let server = ApiServer::start(assets, &[&authority])?;
    let binding = [
        "create",
        "clusterrolebinding",
        "hub",
        "--clusterrole=cluster-admin",
    ];
    workspace::output(server.kubectl().args(binding).arg(format!("--user={NODE}")))?;
    let hub = Hub {
        folder: folder.path().to_owned(),
        listen: ports::free_address()?.to_string(),
        admin: ports::free_address()?.to_string(),
    };
    hub.install(&server, &node)?;

    let mut running = hub.start(0)?;
    wait::until("the API server answers by the hub", DEADLINE, || {
        let answer = hub.ask()?;
        ensure!(!answer.is_local, "it is local");
        Ok(())
    })?;
    let names = hub.ask()?.names;
    ensure!(!names.is_empty(), "the list is empty");
    running.terminate(DEADLINE)?;

    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let since_1970 = i64::try_from(now)?;
    for skew in [YEAR / 12 - since_1970, 50 * YEAR] {
        let mut running = hub.start(skew)?;
        let expected = Answer {
            is_local: true,
            names: names.clone(),
        };
        wait::until("the hub answers", DEADLINE, || {
            let answer = hub.ask()?;
            ensure!(answer == expected, "{answer:?}");
            Ok(())
        })?;
        wait::until("status names the certificate", DEADLINE, || {
            let said = workspace::output(&mut hub.command("status"))?;
            ensure!(
                said.contains("link: down") && said.contains("certificate"),
                "{said}"
            );
            Ok(())
        })?;
        running.terminate(DEADLINE)?;
    }
    let mut running = hub.start(0)?;
    wait::until("the link is up again", DEADLINE, || {
        let answer = hub.ask()?;
        ensure!(!answer.is_local && answer.names == names, "{answer:?}");
        Ok(())
    })?;
    running.terminate(DEADLINE)
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

    /// Asks as kubelet.
    fn ask(&self) -> Result<Answer> {
        let local = |name: &str| self.folder.join("state/local").join(name);
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
        curl.arg("--cacert").arg(local("ca.crt"));
        curl.arg("--cert").arg(local("kubelet.crt"));
        curl.arg("--key").arg(local("kubelet.key"));
        let url = format!("https://{}{NAMESPACES}", self.listen);
        let said = workspace::output(curl.arg(url))?;
        let (head, body) = said.split_once("\r\n\r\n").unwrap_or_default();
        let list: Value = serde_json::from_str(body)?;
        let items = list["items"].as_array().into_iter().flatten();
        Ok(Answer {
            is_local: head.to_lowercase().contains("culvert-hub: local"),
            names: items.map(|it| it["metadata"]["name"].to_string()).collect(),
        })
    }
}
