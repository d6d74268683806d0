//! The addresses of proxies for agents: those of `--advertise`, or else the addresses of the
//! Service in `--agent-service`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use culvert_proxy_core::advertise::Advertised;
use k8s_openapi::api::core::v1::{Node, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::ListParams;

use super::super::Cluster;
use super::super::request::{RequestError, ask};

/// The time for which the address of a Node is remembered. Each proxy looks for changes every few
/// seconds, and Nodes hardly ever change theirs.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// The annotation of mirror pods. A kubelet makes such a pod in any namespace, with any labels and
/// any status, and the API server makes sure that a pod of a kubelet has this.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The addresses of the Nodes that proxies run on, by the Nodes' names, and when they were read.
/// `None`: the Node has none.
#[derive(Debug, Default)]
pub(super) struct NodeHosts(BTreeMap<String, (Instant, Option<String>)>);

/// The reason why the Service has no addresses.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressesError {
    #[error("--agent-service {service}: {what}")]
    Request {
        service: String,
        what: &'static str,
        source: RequestError,
    },
    #[error("--agent-service {0}: there is no such Service in Culvert's namespace")]
    NoService(String),
    #[error(
        "--agent-service {service}: the Service has no port for agents: one whose targetPort is \
         {port}"
    )]
    NoPort { service: String, port: u16 },
    #[error(
        "--agent-service {0}: the Service has neither an address of a load balancer nor a node \
         port: make it a LoadBalancer or a NodePort"
    )]
    Unreachable(String),
    #[error("--agent-service {0}: no proxy behind the Service is ready")]
    NoneReady(String),
}

/// The addresses of proxies, as `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proxies {
    /// This proxy's own addresses. Other proxies have others.
    Own(BTreeSet<String>),
    /// All addresses.
    All(BTreeSet<String>),
}

impl Proxies {
    pub(super) fn addresses(&self) -> &BTreeSet<String> {
        match self {
            Self::Own(addresses) | Self::All(addresses) => addresses,
        }
    }
}

impl Cluster {
    /// The addresses for agents.
    pub(super) async fn agents_dial(
        &self,
        advertised: &Advertised,
        hosts: &mut NodeHosts,
    ) -> Result<Proxies, AddressesError> {
        match &self.config.agent_service {
            Some(service) if advertised.given.is_empty() => self
                .service_addresses(service, advertised.agent_listen.port(), hosts)
                .await
                .map(Proxies::All),
            _ => Ok(Proxies::Own(
                advertised
                    .proxies()
                    .0
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            )),
        }
    }

    async fn service_addresses(
        &self,
        name: &str,
        agent_port: u16,
        hosts: &mut NodeHosts,
    ) -> Result<BTreeSet<String>, AddressesError> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = ask(services.get_opt(name)).await;
        let Some(service) = found.map_err(requested(name, "read the Service"))? else {
            return Err(AddressesError::NoService(name.to_owned()));
        };
        let Some(port) = agents_port(&service, agent_port) else {
            return Err(AddressesError::NoPort {
                service: name.to_owned(),
                port: agent_port,
            });
        };
        let balanced = load_balancer(&service, port);
        if !balanced.is_empty() {
            return Ok(balanced);
        }
        let Some(Ok(node_port)) = port.node_port.map(u16::try_from) else {
            return Err(AddressesError::Unreachable(name.to_owned()));
        };
        let nodes = self.nodes_of_ready_pods(name, &service).await?;
        self.look_up(name, &nodes, hosts).await?;
        let mut addresses = BTreeSet::new();
        for node in &nodes {
            if let Some(host) = hosts.host(node) {
                addresses.insert(host_port(host, node_port));
            }
        }
        if addresses.is_empty() {
            Err(AddressesError::NoneReady(name.to_owned()))
        } else {
            Ok(addresses)
        }
    }

    /// The names of the Nodes on which pods of the Service are ready.
    async fn nodes_of_ready_pods(
        &self,
        name: &str,
        service: &Service,
    ) -> Result<BTreeSet<String>, AddressesError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        // Whatever the API server has in memory is new enough.
        let of_service = ListParams::default().labels(&selector(service)).match_any();
        let pods = ask(pods.list(&of_service)).await;
        let pods = pods.map_err(requested(name, "list the Service's pods"))?;
        let mut nodes = BTreeSet::new();
        for pod in pods.items {
            if is_ready(&pod) && !is_mirror(&pod) {
                nodes.extend(pod.spec.and_then(|spec| spec.node_name));
            }
        }
        Ok(nodes)
    }

    /// Reads the addresses of those of the Nodes that are not remembered, and forgets others.
    async fn look_up(
        &self,
        name: &str,
        nodes: &BTreeSet<String>,
        hosts: &mut NodeHosts,
    ) -> Result<(), AddressesError> {
        let now = Instant::now();
        hosts.0.retain(|node, (read, host)| {
            let fresh = now.saturating_duration_since(*read) < REMEMBERED_FOR;
            nodes.contains(node) && host.is_some() && fresh
        });
        let api: Api<Node> = Api::all(self.client.clone());
        for node in nodes {
            if !hosts.0.contains_key(node) {
                let found = ask(api.get_opt(node)).await;
                let found = found.map_err(requested(name, "read a proxy's Node"))?;
                let host = found.as_ref().and_then(address_outside);
                hosts.0.insert(node.clone(), (now, host));
            }
        }
        Ok(())
    }
}

