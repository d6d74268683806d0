//! What Culvert needs of a Node: a small record, made as it comes off the wire. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use culvert_tunnel::NodeName;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

use super::NodeSelector;
use crate::directory::{CloudNode, EdgeNode, MAX_ADDRESSES, MAX_PORTS, Zone, never_a_nodes};
use crate::identity::NodeUid;

/// Further ports of the node that are steered, such as `8080,9256`.
const PORTS: &str = "culvert.dev/ports";
/// A zone of the node's name besides --dns-zone.
const ZONE: &str = "culvert.dev/zone";
/// Where nobody asks for more: such an annotation is cut for logs.
const MAX_SHOWN: usize = 100;

/// The parts of a Node that are read at all; its list of images, for one, is longer than everything else.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WatchedNode {
    metadata: ObjectMeta,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    addresses: Option<Vec<Address>>,
    #[serde(default)]
    daemon_endpoints: Option<DaemonEndpoints>,
}

#[derive(Clone, Debug, Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DaemonEndpoints {
    #[serde(default)]
    kubelet_endpoint: Option<Endpoint>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Endpoint {
    port: i32,
}

impl Resource for WatchedNode {
    type DynamicType = ();
    type Scope = <Node as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Node::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Node::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Node::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Node::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A node as the directory takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Edge(EdgeNode),
    Cloud(CloudNode),
}

/// What comes of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reduced {
    /// `None`: it is left out, because of its name, and so always.
    pub(super) node: Option<(NodeName, Record)>,
    /// What was left out, and why; for the log.
    pub(super) problems: Vec<String>,
}

impl WatchedNode {
    /// Its name as the API server has it.
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The record; what makes no sense is left out and said.
    pub(super) fn reduced(&self, edges: &NodeSelector) -> Reduced {
        let mut problems = Vec::new();
        let name = match self.name().parse::<NodeName>() {
            Ok(name) => name,
            Err(error) => return Reduced { node: None, problems: vec![error.to_string()] },
        };
        let addresses = self.addresses(&mut problems);
        let none = BTreeMap::new();
        let record = match edges.selects(self.metadata.labels.as_ref().unwrap_or(&none)) {
            true => {
                let (ports, zone) = (self.ports(&mut problems), self.zone(&mut problems));
                Record::Edge(EdgeNode { addresses, ports, zone, uid: self.uid() })
            }
            false => Record::Cloud(CloudNode { addresses }),
        };
        Reduced { node: Some((name, record)), problems }
    }

    fn uid(&self) -> Option<NodeUid> {
        self.metadata.uid.as_deref().and_then(|uid| uid.parse().ok())
    }

    fn addresses(&self, problems: &mut Vec<String>) -> Vec<IpAddr> {
        let given = self.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let mut addresses = Vec::new();
        for text in given.filter(|address| address.kind == "InternalIP").map(|address| &address.address) {
            match address(text) {
                Ok(_) if addresses.len() == MAX_ADDRESSES => {
                    problems.push(format!("more than {MAX_ADDRESSES} addresses"));
                    break;
                }
                Ok(address) if !addresses.contains(&address) => addresses.push(address),
                Ok(_) => {}
                Err(problem) => problems.push(problem),
            }
        }
        addresses
    }

    fn ports(&self, problems: &mut Vec<String>) -> BTreeSet<u16> {
        let endpoints = self.status.as_ref().and_then(|status| status.daemon_endpoints.as_ref());
        let kubelet = endpoints.and_then(|endpoints| endpoints.kubelet_endpoint.as_ref()).map(|endpoint| endpoint.port);
        let mut ports: BTreeSet<u16> = kubelet.and_then(port).into_iter().collect();
        match self.annotation(PORTS).map(further_ports) {
            Some(Ok(further)) => ports.extend(further),
            Some(Err(problem)) => problems.push(format!("annotation {PORTS}: {problem}: write ports as in 8080,9256")),
            None => {}
        }
        ports
    }

    fn zone(&self, problems: &mut Vec<String>) -> Option<Zone> {
        match self.annotation(ZONE)?.trim().parse::<Zone>() {
            Ok(zone) => Some(zone),
            Err(error) => {
                problems.push(format!("annotation {ZONE}: {}", shown(&error.to_string())));
                None
            }
        }
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    let Ok(address) = text.parse::<IpAddr>() else { return Err(format!("{:?} is no address", shown(text))) };
    match never_a_nodes(address.to_canonical()) {
        Some(what) => Err(format!("{address} is {what}, which no node has to itself")),
        None => Ok(address.to_canonical()),
    }
}

fn port(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0)
}

