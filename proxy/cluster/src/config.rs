//! The checked form of the flags that make the proxy a part of a cluster.

use std::path::PathBuf;

use culvert_proxy_core::selector::{InvalidSelector, NodeSelector};

use super::args::KubernetesArgs;
use super::hosts::{HostsAddress, HostsPlace};
use super::name_service::OwnPorts;

/// What the flags say of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterConfig {
    /// `None`: the proxy is a pod.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// `None`: the pod's own.
    pub(crate) namespace: Option<String>,
    /// Which Nodes are edge nodes.
    pub(crate) edges: NodeSelector,
    pub(crate) trust_node_annotations: bool,
    pub(crate) hosts_configmap: Option<HostsPlace>,
    pub(crate) hosts_address: HostsAddress,
    pub(crate) name_service: Option<String>,
    pub(crate) name_ports: OwnPorts,
    pub(crate) agent_service: Option<String>,
}

impl TryFrom<&KubernetesArgs> for ClusterConfig {
    type Error = InvalidSelector;

    fn try_from(args: &KubernetesArgs) -> Result<Self, InvalidSelector> {
        Ok(Self {
            kubeconfig: args.kubeconfig.clone(),
            namespace: args.namespace.clone(),
            edges: args.node_selector.parse()?,
            trust_node_annotations: args.trust_node_annotations,
            hosts_configmap: args.hosts_configmap.clone(),
            hosts_address: args.hosts_address,
            name_service: args.name_service.clone(),
            name_ports: args.name_ports,
            agent_service: args.agent_service.clone(),
        })
    }
}
