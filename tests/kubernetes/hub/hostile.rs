//! A pod, a process of the host and an account without rights try to take the hub from kubelet: its
//! requests are answered by the API server all the time, its watch lives, and the hub's memory stays
//! small.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::process::{Process, bound};
use culvert_lab::{progress, workspace};
use serde_json::json;

use super::clients::{
    Client, MAPS_PER_CURL, Watches, account, all_hear, ask, common, create_maps, map, node,
};
use super::{Hub, with_hub};
use crate::cluster::apply;

/// How long they try; with the long forms of tests ten times as long.
const ATTACK: Duration = Duration::from_secs(60);
/// What the hub's memory may grow by.
const GROWTH: u64 = 64 << 20;
/// Connections that a process of the host opens and leaves silent. More than strangers may have.
const SILENT: usize = 600;
/// Requests of one attacker's process.
const REQUESTS: usize = 500;
/// Watches that an attacker begins and reads one byte a second of.
const UNREAD: usize = 12;
/// The same of schemas.
const UNREAD_SCHEMAS: usize = 4;
/// So many times as many with the long forms of tests.
const MANY: usize = 8;
/// Bytes in the ConfigMap that is changed before the eyes of who does not read.
const LARGE: usize = 100 << 10;

#[test]
fn kubelet_notices_nothing_of_a_pod_a_host_process_and_an_account_that_attack() {
    let (time, times) = if is_long() {
        (10 * ATTACK, MANY)
    } else {
        (ATTACK, 1)
    };
    with_hub(&[], |server, hub| attack(server, hub, time, times));
}

/// One attacker: a process of curl after another, each with requests of its own.
struct Attacker {
    name: &'static str,
    client: Client,
    request: fn(round: usize, number: usize) -> String,
    rounds: usize,
    running: Option<Process>,
}

/// `times` as many slow readers as in the short form.
fn attack(server: &ApiServer, hub: &Hub, time: Duration, times: usize) -> Result<()> {
    create_maps(server)?;
    let kubelet = node(hub);
    let mut running = hub.start(0)?;
    hub.wait_for_link(
        "/api/v1/namespaces?fieldSelector=metadata.name=default",
        &["default"],
    )?;
    let mut watches = vec![Watches::start(hub, &kubelet, 0)?];
    all_hear(&mut watches, "ADDED")?;
    ask(hub, &kubelet)?;
    let before = running.resident()?;

    let mut attackers = vec![
        Attacker::new("pod", account(server, "default", "greedy")?, pod),
        Attacker::new(
            "without-rights",
            account(server, "kube-public", "nobody")?,
            without_rights,
        ),
        Attacker::new("stranger", Client::stranger(), stranger),
    ];
    let host = account(server, "default", "host")?;
    let mut slow = [
        SlowReader::new("pod", attackers[0].client.clone(), times * UNREAD, watch),
        SlowReader::new("host", host, times * UNREAD, watch),
        SlowReader::new(
            "without-rights",
            attackers[1].client.clone(),
            times * UNREAD_SCHEMAS,
            schema,
        ),
    ];
    let mut silent = Vec::new();
    let until = Instant::now() + time;
    let mut asked = 0;
    while Instant::now() < until {
        for attacker in &mut attackers {
            attacker.go_on_attacking(hub)?;
        }
        for reader in &mut slow {
            reader.go_on_reading(hub)?;
        }
        silent.extend(TcpStream::connect(&hub.listen));
        if silent.len() > SILENT {
            silent.remove(0);
        }
        if asked % 10 == 0 {
            change_large(server, asked)?;
        }
        ask(hub, &kubelet)?;
        asked += 1;
        for part in &mut watches {
            part.check()?;
        }
    }
    label_all(server)?;
    all_hear(&mut watches, "\"attack\":\"over\"")?;
    let peak = running.peak_resident()?;
    let rounds: usize = attackers.iter().map(|attacker| attacker.rounds).sum();
    progress::say(&format!(
        "a hub under attack: {asked} requests of kubelet beside {rounds} rounds, {} kB before, \
         {} kB at most",
        before >> 10,
        peak >> 10
    ));
    ensure!(
        rounds > attackers.len(),
        "the attackers were too slow: {rounds}"
    );
    ensure!(peak - before < GROWTH, "{before} before, {peak} at most");
    running.check()
}