impl NodeHosts {
    fn host(&self, node: &str) -> Option<&str> {
        self.0.get(node)?.1.as_deref()
    }
}

/// The error of a request about `service`.
fn requested(
    service: &str,
    what: &'static str,
) -> impl FnOnce(RequestError) -> AddressesError + use<> {
    let service = service.to_owned();
    move |source| AddressesError::Request {
        service,
        what,
        source,
    }
}

/// The Service's port for agents: the one that leads to `agent_port`, or the only one.
fn agents_port(service: &Service, agent_port: u16) -> Option<&ServicePort> {
    let ports = service.spec.as_ref()?.ports.as_deref()?;
    for port in ports {
        let leads_there = match &port.target_port {
            Some(IntOrString::Int(target)) => *target == i32::from(agent_port),
            Some(IntOrString::String(_)) => false,
            None => port.port == i32::from(agent_port),
        };
        if leads_there {
            return Some(port);
        }
    }
    match ports {
        [only] => Some(only),
        _ => None,
    }
}

fn load_balancer(service: &Service, port: &ServicePort) -> BTreeSet<String> {
    let mut addresses = BTreeSet::new();
    let Ok(port) = u16::try_from(port.port) else {
        return addresses;
    };
    let Some(status) = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref())
    else {
        return addresses;
    };
    for ingress in status.ingress.iter().flatten() {
        if let Some(host) = ingress.ip.as_ref().or(ingress.hostname.as_ref()) {
            addresses.insert(host_port(host, port));
        }
    }
    addresses
}

fn selector(service: &Service) -> String {
    let mut labels = Vec::new();
    if let Some(spec) = &service.spec {
        for (name, value) in spec.selector.iter().flatten() {
            labels.push(format!("{name}={value}"));
        }
    }
    labels.join(",")
}

fn is_ready(pod: &Pod) -> bool {
    let Some(status) = &pod.status else {
        return false;
    };
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_mirror(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// The address at which a node is most likely reachable from outside.
fn address_outside(node: &Node) -> Option<String> {
    let addresses = node.status.as_ref()?.addresses.as_deref()?;
    for kind in ["ExternalIP", "InternalIP"] {
        for address in addresses {
            if address.type_ == kind {
                return Some(address.address.clone());
            }
        }
    }
    None
}

fn host_port(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    fn service(ports: serde_json::Value, ingress: serde_json::Value) -> Service {
        object(serde_json::json!({
            "metadata": {}, "spec": {"ports": ports, "selector": {"app": "culvert-proxy", "x": "y"}},
            "status": {"loadBalancer": {"ingress": ingress}},
        }))
    }

    #[test]
    fn a_load_balancer_is_dialled_by_address_or_name_on_the_services_port() {
        let ports =
            serde_json::json!([{"port": 9, "targetPort": 9}, {"port": 443, "targetPort": 7400}]);
        let ingress = serde_json::json!([{"ip": "192.0.2.1"}, {"hostname": "lb.example"}, {"ip": "2001:db8::1"}]);
        let service = service(ports, ingress);
        let found = load_balancer(&service, agents_port(&service, 7400).unwrap());
        assert_eq!(
            Vec::from_iter(found),
            ["192.0.2.1:443", "[2001:db8::1]:443", "lb.example:443"]
        );
    }

    #[test]
    fn the_port_that_leads_to_the_proxy_is_taken_or_the_only_one() {
        let none = serde_json::json!([]);
        let one = service(
            serde_json::json!([{"port": 443, "targetPort": "agents"}]),
            none.clone(),
        );
        assert_eq!(agents_port(&one, 7400).unwrap().port, 443);
        let two = serde_json::json!([{"port": 443, "targetPort": "agents"}, {"port": 80, "targetPort": "x"}]);
        assert!(agents_port(&service(two, none), 7400).is_none());
        assert_eq!(selector(&one), "app=culvert-proxy,x=y");
    }

    #[test]
    fn nodes_are_dialled_from_outside() {
        let node = |addresses| {
            object::<Node>(serde_json::json!({"metadata": {}, "status": {"addresses": addresses}}))
        };
        let internal = serde_json::json!({"type": "InternalIP", "address": "10.0.0.1"});
        let external = serde_json::json!({"type": "ExternalIP", "address": "192.0.2.1"});
        assert_eq!(
            address_outside(&node(serde_json::json!([internal, external]))).unwrap(),
            "192.0.2.1"
        );
        assert_eq!(
            address_outside(&node(serde_json::json!([internal]))).unwrap(),
            "10.0.0.1"
        );
        assert_eq!(address_outside(&node(serde_json::json!([]))), None);
    }
}
