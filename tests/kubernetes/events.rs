//! Tests of Events on Nodes.

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::Value;

use crate::cluster::{DEADLINE, edge, get, with_server};
use crate::proxy::Proxy;

/// The Events with this reason on a node.
pub(crate) fn of(server: &ApiServer, reason: &str, node: &str) -> Result<Vec<Value>> {
    let events = get(server, &["events.v1.events.k8s.io", "-n", "kube-system"])?;
    let all = events["items"].as_array().context("no list")?;
    let ours = |event: &&Value| event["reason"] == reason && event["regarding"]["name"] == node;
    Ok(all.iter().filter(ours).cloned().collect())
}

#[test]
fn two_proxies_make_one_event_of_a_node_that_is_offline_and_of_an_address_of_two() {
    with_server(|server| events(server));
}

fn events(server: &ApiServer) -> Result<()> {
    for name in ["edge-2", "edge-3"] {
        edge(server, name, "192.168.1.10")?;
    }
    let mut proxies = [
        Proxy::start(server, "proxy-1", &[])?,
        Proxy::start(server, "proxy-2", &[])?,
    ];
    for proxy in &mut proxies {
        proxy.wait_for_node("edge-3", &["192.168.1.10"])?;
    }
    for node in ["edge-2", "edge-3"] {
        for (reason, words) in [
            ("EdgeOffline", node),
            ("AddressClaimedTwice", "edge-2 and edge-3"),
        ] {
            let events = wait::until(&format!("{reason} on {node}"), DEADLINE, || {
                let events = of(server, reason, node)?;
                ensure!(!events.is_empty(), "none yet");
                Ok(events)
            })?;
            let note = events[0]["note"].as_str().unwrap_or_default();
            ensure!(note.contains(words), "{note}");
            ensure!(
                events[0]["reportingController"] == "culvert-proxy",
                "{events:?}"
            );
        }
    }
    // A repetition by the second proxy must not create another Event.
    wait::until("both proxies have told both nodes", DEADLINE, || {
        let log = std::fs::read_to_string(server.audit_log())?;
        let overtaken = log.lines().filter(|line| {
            line.contains("/events?") || line.contains("/namespaces/kube-system/events")
        });
        let overtaken = overtaken
            .filter(|line| line.contains(r#""code":409"#))
            .count();
        ensure!(
            overtaken == 4,
            "{overtaken} of 4 found made what they would have told"
        );
        Ok(())
    })?;
    for node in ["edge-2", "edge-3"] {
        let events = of(server, "EdgeOffline", node)?;
        ensure!(
            events.len() == 1 && events[0]["series"].is_null(),
            "one, once: {events:?}"
        );
    }
    let described = workspace::output(server.kubectl().args(["describe", "node", "edge-2"]))?;
    ensure!(
        described.contains("EdgeOffline") && described.contains("AddressClaimedTwice"),
        "{described}"
    );
    Ok(())
}
