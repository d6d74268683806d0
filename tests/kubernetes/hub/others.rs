//! A cluster that was restored from a backup, and another cluster at the address of the own one.

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::json;

use super::{Answer, Hub, with_hub};
use crate::cluster::{DEADLINE, edge};

const MAPS: &str = "/api/v1/namespaces/default/configmaps?labelSelector=!other";

/// After the backup: more than an API server makes by itself before a hub asks.
const WRITES: usize = 30;

#[test]
fn a_node_starts_what_a_restored_cluster_has_and_nothing_that_is_newer() {
    with_hub(&[], restored);
}

fn restored(server: &mut ApiServer, hub: &Hub) -> Result<()> {
    create(server, "a")?;
    create(server, "b")?;
    let backup = server.back_up()?;
    // The API server writes some objects of its own when it starts again.
    for _ in 0..WRITES {
        create(server, "other")?;
        let mut delete = server.kubectl();
        workspace::output(delete.args(["delete", "configmap", "other"]))?;
    }
    create(server, "newer")?;
    let mut running = hub.start(0)?;
    hub.wait_for_link(MAPS, &["a", "b", "newer"])?;
    let before = version_in_memory(hub)?;

    server.restore(&backup)?;
    create(server, "later")?;
    wait::until(
        "the hub itself reads again what is of before",
        DEADLINE,
        || {
            let version = version_in_memory(hub)?;
            ensure!(version < before, "{version} of the memory, {before} before");
            Ok(())
        },
    )?;
    server.stop()?;
    wait_for_memory(hub, &["a", "b", "later"])?;
    running.terminate(DEADLINE)
}

#[test]
fn another_cluster_at_the_address_is_not_believed_and_the_own_one_is_again() {
    with_hub(&[], replaced);
}

fn replaced(server: &mut ApiServer, hub: &Hub) -> Result<()> {
    create(server, "a")?;
    edge(server, "edge-1", "192.0.2.1")?;
    let backup = server.back_up()?;
    let mut running = hub.start(0)?;
    hub.wait_for_link(MAPS, &["a"])?;

    server.lose_everything()?;
    wait_for_memory(hub, &["a"])?;
    wait::until("the page says so", DEADLINE, || {
        let page = hub.page("servers")?;
        let reason = page["link_reason"].as_str().context("no reason")?;
        ensure!(page["link"] != "up" && reason.contains("cluster"), "{page}");
        Ok(())
    })?;
    // A reboot of the node meets the same.
    running.kill()?;
    let mut running = hub.start(0)?;
    wait_for_memory(hub, &["a"])?;

    server.restore(&backup)?;
    hub.wait_for_link(MAPS, &["a"])?;
    running.terminate(DEADLINE)
}

fn create(server: &ApiServer, name: &str) -> Result<()> {
    workspace::output(server.kubectl().args(["create", "configmap", name])).map(drop)
}

/// Memory answers, as it should.
fn wait_for_memory(hub: &Hub, names: &[&str]) -> Result<()> {
    let mut expected = Answer {
        is_local: true,
        names: Vec::new(),
    };
    for name in names {
        expected.names.push((*name).to_owned());
    }
    wait::until("memory answers", DEADLINE, || {
        let answer = hub.ask(MAPS)?;
        ensure!(answer == expected, "{answer:?}");
        Ok(())
    })
}

/// The version of the list of ConfigMaps in the hub's memory.
fn version_in_memory(hub: &Hub) -> Result<u64> {
    let page = hub.page("sets")?;
    for set in page.as_array().with_context(|| format!("{page}"))? {
        if set["resource"] == "/v1/configmaps" && set["behind"] == json!(false) {
            return set["resource_version"].as_u64().context("no version");
        }
    }
    anyhow::bail!("no whole list of ConfigMaps: {page}")
}
