//! Errors of opening or changing the directory.

use std::net::IpAddr;
use std::path::PathBuf;

use culvert_api::{NodeName, UnknownNode};
use ipnet::IpNet;

use super::file::FileError;
use super::node::InvalidNode;
use super::vips::VipError;
use crate::state::StateError;

/// The reason why the directory cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The state directory is not usable.
    #[error(transparent)]
    State(#[from] StateError),
    /// No VIP can be had, or the ranges are wrong.
    #[error(transparent)]
    Vip(#[from] VipError),
    /// The file of `--directory` is not usable.
    #[error(transparent)]
    File(#[from] FileError),
    /// A property of a node is not allowed.
    #[error(transparent)]
    Node(#[from] InvalidNode),
    /// An address of a node is in a range of VIPs.
    #[error(
        "{address} of {node} is in the VIP range {range}, which is Culvert's own: choose another \
         with --vip4-range or --vip6-range"
    )]
    AddressInVipRange {
        /// The node.
        node: NodeName,
        /// The address.
        address: IpAddr,
        /// The range.
        range: IpNet,
    },
    /// The node is the business of the file of `--directory`.
    #[error("{node} is described in {}: change its addresses and ports there", file.display())]
    DescribedInFile {
        /// The node.
        node: NodeName,
        /// The file.
        file: PathBuf,
    },
    /// The node is the business of the cluster.
    #[error(
        "{node} is described by its Node in the cluster: change its addresses there, its ports by \
         its label node-restriction.kubernetes.io/culvert-ports or in ConfigMap culvert-ports"
    )]
    DescribedInCluster {
        /// The node.
        node: NodeName,
    },
    /// The cluster has no such node.
    #[error(
        "the cluster has no edge node {node}: label its Node as --node-selector says, or see \
         `culvert nodes`"
    )]
    NotInCluster {
        /// The node.
        node: NodeName,
    },
    /// There is no such node.
    #[error(transparent)]
    UnknownNode(#[from] UnknownNode),
    /// There are as many nodes as there may be.
    #[error("the directory is full with {0} nodes: remove some with `culvert node remove`")]
    Full(usize),
    /// The nodes of this proxy are those of the primary.
    #[error("this proxy has its nodes from the one of --follow: change them there")]
    Follows,
    /// The copy of the primary's nodes contradicts itself.
    #[error("what the primary has makes no sense: {0}")]
    Copy(String),
    /// The addresses of this host are not known.
    #[error("list the addresses of this host's interfaces")]
    Interfaces(#[source] std::io::Error),
}
