//! A port by ConfigMap `culvert-ports` alone: no DaemonSet is edited, and no pod is restarted.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::wait;
use serde_json::{Value, json};

use crate::cluster::MASTER;
use crate::command::Running;
use crate::world::{EDGE_1_ADDRESS, World};
use crate::{culvert, install};

const PORT: u16 = 9051;
/// Kubelet takes up to 90 s to replace the files of a mounted ConfigMap; the rest is curl's.
const OPENED: Duration = Duration::from_secs(95);
/// Time for a server to start, and for curl to give up.
const SERVER: Duration = Duration::from_secs(30);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    let address = format!("{EDGE_1_ADDRESS}:{PORT}");
    let (_, port) = address.split_once(':').unwrap_or_default();
    let url = format!("http://{address}/");
    let get = ["curl", "-sS", "-m", "5", "-o", "/dev/null", &url];
    let mut server = start_server(world, port, &get)?;
    let pods = agents(world)?;
    world.claim_once(
        "a port of edge-1 is closed to the cloud; as one of YurtTunnel's in culvert-ports it is \
         answered within 90 s, by the same pods",
        |world| {
            let closed = world.cluster.on(MASTER, &get).is_err();
            ensure!(closed, "{url} answers before anybody opened it");
            set(world, &json!({"dnat-ports-pair": format!("{port}=10264")}))?;
            wait::until("the port answers", OPENED, || {
                server.check()?;
                world.cluster.on(MASTER, &get).map(drop)
            })?;
            let now = agents(world)?;
            ensure!(now == pods, "{pods:?} became {now:?}");
            ensure_explained_as_steered(world, &address)
        },
    )?;
    world.claim_once("without it the port is closed at once", |world| {
        set(world, &json!({"dnat-ports-pair": null}))?;
        wait::until("the port is closed", SERVER, || {
            let closed = world.cluster.on(MASTER, &get).is_err();
            ensure!(closed, "{url} answers");
            Ok(())
        })
    })?;
    install::all_online(world)
}

/// Starts a server on edge-1, and waits until it answers there.
fn start_server(world: &World, port: &str, get: &[&str]) -> Result<Running> {
    let mut python = world.cluster.enter("edge-1", "python3");
    let serve = ["-m", "http.server", port, "--bind", EDGE_1_ADDRESS];
    let line = python.args(serve).arg("--directory").arg(world.folder());
    let mut server = Running::start(world.folder(), "edge-port", line)?;
    wait::until("the server answers on its node", SERVER, || {
        server.check()?;
        world.cluster.on("edge-1", get).map(drop)
    })?;
    Ok(server)
}

fn ensure_explained_as_steered(world: &World, address: &str) -> Result<()> {
    let explained = culvert::why(world, address)?;
    let is_steered = explained.lines().any(|line| line == "steering: steered");
    ensure!(is_steered, "{explained}");
    Ok(())
}

/// The names of the agents' pods.
fn agents(world: &World) -> Result<Vec<String>> {
    let pods = world.pods("culvert-agent")?.into_values();
    Ok(pods.map(|pod| pod.name).collect())
}

/// Changes keys of `culvert-ports` as an administrator does.
pub(super) fn set(world: &World, data: &Value) -> Result<()> {
    let patch = json!({ "data": data }).to_string();
    let line = ["patch", "configmap", "culvert-ports", "--type=merge", "-p"];
    world.culvert(&[&line[..], &[&patch]].concat()).map(drop)
}
