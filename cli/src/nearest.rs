//! Which host reaches a node.

use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use culvert_site::answered::{Answered, all_ok};
use culvert_site::cloud_host::CloudHost;
use culvert_site::node::{is_named, listed_name};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use crate::control::Control;
use crate::hosts::{Host, NoAnswer};
use crate::session::Session;

/// The host to connect by: the first to answer that has a tunnel of the node, or else the first to
/// answer, because its proxy may reach another one.
///
/// # Errors
/// No host answers.
pub(crate) async fn nearest_host<'a>(session: &'a Session, node: &NodeName) -> Result<&'a Host> {
    let mut questions = FuturesUnordered::new();
    for host in &session.hosts.cloud {
        questions.push(async move {
            let asked = timeout(session.timeout, tunnels(host, node)).await;
            (host, asked)
        });
    }
    let mut answering = None;
    let mut reason = String::new();
    while let Some((host, asked)) = questions.next().await {
        match asked {
            Ok(Ok(0)) => answering = answering.or(Some(host)),
            Ok(Ok(_)) => return Ok(host),
            Ok(Err(unanswered)) => reason = format!("{}: {}", host.name(), unanswered.text),
            Err(_) => reason = format!("{}: no answer in time", host.name()),
        }
    }
    match answering {
        Some(host) => Ok(host),
        None if reason.is_empty() => bail!("this host has no proxy: give --ssh HOST or --context"),
        None => bail!("no host has answered: {reason}"),
    }
}

/// The node's own name, if a zone follows it in `node`. A name that no proxy knows stays.
pub(crate) async fn own_name(session: &Session, node: NodeName) -> NodeName {
    let answers = session.ask(Duration::ZERO, node_list).await;
    listed_name(all_ok(&answers), &node).unwrap_or(node)
}

/// How many tunnels of the node end there.
async fn tunnels(host: &Host, node: &NodeName) -> Result<u32, NoAnswer> {
    let nodes = node_list(host).await?;
    let found = nodes.iter().find(|status| is_named(status, node));
    Ok(found.map_or(0, |status| status.tunnels))
}

/// The nodes that the proxy of a host knows.
pub(crate) async fn node_list(host: &Host) -> Result<Vec<proto::NodeStatus>, NoAnswer> {
    let mut control = Control::connect(host).await?;
    Ok(control.list_nodes(proto::ListNodesRequest {}).await?.nodes)
}

/// A host whose proxy has answered that it has a tunnel of the node.
pub(crate) fn host_with_tunnel<'a>(
    session: &'a Session,
    hosts: &[Answered<CloudHost>],
    node: &str,
) -> Option<&'a Host> {
    for (host, answered) in session.hosts.cloud.iter().zip(hosts) {
        if let Some(answer) = answered.ok()
            && answer.tunnels.iter().any(|tunnel| tunnel.node == node)
        {
            return Some(host);
        }
    }
    None
}
