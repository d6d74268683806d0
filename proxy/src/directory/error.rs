//! Errors of opening or changing the directory.

use std::net::IpAddr;
use std::path::PathBuf;

use culvert_api::NodeName;
use ipnet::IpNet;

use super::file::FileError;
use super::node::InvalidNode;
use super::vips::VipError;
use crate::state::StateError;

/// The reason why the directory cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirectoryError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Vip(#[from] VipError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Node(#[from] InvalidNode),
    #[error(
        "{address} of {node} is in the VIP range {range}, which is Culvert's own: choose another \
         with --vip4-range or --vip6-range"
    )]
    AddressInVipRange {
        node: NodeName,
        address: IpAddr,
        range: IpNet,
    },
    #[error("{node} is described in {}: change its addresses and ports there", file.display())]
    DescribedInFile { node: NodeName, file: PathBuf },
    #[error(
        "{node} is described by its Node in the cluster: change its addresses there, its ports by \
         its label node-restriction.kubernetes.io/culvert-ports or in ConfigMap culvert-ports"
    )]
    DescribedInCluster { node: NodeName },
    #[error(
        "the cluster has no edge node {node}: label its Node as --node-selector says, or see \
         `culvert-proxy node list`"
    )]
    NotInCluster { node: NodeName },
    #[error("there is no node {node}: see `culvert-proxy node list`")]
    UnknownNode { node: NodeName },
    #[error("the directory is full with {0} nodes: remove some with `culvert-proxy node remove`")]
    Full(usize),
    #[error("this proxy has its nodes from the one of --follow: change them there")]
    Follows,
    #[error("what the primary has makes no sense: {0}")]
    Copy(String),
    #[error("list the addresses of this host's interfaces")]
    Interfaces(#[source] std::io::Error),
}
