//! What kubelet asked the API server for, by its audit log.

use anyhow::{Result, ensure};
use culvert_lab::wait;
use serde_json::Value;

use super::node::{HUB, KUBELET, Node};
use super::{NODE, NOTICED};
use crate::rbac;
use crate::world::World;

/// Stops kubelet and the hub: kube-apiserver logs a watch when it ends.
pub(super) fn stop(world: &mut World, node: &Node, logged: usize) -> Result<()> {
    world.claim_once(
        "since the link was back, the API server's audit log has watches of kubelet's for nodes, \
         pods and services, and no list of them",
        |world| {
            node.kill(world, KUBELET)?;
            node.kill(world, HUB)?;
            wait::until("the watches", NOTICED, || {
                let log = rbac::audit_log(world)?.split_off(logged);
                ["nodes", "pods", "services"]
                    .iter()
                    .try_for_each(|resource| {
                        let watches = count_requests(&log, "watch", resource);
                        let lists = count_requests(&log, "list", resource);
                        ensure!(
                            watches > 0 && lists == 0,
                            "{resource}: {watches} watches, {lists} lists"
                        );
                        Ok(())
                    })
            })
        },
    )
}

/// How often kubelet asked the API server for this, in lines of its audit log.
fn count_requests(log: &str, verb: &str, resource: &str) -> usize {
    let mut requests = 0;
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let agent = event["userAgent"].as_str().unwrap_or_default();
        if event["user"]["username"] == format!("system:node:{NODE}")
            && agent.starts_with("kubelet/")
            && event["verb"] == verb
            && event["objectRef"]["resource"] == resource
        {
            requests += 1;
        }
    }
    requests
}
