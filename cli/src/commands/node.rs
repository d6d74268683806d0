//! `culvert node`: a page about one node, or its end.

use anyhow::Result;
use culvert_api::NodeName;
use culvert_api::proto::control as proto;

use super::first_proxy::{first_proxy, into_error};
use super::node_page;
use crate::args::{NodeArgs, NodeCommand};
use crate::session::Session;

/// Prints what is known of a node, or removes it.
///
/// # Errors
/// No proxy knows it, no host has answered, or the proxy refuses.
pub(super) async fn run(session: &Session, arguments: &NodeArgs) -> Result<()> {
    if let Some(NodeCommand::Remove { node }) = &arguments.command {
        remove(session, node).await?;
    } else if let Some(node) = &arguments.node {
        node_page::run(session, node).await?;
    }
    Ok(())
}

async fn remove(session: &Session, node: &NodeName) -> Result<()> {
    let mut control = first_proxy(session).await?;
    let request = proto::RemoveNodeRequest {
        name: node.to_string(),
    };
    control.remove_node(request).await.map_err(into_error)?;
    println!("{node} is removed: its certificates and tokens are revoked and its tunnels closed");
    Ok(())
}