fn further_ports(text: &str) -> Result<BTreeSet<u16>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let number = |part: &str| part.parse().ok().and_then(port).ok_or_else(|| format!("{:?} is no port", shown(part)));
    let ports: BTreeSet<u16> = parts.map(number).collect::<Result<_, _>>()?;
    match ports.len() > MAX_PORTS {
        true => Err(format!("{} ports, at most {MAX_PORTS} are possible", ports.len())),
        false => Ok(ports),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reduced(node: Value) -> Reduced {
        let node: WatchedNode = serde_json::from_value(node).unwrap();
        node.reduced(&"culvert.dev/edge".parse().unwrap())
    }

    fn node(metadata: Value, addresses: &[(&str, &str)]) -> Value {
        let address = |(kind, address): &(&str, &str)| json!({"type": kind, "address": address});
        let addresses: Vec<Value> = addresses.iter().map(address).collect();
        json!({
            "metadata": metadata,
            "spec": {"podCIDR": "10.244.1.0/24"},
            "status": {
                "addresses": addresses,
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "conditions": [{"type": "Ready", "lastHeartbeatTime": "2026-11-21T00:00:00Z"}],
                "images": [{"names": ["a"], "sizeBytes": 1}]
            }
        })
    }

    fn edge(reduced: &Reduced) -> &EdgeNode {
        match &reduced.node {
            Some((_, Record::Edge(edge))) => edge,
            other => panic!("{other:?} is no edge node"),
        }
    }

    #[test]
    fn an_edge_node_is_what_the_selector_says_with_its_internal_addresses_and_ports() {
        let metadata = json!({
            "name": "edge-1", "labels": {"culvert.dev/edge": ""},
            "annotations": {"culvert.dev/ports": "8080, 9256", "culvert.dev/zone": "plant.example"}
        });
        let addresses =
            [("InternalIP", "10.0.3.7"), ("InternalIP", "fd00::7"), ("Hostname", "edge-1"), ("ExternalIP", "1.2.3.4")];
        let reduced = reduced(node(metadata, &addresses));
        let edge = edge(&reduced);
        assert_eq!(edge.addresses, ["10.0.3.7".parse::<IpAddr>().unwrap(), "fd00::7".parse().unwrap()]);
        assert_eq!(edge.ports, BTreeSet::from([8080, 9256, 10250]));
        assert_eq!(edge.zone.as_ref().unwrap().to_string(), "plant.example");
        assert_eq!(reduced.problems, [""; 0]);
    }

    #[test]
    fn all_other_nodes_are_the_clouds() {
        let reduced = reduced(node(json!({"name": "master-1"}), &[("InternalIP", "10.0.0.1")]));
        let cloud = CloudNode { addresses: vec!["10.0.0.1".parse().unwrap()] };
        assert_eq!(reduced.node, Some(("master-1".parse().unwrap(), Record::Cloud(cloud))));
    }

    #[test]
    fn what_makes_no_sense_is_left_out_and_named() {
        let labels = json!({"culvert.dev/edge": "true"});
        let annotations = json!({"culvert.dev/ports": "80,http", "culvert.dev/zone": "no zone"});
        let metadata = json!({"name": "edge-1", "labels": labels, "annotations": annotations});
        let addresses = [("InternalIP", "ten"), ("InternalIP", "127.0.0.1"), ("InternalIP", "10.0.3.7")];
        let reduced = reduced(node(metadata, &addresses));
        assert_eq!((edge(&reduced).addresses.len(), edge(&reduced).ports.len(), &edge(&reduced).zone), (1, 1, &None));
        for (problem, said) in
            reduced.problems.iter().zip(["\"ten\" is no", "127.0.0.1 is a loopback", "\"http\"", "\"no zone\""])
        {
            assert!(problem.contains(said), "{problem}");
        }
        assert_eq!(reduced.problems.len(), 4);
        let many: Vec<String> = (0..20).map(|last| format!("10.0.3.{last}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|address| ("InternalIP", address.as_str())).collect();
        assert!(self::reduced(node(json!({"name": "m"}), &many)).problems[0].contains("more than 16"));
    }

    #[test]
    fn a_node_that_has_no_status_yet_is_a_node_without_addresses() {
        for value in
            [json!({"metadata": {"name": "m"}}), json!({"metadata": {"name": "m"}, "status": {"addresses": null}})]
        {
            assert_eq!(reduced(value).node, Some(("m".parse().unwrap(), Record::Cloud(CloudNode::default()))));
        }
        assert_eq!(reduced(json!({"metadata": {"name": "10.0.0.1"}})).node, None);
    }

    #[test]
    fn a_heartbeat_changes_nothing_of_the_record() {
        let before = node(json!({"name": "m", "resourceVersion": "1"}), &[("InternalIP", "10.0.0.1")]);
        let mut after = before.clone();
        after["metadata"]["resourceVersion"] = json!("2");
        after["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-11-21T00:05:00Z");
        assert_eq!(reduced(before), reduced(after));
    }
}
