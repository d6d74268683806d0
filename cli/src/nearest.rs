//! By which host a node is reached.

use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use crate::answered::all_ok;
use crate::control::Control;
use crate::node::{is_named, listed_name};
use crate::places::{Host, NoAnswer};
use crate::session::Session;

/// The place to connect by: the first to answer that has a tunnel of the node, or else the first to
/// answer, because its proxy may reach another one.
///
/// # Errors
/// No host answers.
pub(crate) async fn nearest_place<'a>(session: &'a Session, node: &NodeName) -> Result<&'a Host> {
    let mut questions = FuturesUnordered::new();
    for place in &session.places.cloud {
        questions.push(async move {
            let asked = timeout(session.timeout, tunnels(place, node)).await;
            (place, asked)
        });
    }
    let mut answering = None;
    let mut reason = String::new();
    while let Some((place, asked)) = questions.next().await {
        match asked {
            Ok(Ok(0)) => answering = answering.or(Some(place)),
            Ok(Ok(_)) => return Ok(place),
            Ok(Err(unanswered)) => reason = format!("{}: {}", place.name(), unanswered.text),
            Err(_) => reason = format!("{}: no answer in time", place.name()),
        }
    }
    match answering {
        Some(place) => Ok(place),
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
async fn tunnels(place: &Host, node: &NodeName) -> Result<u32, NoAnswer> {
    let nodes = node_list(place).await?;
    let found = nodes.iter().find(|status| is_named(status, node));
    Ok(found.map_or(0, |status| status.tunnels))
}

async fn node_list(place: &Host) -> Result<Vec<proto::NodeStatus>, NoAnswer> {
    let mut control = Control::connect(place).await?;
    Ok(control.list_nodes(proto::ListNodesRequest {}).await?.nodes)
}
