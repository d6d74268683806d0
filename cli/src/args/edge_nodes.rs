//! The commands that add and remove edge nodes.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use culvert_api::NodeName;
use culvert_daemon::parse_duration;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    pub(crate) command: Option<NodeCommand>,

    /// The node's name.
    #[arg(required = true)]
    pub(crate) node: Option<NodeName>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// Removes a node: its certificates and tokens are revoked and its tunnels closed at once.
    Remove {
        /// The node's name, as `culvert nodes` shows it.
        node: NodeName,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Lists the tokens.
    List,
    /// Adds or changes a node, or all nodes of a file, and prints the command with which its agent
    /// joins. It works once, until it expires.
    Create(TokenCreate),
    /// Makes a token useless.
    Revoke {
        /// The token's id, as `culvert token list` shows it.
        id: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TokenCreate {
    /// The node's name: lower-case letters, digits, `-` and `.`, as in edge-1.
    #[arg(required_unless_present = "nodes")]
    pub(crate) node: Option<NodeName>,

    /// Makes a token for every node of this file. Each line is a node's name, optionally followed by
    /// its addresses. The output has a line for each: the node, a tab, and its join command.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["node", "address"])]
    pub(crate) nodes: Option<PathBuf>,

    /// One token for all nodes of the file, and one command: each node may use it once. The machine
    /// that joins says which of them it is: with the token a machine can join as any node that has
    /// not joined yet.
    #[arg(long, requires = "nodes")]
    pub(crate) group: bool,

    /// An address that the node has in its own network; repeat it for more. Left out: those that the
    /// node has stay.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(crate) address: Vec<IpAddr>,

    /// A port on these addresses that is steered into the proxy; repeat it for more. Default: 7429,
    /// 9100, 10250 and 10255, or those that the node has.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    pub(crate) port: Vec<u16>,

    /// How long the token may be used, such as 30m or 2d; otherwise as the proxy's --token-lifetime
    /// says.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) lifetime: Option<Duration>,
}
