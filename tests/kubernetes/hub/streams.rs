//! More watches than one connection to the API server carries: all of them live, and short requests
//! are answered beside them. The API server ends some of its connections in order meanwhile.

use anyhow::{Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::workspace;

use super::clients::{MAPS, MAPS_PER_CURL, Watches, account, all_hear, ask, create_maps, node};
use super::{Hub, with_hub};
use crate::cluster::DEADLINE;

/// What an API server allows on one connection.
const STREAMS: &str = "--http2-max-streams-per-connection=100";
/// The part of requests after which it wants no further ones on their connection: the highest that it
/// takes, 20 times that of OpenShift.
const GOAWAYS: &str = "--goaway-chance=0.02";
const ACCOUNTS: usize = 3;
/// Short requests of each client beside the watches.
const REQUESTS: usize = 20;

#[test]
fn six_hundred_watches_live_beside_short_requests_with_100_streams_a_connection_and_goaways() {
    with_hub(&[STREAMS, GOAWAYS], |server, hub| watches(server, hub));
}

fn watches(server: &ApiServer, hub: &Hub) -> Result<()> {
    create_maps(server)?;
    let mut clients = vec![node(hub)];
    for number in 0..ACCOUNTS {
        clients.push(account(server, "default", &format!("app-{number}"))?);
    }
    let mut running = hub.start(0)?;
    hub.wait_for_link(
        "/api/v1/namespaces?fieldSelector=metadata.name=default",
        &["default"],
    )?;

    let mut watches = Vec::new();
    for first in (0..MAPS).step_by(MAPS_PER_CURL) {
        let pods = &clients[1 + first / MAPS_PER_CURL % ACCOUNTS];
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
