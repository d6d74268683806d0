//! The part of a Node that Culvert needs: a small record that is made while the Node is parsed.
//! Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use culvert_api::{NodeName, Zone, other_meaning};
use culvert_proxy_core::directory::NodeUid;
use culvert_proxy_core::directory::{CloudNode, EdgeNode, MAX_ADDRESSES, MAX_PORTS, never_a_nodes};
use culvert_proxy_core::selector::NodeSelector;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

use super::behind;
use super::excerpt::excerpt;

/// Label with further ports of the node that are steered, such as `8080.9256`. With the admission
/// plugin NodeRestriction, no kubelet can write labels with this prefix. A kubelet can write its
/// Node's annotations and most other labels.
const PORTS: &str = "node-restriction.kubernetes.io/culvert-ports";
/// Label with a zone for the node's name in addition to --dns-zone.
const ZONE: &str = "node-restriction.kubernetes.io/culvert-zone";
/// The same as annotations, with commas between ports. They count only with
/// --trust-node-annotations.
const PORTS_ANNOTATION: &str = "culvert.dev/ports";
const ZONE_ANNOTATION: &str = "culvert.dev/zone";
/// The ports of kubelets; the second one is KubeEdge's. A kubelet can claim any port, so only an
/// operator can add others.
const KUBELET_PORTS: [u16; 2] = [10250, 10350];
/// Protected addresses of a cloud node that have other types.
const MAX_OTHERS: usize = 64;
/// A node has one range of each family, and `podCIDR` repeats one of them.
const MAX_POD_RANGES: usize = 4;
/// Ranges of 4,096 addresses and of 256 networks. A larger range is not a node's own and would take
/// addresses from others.
const SHORTEST_POD_RANGES: (u8, u8) = (20, 56);

/// The parts of a Node that are parsed. The rest is larger, for example the list of images.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WatchedNode {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<Spec>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Spec {
    #[serde(default, rename = "podCIDR")]
    pod_range: Option<String>,
    #[serde(default, rename = "podCIDRs")]
    pod_ranges: Option<Vec<String>>,
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

/// Whether annotations of Nodes count. Their kubelets can write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Annotations {
    /// `--trust-node-annotations`.
    Trusted,
    Ignored,
}

/// A node in the form that the directory needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// The ranges of its pods.
    pub(super) pods: BTreeSet<IpNet>,
}

/// Whether it is an edge node or a cloud node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Edge(EdgeNode),
    Cloud(CloudNode),
}

/// The result for a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reduced {
    /// `None`: its name is invalid, so it is always left out.
    pub(super) node: Option<(NodeName, Record)>,
    /// The parts that were left out, with reasons, for the log.
    pub(super) problems: Vec<String>,
}

impl WatchedNode {
    /// Its name in the API server.
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Makes the record. Invalid parts are left out and reported.
    pub(super) fn reduced(&self, edges: &NodeSelector, annotations: Annotations) -> Reduced {
        let mut problems = Vec::new();
        let name = match self.name().parse::<NodeName>() {
            Ok(name) => name,
            Err(error) => {
                return Reduced {
                    node: None,
                    problems: vec![error.to_string()],
                };
            }
        };
        if let Some(meaning) = other_meaning(&name) {
            problems.push(format!(
                "its name {meaning}: clients reach it by its addresses"
            ));
        }
        let addresses = self.addresses(&mut problems);
        let pods = self.pods(&mut problems);
        let none = BTreeMap::new();
        let kind = if edges.selects(self.metadata.labels.as_ref().unwrap_or(&none)) {
            Kind::Edge(self.edge(addresses, annotations, &mut problems))
        } else {
            Kind::Cloud(CloudNode {
                others: self.others(&addresses),
                addresses,
            })
        };
        Reduced {
            node: Some((name, Record { kind, pods })),
            problems,
        }
    }

    fn edge(
        &self,
        addresses: Vec<IpAddr>,
        annotations: Annotations,
        problems: &mut Vec<String>,
    ) -> EdgeNode {
        EdgeNode {
            addresses,
            ports: self.ports(annotations, problems),
            zone: self.zone(annotations, problems),
            uid: self.uid(),
            behind: self.behind(annotations, problems),
        }
    }

    fn uid(&self) -> Option<NodeUid> {
        self.metadata.uid.as_deref()?.parse().ok()
    }

    fn status_addresses(&self) -> impl Iterator<Item = &Address> {
        let status = self.status.iter();
        status.flat_map(|status| status.addresses.iter().flatten())
    }

    fn kubelet_port(&self) -> Option<u16> {
        let endpoints = self.status.as_ref()?.daemon_endpoints.as_ref()?;
        port(endpoints.kubelet_endpoint.as_ref()?.port)
    }