fn is_long() -> bool {
    std::env::var_os(xtask::test::LONG).is_some()
}

impl Attacker {
    fn new(name: &'static str, client: Client, request: fn(usize, usize) -> String) -> Self {
        Self {
            name,
            client,
            request,
            rounds: 0,
            running: None,
        }
    }

    /// Starts the next process if the last one has ended.
    fn go_on_attacking(&mut self, hub: &Hub) -> Result<()> {
        if let Some(running) = &mut self.running
            && running.check().is_ok()
        {
            return Ok(());
        }
        let mut config = String::new();
        for number in 0..REQUESTS {
            if number > 0 {
                config += "next\n";
            }
            // Refusals are what it gets, and goes on.
            config += &common(hub, &self.client).replace("fail\n", "");
            let request = (self.request)(self.rounds, number);
            config += &format!(
                "url = https://{}{request}\noutput = /dev/null\nmax-time = 20\n",
                hub.listen
            );
        }
        let file = hub.folder.join(format!("{}.attack", self.name));
        fs::write(&file, config)?;
        let mut curl = bound(Path::new("curl"));
        curl.args(["--parallel", "--parallel-max", "20", "--config"]);
        self.running = Some(Process::start("attack", &hub.folder, curl.arg(file))?);
        self.rounds += 1;
        Ok(())
    }
}

/// Lists that nobody asked for before, each a set of its own.
fn pod(round: usize, number: usize) -> String {
    format!("/api/v1/namespaces/default/configmaps?labelSelector=round!={round},number!={number}")
}

/// What the API server refuses.
fn without_rights(round: usize, number: usize) -> String {
    format!("/api/v1/namespaces/space-{round}/secrets/key-{number}")
}

/// Tokens that are nobody's are in the request: curl has one in its configuration.
fn stranger(round: usize, number: usize) -> String {
    format!(
        "/api/v1/namespaces/default/pods/pod-{round}-{number}\"\nheader = \"Authorization: Bearer {round}.{number}.x"
    )
}

/// Reads many answers at once, each by one byte a second; what ends is begun again.
struct SlowReader {
    name: &'static str,
    client: Client,
    at_once: usize,
    request: fn(number: usize) -> String,
    running: Option<Process>,
}

impl SlowReader {
    fn new(
        name: &'static str,
        client: Client,
        at_once: usize,
        request: fn(usize) -> String,
    ) -> Self {
        Self {
            name,
            client,
            at_once,
            request,
            running: None,
        }
    }

    fn go_on_reading(&mut self, hub: &Hub) -> Result<()> {
        if let Some(running) = &mut self.running
            && running.check().is_ok()
        {
            return Ok(());
        }
        let mut config = String::new();
        for number in 0..self.at_once {
            if number > 0 {
                config += "next\n";
            }
            config += &common(hub, &self.client).replace("fail\n", "");
            config += &format!(
                "url = https://{}{}\noutput = /dev/null\nlimit-rate = 1\n",
                hub.listen,
                (self.request)(number)
            );
        }
        let file = hub.folder.join(format!("{}.slow", self.name));
        fs::write(&file, config)?;
        let mut curl = bound(Path::new("curl"));
        curl.args(["--parallel", "--parallel-max", "100", "--config"]);
        self.running = Some(Process::start("slow", &hub.folder, curl.arg(file))?);
        Ok(())
    }
}

fn watch(number: usize) -> String {
    format!("/api/v1/namespaces/default/configmaps?watch=true&labelSelector=n!={number}")
}

/// What every account may read, and is large.
fn schema(_number: usize) -> String {
    "/openapi/v2".to_owned()
}

fn change_large(server: &ApiServer, number: usize) -> Result<()> {
    let metadata = json!({"namespace": "default", "name": "large"});
    let data = json!({"number": number.to_string(), "text": "x".repeat(LARGE)});
    let large =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
    apply(server, &large)
}

fn label_all(server: &ApiServer) -> Result<()> {
    let mut label = server.kubectl();
    label.args(["label", "--overwrite", "configmap"]);
    for number in 0..MAPS_PER_CURL {
        label.arg(map(number));
    }
    workspace::output(label.arg("attack=over")).map(drop)
}
