//! Forwarded ports: `--forward`, and ConfigMap `culvert-forwards`.

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::ports::free_address;
use culvert_lab::{wait, workspace};
use serde_json::json;

use crate::cluster::{DEADLINE, config_map, with_server};
use crate::identity::site::{Agent, agent_token, create_objects};
use crate::loopback::{STREAM_TIMEOUT, echo, echo_backend};
use crate::ports::event_note;
use crate::proxy::Proxy;

/// A label that no kubelet may write.
const SITE: &str = "node-restriction.kubernetes.io/site";

#[test]
fn forwarded_ports_follow_the_config_map_and_the_labels_of_nodes() {
    with_server(forwards);
}

fn forwards(server: &mut ApiServer) -> Result<()> {
    create_objects(server)?;
    let [flag, api, chosen] = [free_address()?, free_address()?, free_address()?];
    let backend = echo_backend()?;
    let by_flag = format!("{flag}=edge-1:{backend}");
    let mut proxy = Proxy::start(server, "proxy", &["--forward", &by_flag])?;
    let token = agent_token(server, "agent", "edge-1")?;
    let api_port = server.port();
    let further = ["--localhost-port", &api_port.to_string()];
    let agent = Agent::start_with(server, "agent", &token, backend, &further)?;
    let address = proxy.agents.to_string();
    agent.mount_until(server, "the proxy", |_, told| told.contains(&address))?;
    wait_for_echo(&mut proxy, flag)?;

    // kubectl reaches the API server of an edge node.
    set(server, &format!("# edge-1's\n{api}=edge-1:{api_port}"))?;
    wait_for_kubectl(server, api)?;
    let outcome = "culvert_proxy_streams_total{frontend=\"forward\",outcome=\"finished\"}";
    wait::until("its outcome in the metrics", DEADLINE, || {
        let count = proxy.metric(outcome)?.unwrap_or_default();
        ensure!(count >= 1.0, "{count}");
        Ok(())
    })?;

    // The forward goes to the connected one of a site's nodes.
    set(server, &format!("{chosen}={SITE}=berlin:{backend}"))?;
    wait::until("nobody has the label", DEADLINE, || {
        closed(api)?;
        let logged = [("frontend", "forward"), ("outcome", "unknown_destination")];
        ensure!(echoes(chosen).is_err(), "{chosen} leads to a node");
        let logged = proxy.process.logged("stream ended", &logged);
        ensure!(!logged.is_empty(), "{}", proxy.process.log());
        Ok(())
    })?;
    label(server, "edge-2", "berlin")?;
    label(server, "edge-1", "berlin")?;
    wait_for_echo(&mut proxy, chosen)?;
    for _ in 0..20 {
        echoes(chosen)?;
    }

    // A mistake changes nothing, also after a restart.
    set(
        server,
        &format!("{chosen}={SITE}=paris:{backend}\nx=edge-1:22"),
    )?;
    wait::until("the Event", DEADLINE, || {
        let note = event_note(
            server,
            "culvert-system",
            "InvalidForwards",
            "culvert-forwards",
        )?;
        ensure!(note.contains("entries, line 2: \"x=edge-1:22\""), "{note}");
        Ok(())
    })?;
    echoes(chosen)?;
    proxy.restart()?;
    wait_for_echo(&mut proxy, chosen)?;
    wait_for_echo(&mut proxy, flag)?;

    // It leads to another port at once, for new connections. The proxy's own port is a mistake.
    let mut open = TcpStream::connect(chosen)?;
    open.set_read_timeout(Some(STREAM_TIMEOUT))?;
    echo(&mut open)?;
    set(server, &format!("{chosen}=edge-1:{api_port}"))?;
    wait_for_kubectl(server, chosen)?;
    echo(&mut open)?;
    set(server, &format!("{}=edge-1:22", proxy.admin()))?;
    let own = format!("the proxy uses port {} itself", proxy.admin().port());
    wait::until("the refusal", DEADLINE, || {
        let log = proxy.process.log();
        ensure!(log.contains(&own), "{log}");
        Ok(())
    })?;
    wait_for_kubectl(server, chosen)?;

    // Every address in place of one, without another program's port in between.
    let every = format!("[::]:{}", chosen.port());
    set(server, &format!("{every}=edge-1:{backend}"))?;
    wait_for_echo(&mut proxy, chosen)?;
    let log = proxy.process.log();
    ensure!(!log.contains("forwarded port not open"), "{log}");

    // It is closed when no entry names it.
    set(server, "")?;
    wait::until("the port is closed", DEADLINE, || closed(chosen))?;
    echoes(flag)
}

fn set(server: &ApiServer, entries: &str) -> Result<()> {
    let data = json!({ "entries": entries });
    config_map(server, "culvert-system", "culvert-forwards", &data)
}

fn label(server: &ApiServer, node: &str, site: &str) -> Result<()> {
    let label = format!("{SITE}={site}");
    workspace::output(server.kubectl().args(["label", "node", node, &label])).map(drop)
}

fn echoes(port: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(port).with_context(|| port.to_string())?;
    stream.set_read_timeout(Some(STREAM_TIMEOUT))?;
    echo(&mut stream)
}

fn wait_for_echo(proxy: &mut Proxy, port: SocketAddr) -> Result<()> {
    wait::until(&format!("an echo at {port}"), DEADLINE, || {
        proxy.process.check()?;
        echoes(port)
    })
}

fn wait_for_kubectl(server: &ApiServer, port: SocketAddr) -> Result<()> {
    let address = format!("https://{port}");
    wait::until("kubectl through the forwarded port", DEADLINE, || {
        let mut kubectl = server.kubectl();
        kubectl.args(["--server", &address, "--insecure-skip-tls-verify"]);
        let nodes = workspace::output(kubectl.args(["get", "nodes", "--output", "name"]))?;
        ensure!(nodes.contains("node/edge-1"), "{nodes}");
        Ok(())
    })
}

fn closed(port: SocketAddr) -> Result<()> {
    ensure!(TcpStream::connect(port).is_err(), "{port} is open");
    Ok(())
}
