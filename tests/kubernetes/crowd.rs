//! Ten thousand nodes: the proxy's memory, whether they are added while it runs or exist when it
//! starts.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{progress, wait, workspace};
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, with_server};
use crate::proxy::Proxy;

const NODES: u32 = 10_000;
/// Limit of the proxy's peak resident memory.
const MEMORY: u64 = 100_000_000;
/// Images per Node, which give it a size of about 5 kB. kubelet reports up to 50.
const IMAGES: u32 = 20;

#[test]
fn ten_thousand_nodes_fit_into_100_mb_whether_they_come_or_are_there() {
    with_server(|server| crowd(server));
}

fn crowd(server: &ApiServer) -> Result<()> {
    let mut there_before = Proxy::start(server, "there-before", &[])?;
    wait::until("it knows that there are none", DEADLINE, || {
        there_before.nodes().map(drop)
    })?;
    create(server)?;
    let before = peak(&mut there_before)?;
    let mut comes_later = Proxy::start(server, "comes-later", &[])?;
    let later = peak(&mut comes_later)?;
    let in_mb = |bytes: u64| bytes / 1_000_000;
    let after = there_before.process.resident()?;
    let said = format!(
        "{} MB while they came, {} MB after that; {} MB by a list",
        in_mb(before),
        in_mb(after),
        in_mb(later)
    );
    progress::say(&format!("a proxy with {NODES} nodes: {said}"));
    ensure!(before < MEMORY && later < MEMORY, "{said}");
    Ok(())
}

/// The proxy's peak memory, once it knows all nodes.
fn peak(proxy: &mut Proxy) -> Result<u64> {
    wait::until("all nodes are known", DEADLINE, || {
        proxy.process.check()?;
        let known = proxy.metric(r#"culvert_proxy_nodes{state="offline"}"#)?;
        ensure!(known == Some(NODES.into()), "{known:?} of {NODES}");
        Ok(())
    })?;
    proxy.process.peak_resident()
}

/// Creates all of them as fast as the API server accepts them, with one request per node, as
/// kubelets would.
fn create(server: &ApiServer) -> Result<()> {
    let kubeconfig: Value = serde_json::from_str(&fs::read_to_string(server.kubeconfig())?)?;
    let cluster = &kubeconfig["clusters"][0]["cluster"];
    let text = |value: &Value| value.as_str().map(str::to_owned).context("the kubeconfig");
    let authority = text(&cluster["certificate-authority"])?;
    let url = text(&cluster["server"])?;
    let token = text(&kubeconfig["users"][0]["user"]["token"])?;
    // With its own user agent, curl would get indented JSON.
    let request = |number: u32| {
        let file = server.folder().join(format!("node-{number}.json"));
        fs::write(&file, node(number).to_string())?;
        Ok(format!(
            "url = {url}/api/v1/nodes\ncacert = {authority}\nheader = \"Authorization: Bearer \
             {token}\"\n\
             header = \"Content-Type: application/json\"\ndata = @{}\noutput = \
             /dev/null\nsilent\nshow-error\nuser-agent = kubelet\nfail\n",
            file.display()
        ))
    };
    let requests: Result<Vec<String>> = (0..NODES).map(request).collect();
    let all = server.folder().join("nodes.curl");
    fs::write(&all, requests?.join("next\n"))?;
    workspace::output(
        Command::new("curl")
            .args(["--parallel", "--fail-early", "--config"])
            .arg(&all),
    )
    .map(drop)
}

/// An edge node as its kubelet registers it.
fn node(number: u32) -> Value {
    let digest = "0123456789abcdef".repeat(4);
    let image = |image: u32| {
        let name = format!("registry.example/team/some-program-{image}");
        json!({"names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.{image}")], "sizeBytes": 1_000_000})
    };
    let images: Vec<Value> = (0..IMAGES).map(image).collect();
    let address =
        std::net::Ipv4Addr::from(u32::from(std::net::Ipv4Addr::new(10, 64, 0, 1)) + number);
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("edge-{number:05}"), "labels": {"node-restriction.kubernetes.io/culvert-edge": ""}},
        "status": {"addresses": [{"type": "InternalIP", "address": address}], "images": images,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}})
}
