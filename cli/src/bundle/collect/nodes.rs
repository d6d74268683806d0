//! What there is of nodes: why they are offline, and the pages of their agents.

use culvert_api::NodeName;
use culvert_api::ports::AGENT_ADMIN_PORT;
use culvert_api::proto::control as proto;
use culvert_site::answered::Answered;
use culvert_site::cloud_host::CloudHost;
use culvert_site::node::Node;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use super::folder::{distinct_folders, folder};
use super::pages::ask_pages;
use super::{Item, json};
use crate::hops;
use crate::nearest::host_with_tunnel;
use crate::pages::Pages;
use crate::session::Session;

/// Offline nodes that are explained at once: each asks every host twice.
const NODES_AT_ONCE: usize = 4;
/// Offline nodes that are explained, and online ones whose agents are asked.
const MAX_NODES: usize = 20;

/// What all hosts say of the way to nodes without a tunnel.
pub(super) async fn explain_offline(session: &Session, known: &[Node]) -> Vec<Item> {
    let mut offline = Vec::new();
    for node in known.iter().filter(|node| !node.online).take(MAX_NODES) {
        offline.push(node.node.as_str());
    }
    let folders = distinct_folders(offline.iter().copied());
    let mut questions = Vec::new();
    for (node, folder) in offline.into_iter().zip(folders) {
        questions.push(explain(session, node, format!("why/{folder}.json")));
    }
    let answers = stream::iter(questions).buffered(NODES_AT_ONCE);
    answers.collect().await
}

async fn explain(session: &Session, node: &str, path: String) -> Item {
    let request = proto::ExplainRequest {
        destination: node.to_owned(),
        dial: false,
    };
    let ways = hops::ask_all(session, &request).await;
    let about = format!("culvert why {node}: it is offline");
    Item::new(path, &about, json(&ways))
}

/// Pages of agents, through tunnels.
pub(super) async fn agent_pages(
    session: &Session,
    hosts: &[Answered<CloudHost>],
    known: &[Node],
) -> Vec<Item> {
    let mut questions = Vec::new();
    for node in known.iter().filter(|node| node.online).take(MAX_NODES) {
        let Ok(name) = node.node.parse::<NodeName>() else {
            continue;
        };
        let Some(host) = host_with_tunnel(session, hosts, &node.node) else {
            continue;
        };
        questions.push(async move {
            let path = format!("nodes/{}/culvert-agent", folder(name.as_str()));
            let asked = Pages::connect_node(host, &name, AGENT_ADMIN_PORT);
            ask_pages(session.timeout, asked, &path).await
        });
    }
    join_all(questions).await.into_iter().flatten().collect()
}
