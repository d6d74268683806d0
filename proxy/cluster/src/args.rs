//! The flags that make the proxy a part of a Kubernetes cluster.

use std::path::PathBuf;

use culvert_proxy_core::selector::NodeSelector;
use ipnet::IpNet;

use super::hosts::{HostsAddress, HostsPlace};
use super::name_service::OwnPorts;

/// Where nodes, ports, VIPs and trust come from in a Kubernetes cluster.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Kubernetes")]
pub struct KubernetesArgs {
    /// Take nodes, ports, VIPs and trust from the Kubernetes cluster that this proxy is a pod of.
    #[arg(long, env = "CULVERT_KUBERNETES")]
    pub kubernetes: bool,

    /// Reach the API server with this kubeconfig rather than with the pod's service account;
    /// implies --kubernetes.
    #[arg(long, env = "CULVERT_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Namespace of Culvert's own ConfigMaps and Secret. Default: the pod's own, or culvert-system.
    #[arg(long, env = "CULVERT_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Label selector of edge nodes; all others are cloud nodes. By the default one no kubelet
    /// makes its own node an edge node or a cloud node, where the API server has the admission
    /// plugin NodeRestriction. By labels that a kubelet may write it can: culvert.dev/edge,
    /// OpenYurt's openyurt.io/is-edge-worker=true, SuperEdge's superedge.io/edge-node=enable.
    #[arg(
        long,
        env = "CULVERT_NODE_SELECTOR",
        value_name = "SELECTOR",
        default_value = "node-restriction.kubernetes.io/culvert-edge"
    )]
    pub(crate) node_selector: String,

    /// Believe the annotations culvert.dev/ports, culvert.dev/zone and culvert.dev/behind of edge
    /// nodes, which their own kubelets may write: without it the labels
    /// node-restriction.kubernetes.io/culvert-ports (such as 8080.9256), culvert-zone and
    /// culvert-behind alone.
    #[arg(long, env = "CULVERT_TRUST_NODE_ANNOTATIONS")]
    pub trust_node_annotations: bool,

    /// Range of the cluster's Services, which no edge node's address is in. Repeat it for more,
    /// those of both IP versions. Default: those of the ServiceCIDRs and of kubeadm's ConfigMap.
    /// While it is known from nowhere, edge nodes are reached by name only, unless --edge-range is
    /// given.
    #[arg(
        long,
        env = "CULVERT_SERVICE_RANGE",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub service_range: Vec<IpNet>,

    /// Range of the cluster's pods, likewise. Default: those of cloud Nodes and of kubeadm's
    /// ConfigMap.
    #[arg(
        long,
        env = "CULVERT_POD_RANGE",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub pod_range: Vec<IpNet>,

    /// Keep this ConfigMap in the format of a hosts file, for a CoreDNS that reads it: edge nodes
    /// by VIP, cloud nodes by their own address. Its key is `tunnel-nodes` in YurtTunnel's
    /// yurt-tunnel-nodes, otherwise `hosts`, or given as NS/NAME/KEY.
    #[arg(long, env = "CULVERT_HOSTS_CONFIGMAP", value_name = "NS/NAME")]
    pub(crate) hosts_configmap: Option<HostsPlace>,

    /// The address of edge nodes in --hosts-configmap: `vip`, which a redirector steers, or
    /// `service`, the ClusterIP of --name-service, which works on hosts without a redirector.
    #[arg(
        long,
        env = "CULVERT_HOSTS_ADDRESS",
        value_name = "ADDRESS",
        default_value = "vip",
        requires = "hosts_configmap"
    )]
    pub hosts_address: HostsAddress,

    /// Service, in Culvert's namespace, by which pods anywhere reach edge nodes by name, as with
    /// --name-listen: the proxies keep an entry for each port of ConfigMap culvert-ports in it.
    #[arg(long, env = "CULVERT_NAME_SERVICE", value_name = "NAME")]
    pub name_service: Option<String>,

    /// The proxy's own ports that --name-service leads to, one for each entry.
    #[arg(
        long,
        env = "CULVERT_NAME_PORTS",
        value_name = "FIRST-LAST",
        default_value = "7450-7489",
        requires = "name_service"
    )]
    pub name_ports: OwnPorts,

    /// Service, in Culvert's namespace, by which agents reach the proxies: its load balancer's
    /// addresses, or else its node port on the nodes of ready proxies, are written into ConfigMap
    /// culvert-agent. --advertise goes before it.
    #[arg(long, env = "CULVERT_AGENT_SERVICE", value_name = "NAME")]
    pub(crate) agent_service: Option<String>,
}

impl KubernetesArgs {
    /// The labels of --node-selector that a kubelet may write of its own Node. What is no selector
    /// has none; it is refused elsewhere.
    pub fn labels_of_kubelets(&self) -> Vec<String> {
        match self.node_selector.parse::<NodeSelector>() {
            Ok(selector) => selector.labels_of_kubelets(),
            Err(_) => Vec::new(),
        }
    }

    /// Whether there is a cluster.
    pub fn is_in_cluster(&self) -> bool {
        self.kubernetes || self.kubeconfig.is_some()
    }
}
