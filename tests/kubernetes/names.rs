//! `--name-service`: a Service whose ports follow those of the cluster, and which says what the
//! proxy's own ports stand for.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::ports::free_in_row;
use culvert_lab::wait::{self, PATIENCE};
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, apply, config_map, edge, get, with_server};
use crate::proxy::Proxy;

/// Own ports that the test's proxy gets.
const OWN_PORTS: u16 = 8;

#[test]
fn the_service_follows_the_cluster_s_ports_and_the_proxy_follows_the_service() {
    with_server(follows);
}

fn follows(server: &mut ApiServer) -> Result<()> {
    let first = free_in_row(OWN_PORTS)?;
    edge(server, "edge-1", "10.0.3.7")?;
    // Another one's entry has the proxy's first own port already.
    service(
        server,
        &json!([{"name": "mine", "port": 80, "targetPort": first}]),
    )?;
    let range = format!("{first}-{}", first + OWN_PORTS - 1);
    let flags = ["--name-service", "culvert-edge", "--name-ports", &range];
    let hosts = ["--hosts-configmap", "kube-system/culvert-hosts"];
    let by_service = ["--hosts-address", "service"];
    let all = [&flags[..], &hosts, &by_service].concat();
    let mut proxy = Proxy::start(server, "proxy", &all)?;

    let defaults = ["mine", "p-10250", "p-10255", "p-7429", "p-9100"];
    wait_for_entries(server, &defaults)?;
    check_answers(server, "mine")?;
    check_answers(server, "p-9100")?;
    hosts_have_the_service(server)?;

    let ports = json!({"ports": "9100,8080", "localhost-ports": "8081"});
    config_map(server, "culvert-system", "culvert-ports", &ports)?;
    let kept = target(server, "p-9100")?;
    wait_for_entries(server, &["mine", "p-8080", "p-8081", "p-9100"])?;
    ensure!(target(server, "p-9100")? == kept, "an entry keeps its port");
    check_answers(server, "p-8080")?;

    let own = target(server, "p-8081")?;
    server.stop()?;
    proxy.restart()?;
    wait::until("the port means the same as before", DEADLINE, || {
        let answer = ask(own, "edge-1")?;
        ensure!(answer.contains(" 503 "), "{answer}");
        Ok(())
    })
}

fn service(server: &ApiServer, ports: &Value) -> Result<()> {
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "culvert-system", "name": "culvert-edge"},
            "spec": {"selector": {"app.kubernetes.io/name": "culvert-proxy"}, "ports": ports}}),
    )
}

fn the_service(server: &ApiServer) -> Result<Value> {
    get(server, &["service", "-n", "culvert-system", "culvert-edge"])
}

fn wait_for_entries(server: &ApiServer, wanted: &[&str]) -> Result<()> {
    wait::until(&format!("the entries {wanted:?}"), DEADLINE, || {
        let found = the_service(server)?;
        let entries = found["spec"]["ports"].as_array().context("no ports")?;
        let mut names: Vec<_> = entries
            .iter()
            .filter_map(|entry| entry["name"].as_str())
            .collect();
        names.sort_unstable();
        ensure!(names == wanted, "{names:?}");
        Ok(())
    })
}

/// The own port of the proxy that an entry leads to.
fn target(server: &ApiServer, name: &str) -> Result<u16> {
    let found = the_service(server)?;
    let entries = found["spec"]["ports"].as_array().context("no ports")?;
    let target = entries
        .iter()
        .find(|entry| entry["name"] == name)
        .and_then(|entry| entry["targetPort"].as_u64())
        .with_context(|| format!("no {name} in {found}"))?;
    Ok(target.try_into()?)
}

/// Fails if the port of an entry does not lead to nodes: edge-1 is offline, and edge-9 unknown.
fn check_answers(server: &ApiServer, entry: &str) -> Result<()> {
    let own = target(server, entry)?;
    wait::until(&format!("{entry} leads to the nodes"), DEADLINE, || {
        for (host, status) in [("edge-1", " 503 "), ("edge-9", " 421 ")] {
            let answer = ask(own, host)?;
            ensure!(answer.contains(status), "{entry}, {host}: {answer}");
        }
        Ok(())
    })
}

/// The first bytes of the answer to a request for this host.
fn ask(own: u16, host: &str) -> Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, own))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Waits until the name of edge-1 has the address of the Service.
fn hosts_have_the_service(server: &ApiServer) -> Result<()> {
    let found = the_service(server)?;
    let address = found["spec"]["clusterIP"].as_str().context("no address")?;
    let line = format!("{address}\tedge-1 # culvert\n");
    wait::until("edge-1 by the Service", DEADLINE, || {
        let hosts = get(server, &["configmap", "-n", "kube-system", "culvert-hosts"])?;
        ensure!(hosts["data"]["hosts"] == line, "{hosts}");
        Ok(())
    })
}
