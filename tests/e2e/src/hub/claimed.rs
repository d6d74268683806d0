//! A pod with a ResourceClaim (dynamic resource allocation). The claim is allocated, with no device of
//! any driver: kubelet reads it before it starts the pod, and asks no driver.

use anyhow::Result;
use serde_json::json;

use super::NODE;
use super::pods::object;
use super::volumes::sleeping_pod;
use crate::world::World;

pub(super) const POD: &str = "hub-claim";
const API: &str = "resource.k8s.io/v1";
/// The first version that has it without being asked for.
const SINCE: u32 = 34;

/// Whether this version of Kubernetes has claims.
pub(super) fn is_possible(world: &World) -> Result<bool> {
    Ok(world.cluster.minor_version()? >= SINCE)
}

/// Starts it.
pub(super) fn start(world: &World) -> Result<()> {
    let class =
        json!({"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": POD}, "spec": {}});
    let mut claim = object("ResourceClaim", POD);
    claim["apiVersion"] = API.into();
    let request = json!({"name": "one", "exactly": {"deviceClassName": POD}});
    claim["spec"] = json!({"devices": {"requests": [request]}});
    let mut pod = sleeping_pod(POD);
    pod["spec"]["resourceClaims"] = json!([{"name": "one", "resourceClaimName": POD}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "one"}]});
    world.apply(POD, &[class, claim, pod])?;
    allocate(world)
}

/// Allocates the claim for the pod.
fn allocate(world: &World) -> Result<()> {
    let uid = world.shop(&["get", "pod", POD, "--output", "jsonpath={.metadata.uid}"])?;
    let selector = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": [NODE]}
    ]}]});
    let status = json!({"status": {
        "allocation": {"devices": {"results": []}, "nodeSelector": selector},
        "reservedFor": [{"resource": "pods", "name": POD, "uid": uid}]
    }});
    let patch = status.to_string();
    let claim = format!("resourceclaim/{POD}");
    let patch = [
        "patch",
        &claim,
        "--subresource",
        "status",
        "--type",
        "merge",
        "--patch",
        &patch,
    ];
    world.shop(&patch).map(drop)
}

/// Removes the claim; the pod goes with the others.
pub(super) fn stop(world: &World) -> Result<()> {
    world.shop(&["delete", "resourceclaim", POD, "--wait=false"])?;
    let class = ["delete", "deviceclass", POD, "--wait=false"];
    world.cluster.ask(&class).map(drop)
}
