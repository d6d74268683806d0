//! More watches than one connection to the API server carries: all of them live, and short requests
//! are answered beside them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::process::{Process, bound};
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use super::{Hub, with_hub};
use crate::cluster::{DEADLINE, apply, token};

/// What an API server allows on one connection.
const STREAMS: &str = "--http2-max-streams-per-connection=100";
/// One is watched by the node, and by one of the pods' accounts: kubelet has a watch for each that
/// its pods use.
const MAPS: usize = 300;
const ACCOUNTS: usize = 3;
/// Transfers that one curl has at once.
const OF_ONE_CURL: usize = 100;
/// Short requests of each client beside the watches.
const REQUESTS: usize = 20;

#[test]
fn six_hundred_watches_live_beside_short_requests_with_100_streams_a_connection() {
    with_hub(&[STREAMS], |server, hub| watches(server, hub));
}

/// A client of the hub: what curl needs to be it.
struct Client {
    name: String,
    /// Lines of curl's configuration.
    proof: String,
}

/// Watches by one process of curl, each with a file of its own for what it hears.
struct Watches {
    process: Process,
    heard: Vec<PathBuf>,
}

fn watches(server: &ApiServer, hub: &Hub) -> Result<()> {
    create_maps(server)?;
    let mut clients = vec![node(hub)];
    for number in 0..ACCOUNTS {
        clients.push(account(server, &format!("app-{number}"))?);
    }
    let mut running = hub.start(0)?;
    hub.wait_for_link(
        "/api/v1/namespaces?fieldSelector=metadata.name=default",
        &["default"],
    )?;

    let mut watches = Vec::new();
    for first in (0..MAPS).step_by(OF_ONE_CURL) {
        let pods = &clients[1 + first / OF_ONE_CURL % ACCOUNTS];
        for client in [&clients[0], pods] {
            watches.push(Watches::start(hub, client, first)?);
        }
    }
    all_hear(&mut watches, "ADDED")?;
    for round in ["first", "second"] {
        for client in &clients {
            for _ in 0..REQUESTS {
                ask(hub, client)?;
            }
        }
        let mut label = server.kubectl();
        label.args(["label", "configmap", "--all", "--overwrite"]);
        workspace::output(label.arg(format!("round={round}")))?;
        all_hear(&mut watches, &format!("\"round\":\"{round}\""))?;
    }
    running.check()?;
    let servers = hub.page("servers")?;
    ensure!(servers["link"] == "up", "{servers}");
    drop(watches);
    running.terminate(DEADLINE)
}

fn create_maps(server: &ApiServer) -> Result<()> {
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

fn map(number: usize) -> String {
    format!("map-{number}")
}

fn node(hub: &Hub) -> Client {
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

fn account(server: &ApiServer, name: &str) -> Result<Client> {
    let metadata = json!({"namespace": "default", "name": name});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    apply(server, &account)?;
    let token = token(server, ["default", name], None, None)?;
    Ok(Client {
        name: name.to_owned(),
        proof: format!("header = \"Authorization: Bearer {token}\"\n"),
    })
}

impl Watches {
    /// Watches `OF_ONE_CURL` ConfigMaps, the first of which is named.
    fn start(hub: &Hub, client: &Client, first: usize) -> Result<Self> {
        let mut config = String::new();
        let mut heard = Vec::new();
        for number in first..first + OF_ONE_CURL {
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
fn all_hear(watches: &mut [Watches], words: &str) -> Result<()> {
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
fn ask(hub: &Hub, client: &Client) -> Result<()> {
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

fn common(hub: &Hub, client: &Client) -> String {
    let authority = hub.local("ca.crt");
    format!(
        "cacert = {}\nuser-agent = kubelet\nsilent\nshow-error\nfail\n{}",
        authority.display(),
        client.proof
    )
}