    fn addresses(&self, problems: &mut Vec<String>) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for given in self.status_addresses() {
            if given.kind != "InternalIP" {
                continue;
            }
            match address(&given.address) {
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

    /// Addresses of other types. Those of a cloud node are protected too.
    fn others(&self, addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
        let mut others = BTreeSet::new();
        for given in self.status_addresses() {
            if let Ok(address) = address(&given.address)
                && !addresses.contains(&address)
                && others.len() < MAX_OTHERS
            {
                others.insert(address);
            }
        }
        others
    }

    /// The ranges that the controllers have set. Without them, those that the kubelet has set.
    fn pods(&self, problems: &mut Vec<String>) -> BTreeSet<IpNet> {
        let mut given = Vec::new();
        if let Some(spec) = &self.spec {
            given.extend(&spec.pod_range);
            given.extend(spec.pod_ranges.iter().flatten());
        }
        given.truncate(MAX_POD_RANGES);
        let mut ranges = BTreeSet::new();
        for text in given {
            match text.parse::<IpNet>() {
                Ok(range) if is_one_nodes(range) => drop(ranges.insert(range.trunc())),
                Ok(range) => problems.push(format!(
                    "{range} is too wide for one node's pods: name it by --pod-range"
                )),
                Err(_) => {
                    let text = excerpt(text);
                    problems.push(format!("{text:?} is not a range of a node's pods"));
                }
            }
        }
        ranges
    }

    fn ports(&self, annotations: Annotations, problems: &mut Vec<String>) -> BTreeSet<u16> {
        let mut ports = BTreeSet::new();
        match self.kubelet_port() {
            Some(port) if KUBELET_PORTS.contains(&port) => drop(ports.insert(port)),
            Some(port) => {
                problems.push(format!(
                    "the kubelet's port {port} is steered only if ConfigMap culvert-ports names it"
                ));
            }
            None => {}
        }
        let Some(given) = self.operators(PORTS, PORTS_ANNOTATION, annotations, problems) else {
            return ports;
        };
        match further_ports(given) {
            Ok(further) => ports.extend(further),
            Err(problem) => {
                problems.push(format!("{PORTS}: {problem}: write ports as in 8080.9256"))
            }
        }
        ports
    }

    fn zone(&self, annotations: Annotations, problems: &mut Vec<String>) -> Option<Zone> {
        match self
            .operators(ZONE, ZONE_ANNOTATION, annotations, problems)?
            .trim()
            .parse::<Zone>()
        {
            Ok(zone) => Some(zone),
            Err(error) => {
                problems.push(format!("{ZONE}: {}", excerpt(&error.to_string())));
                None
            }
        }
    }

    fn behind(&self, annotations: Annotations, problems: &mut Vec<String>) -> BTreeSet<SocketAddr> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for (label, value) in self.metadata.labels.iter().flatten() {
            if behind::is_label(label) {
                given.push((label, value));
            }
        }
        if given.is_empty()
            && let Some(value) =
                self.operators(behind::LABEL, behind::ANNOTATION, annotations, problems)
        {
            given.push((behind::ANNOTATION, value));
        }
        let (destinations, wrong) = behind::destinations(&given);
        problems.extend(wrong);
        destinations
    }

    /// The label, or the annotation if annotations count.
    fn operators(
        &self,
        label: &str,
        annotation: &str,
        annotations: Annotations,
        problems: &mut Vec<String>,
    ) -> Option<&str> {
        if let Some(labels) = &self.metadata.labels
            && let Some(value) = labels.get(label)
        {
            return Some(value);
        }
        let value = self.metadata.annotations.as_ref()?.get(annotation)?;
        match annotations {
            Annotations::Trusted => Some(value),
            Annotations::Ignored => {
                problems.push(format!(
                    "annotation {annotation} is not read, for a kubelet may write it: use the \
                     label {label}, or give --trust-node-annotations"
                ));
                None
            }
        }
    }
}

fn is_one_nodes(pods: IpNet) -> bool {
    let (v4, v6) = SHORTEST_POD_RANGES;
    pods.prefix_len() >= if pods.addr().is_ipv4() { v4 } else { v6 }
}

fn address(text: &str) -> Result<IpAddr, String> {
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(format!("{:?} is not an address", excerpt(text)));
    };
    match never_a_nodes(address.to_canonical()) {
        Some(what) => Err(format!("{address} is {what}, which no node has to itself")),
        None => Ok(address.to_canonical()),
    }
}

fn port(number: i32) -> Option<u16> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Some(port),
        _ => None,
    }
}

fn further_ports(text: &str) -> Result<BTreeSet<u16>, String> {
    let mut ports = BTreeSet::new();
    // A label's value has no commas.
    for part in text.split([',', '.', '_', '-']) {
        let part = part.trim();
        if part.is_empty() {
            continue;
        }
        match part.parse().ok().and_then(port) {
            Some(port) => ports.insert(port),
            None => return Err(format!("{:?} is not a port", excerpt(part))),
        };
    }
    if ports.len() > MAX_PORTS {
        Err(format!(
            "{} ports, at most {MAX_PORTS} are possible",
            ports.len()
        ))
    } else {
        Ok(ports)
    }
}

#[cfg(test)]
mod tests;
