//! The flags of forwarded ports.

use culvert_proxy_core::forward::Forward;
use ipnet::IpNet;

/// The TCP map, and who may use it.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Listeners")]
pub struct ForwardArgs {
    /// A port of this host that leads to one port of one node, such as 2222=edge-1:22; repeat it for
    /// more. In place of the node, a label selector stands for some connected node of those that it
    /// selects, such as node-restriction.kubernetes.io/site=berlin. In a cluster, ConfigMap
    /// culvert-forwards has more.
    #[arg(
        long,
        env = "CULVERT_FORWARD",
        value_name = "[IP:]PORT=NODE:PORT",
        value_delimiter = ';'
    )]
    pub forward: Vec<Forward>,

    /// Who may connect to forwarded ports; others are reset. Repeat it for more. Default: as
    /// --name-client.
    #[arg(
        long,
        env = "CULVERT_FORWARD_CLIENT",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub forward_client: Vec<IpNet>,
}
