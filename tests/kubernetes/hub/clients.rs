//! Clients of a hub: kubelet, accounts and strangers, each as curl is told to be them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::process::{Process, bound};
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use super::Hub;
use crate::cluster::{DEADLINE, apply, token};

/// One is watched by the node, and by one of the pods' accounts: kubelet has a watch for each that
/// its pods use.
pub(super) const MAPS: usize = 300;
/// Transfers that one curl has at once.
pub(super) const MAPS_PER_CURL: usize = 100;

/// A client of the hub: what curl needs to be it.
#[derive(Clone)]
pub(super) struct Client {
    name: String,
    /// Lines of curl's configuration.
    proof: String,
}

/// Watches by one process of curl, each with a file of its own for what it hears.
pub(super) struct Watches {
    process: Process,
    heard: Vec<PathBuf>,
}

/// Creates the ConfigMaps.
pub(super) fn create_maps(server: &ApiServer) -> Result<()> {
    let mut items = Vec::new();
    for number in 0..MAPS {
        let metadata = json!({"namespace": "default", "name": map(number)});
        items.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let file = server.folder().join("maps.json");
    fs::write(&file, list.to_string())?;
    workspace::output(server.kubectl().args(["create", "-f"]).arg(file)).map(drop)
}

/// The name of one of them.
pub(super) fn map(number: usize) -> String {
    format!("map-{number}")
}

/// Kubelet.
pub(super) fn node(hub: &Hub) -> Client {
    let certificate = hub.local("kubelet.crt");
    let key = hub.local("kubelet.key");
    Client {
        name: "node".to_owned(),
        proof: format!(
            "cert = {}\nkey = {}\n",
            certificate.display(),
            key.display()
        ),
    }
}

/// A service account, which is made.
pub(super) fn account(server: &ApiServer, namespace: &str, name: &str) -> Result<Client> {
    let metadata = json!({"namespace": namespace, "name": name});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    apply(server, &account)?;
    let token = token(server, [namespace, name], None, None)?;
    Ok(Client {
        name: name.to_owned(),
        proof: format!("header = \"Authorization: Bearer {token}\"\n"),
    })
}

impl Client {
    /// Without any proof.
    pub(super) fn stranger() -> Self {
        Self {
            name: "stranger".to_owned(),
            proof: String::new(),
        }
    }
}

impl Watches {
    /// None has ended.
    ///
    /// # Errors
    /// One has.
    pub(super) fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Watches `MAPS_PER_CURL` ConfigMaps, the first of which is named.
    pub(super) fn start(hub: &Hub, client: &Client, first: usize) -> Result<Self> {
        let mut config = String::new();
        let mut heard = Vec::new();
        for number in first..first + MAPS_PER_CURL {
            let file = hub.folder.join(format!("{}-{number}.heard", client.name));
            if !config.is_empty() {
                config += "next\n";
            }
            let name = map(number);
            config += &common(hub, client);
            config += &format!(
                "url = https://{}/api/v1/namespaces/default/configmaps?watch=true&fieldSelector=metadata.name={name}\n\
                 output = {}\nno-buffer\n",
                hub.listen,
                file.display()
            );
            heard.push(file);
        }
        let file = hub.folder.join(format!("{}-{first}.curl", client.name));
        fs::write(&file, config)?;
        let mut curl = bound(Path::new("curl"));
        curl.args(["--parallel", "--parallel-max", "300", "--config"]);
        let process = Process::start("watches", &hub.folder, curl.arg(file))?;
        Ok(Self { process, heard })
    }
}

/// Each watch has heard these words, and none has ended.
pub(super) fn all_hear(watches: &mut [Watches], words: &str) -> Result<()> {
    wait::until(&format!("all watches hear {words}"), DEADLINE, || {
        let mut deaf = Vec::new();
        for part in &mut *watches {
            part.process.check()?;
            for file in &part.heard {
                let heard = fs::read_to_string(file).unwrap_or_default();
                if !heard.contains(words) {
                    deaf.push(file.display().to_string());
                }
            }
        }
        ensure!(deaf.is_empty(), "{} do not: {deaf:?}", deaf.len());
        Ok(())
    })
}

/// A short request, which the API server answers in time.
pub(super) fn ask(hub: &Hub, client: &Client) -> Result<()> {
    let file = hub.folder.join(format!("{}-short.curl", client.name));
    let path = "api/v1/namespaces/default/configmaps/map-0";
    let request = format!("url = https://{}/{path}\nmax-time = 20\n", hub.listen);
    fs::write(&file, common(hub, client) + &request)?;
    let said = workspace::output(
        Command::new("curl")
            .args(["--include", "--config"])
            .arg(file),
    )?;
    let (head, body) = said.split_once("\r\n\r\n").context("no head")?;
    ensure!(!head.contains("culvert-hub: local"), "{head}");
    let map: Value = serde_json::from_str(body)?;
    ensure!(map["metadata"]["name"] == "map-0", "{map}");
    Ok(())
}

/// What each request of a client has.
pub(super) fn common(hub: &Hub, client: &Client) -> String {
    let authority = hub.local("ca.crt");
    format!(
        "cacert = {}\nuser-agent = kubelet\nsilent\nshow-error\nfail\n{}",
        authority.display(),
        client.proof
    )
}
