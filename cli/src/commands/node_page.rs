//! `culvert node`: all that the proxies know of one node, and what its agent and its hub say, asked
//! through its tunnel.

use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::NodeName;
use culvert_api::ports::AGENT_ADMIN_PORT;
use culvert_site::answered::{Answered, all_ok};
use culvert_site::cloud_host::{CloudHost, Ready};
use culvert_site::node::{Node, NodeAddress, all_names, listed_name, nodes};
use culvert_site::stream::Stream;
use culvert_site::tunnel_at::TunnelAt;
use culvert_site::units::{milliseconds, span};
use culvert_site::verdict::{self, Verdict};
use serde::Serialize;
use serde_json::Value;

use super::nodes::or_dash;
use super::{Unheard, report_unanswered, unheard};
use crate::cloud_host::{ask_cloud_host, ask_ready};
use crate::hosts::{Host, NoAnswer};
use crate::nearest::host_with_tunnel;
use crate::pages::Pages;
use crate::screen::{Screen, clean};
use crate::session::Session;
use crate::table::{Table, wrapped};
use crate::unknown_node::unknown_node;

/// The hub's admin port. Its pages are reached where the agent may dial it.
const HUB_ADMIN_PORT: u16 = 7439;
/// Connections in the text that have moved.
const MOVED_MAX: usize = 4;
/// Columns before what is said.
const NAME_WIDTH: usize = 11;

/// The answer.
#[derive(Debug, Serialize)]
struct NodePage {
    #[serde(flatten)]
    node: Node,
    tunnels_at: Vec<TunnelAt>,
    /// Its connections that have moved to another tunnel.
    moved: Vec<Stream>,
    agent: AgentSays,
    /// The hub's own status; absent without a hub that the agent may dial.
    hub: Option<Value>,
    unanswered: Vec<Unheard>,
}

/// What an agent says of itself.
#[derive(Debug, Default, Serialize)]
struct AgentSays {
    /// Absent: it was not reached.
    ready: Option<bool>,
    /// What it lacks or adds, or why it was not reached.
    remarks: Vec<String>,
}

/// Prints what is known of the node.
///
/// # Errors
/// No proxy knows it, or no host has answered.
pub(super) async fn run(session: &Session, name: &NodeName) -> Result<()> {
    let answers = session.ask(Duration::ZERO, ask_cloud_host).await;
    report_unanswered(&answers)?;
    let hosts = all_ok(&answers);
    let lists: Vec<_> = hosts.iter().map(|host| &host.nodes).collect();
    let own_name = listed_name(lists.iter().copied(), name);
    let name = own_name.as_ref().unwrap_or(name);
    let known = nodes(hosts);
    let Some(node) = known.into_iter().find(|node| node.node == name.as_str()) else {
        bail!(unknown_node(name.as_str(), all_names(lists)));
    };
    let (agent, hub) = match host_with_tunnel(session, &answers, name.as_str()) {
        Some(host) => edge_programs(session, host, name).await,
        None => (AgentSays::default(), None),
    };
    let page = NodePage {
        tunnels_at: tunnels(&answers, name),
        moved: moved(&answers, name),
        node,
        agent,
        hub,
        unanswered: unheard(&answers),
    };
    session.print(&page, text)
}

async fn edge_programs(
    session: &Session,
    host: &Host,
    name: &NodeName,
) -> (AgentSays, Option<Value>) {
    let (agent, hub) = tokio::join!(
        tokio::time::timeout(session.timeout, ask_agent(host, name)),
        tokio::time::timeout(session.timeout, ask_hub(host, name))
    );
    let agent = match agent {
        Ok(Ok(ready)) => AgentSays {
            ready: Some(ready.missing.is_empty()),
            remarks: [ready.missing, ready.remarks].concat(),
        },
        Ok(Err(unanswered)) => AgentSays {
            ready: None,
            remarks: vec![unanswered.text],
        },
        Err(_) => AgentSays {
            ready: None,
            remarks: vec!["no answer in time".to_owned()],
        },
    };
    let hub = match hub {
        Ok(Ok(status)) => Some(status),
        Ok(Err(_)) | Err(_) => None,
    };
    (agent, hub)
}

async fn ask_agent(host: &Host, name: &NodeName) -> Result<Ready, NoAnswer> {
    let mut pages = Pages::connect_node(host, name, AGENT_ADMIN_PORT).await?;
    ask_ready(&mut pages).await
}

async fn ask_hub(host: &Host, name: &NodeName) -> Result<Value, NoAnswer> {
    let mut pages = Pages::connect_node(host, name, HUB_ADMIN_PORT).await?;
    pages.json("/debug/status").await
}

fn tunnels(answers: &[Answered<CloudHost>], name: &NodeName) -> Vec<TunnelAt> {
    let mut tunnels = Vec::new();
    for host in all_ok(answers) {
        for tunnel in &host.tunnels {
            if tunnel.node == name.as_str() {
                tunnels.push(TunnelAt::of(host.name(), tunnel));
            }
        }
    }
    tunnels
}

fn moved(answers: &[Answered<CloudHost>], name: &NodeName) -> Vec<Stream> {
    let mut moved = Vec::new();
    for host in all_ok(answers) {
        for status in &host.streams {
            if status.node == name.as_str() && status.moves > 0 {
                moved.push(Stream::of(host.name(), status));
            }
        }
    }
    moved
}

fn text(page: &NodePage, screen: &Screen) -> String {
    let node = &page.node;
    let mark = screen.mark(verdict::of_node(node));
    let state = if node.online { "online" } else { "offline" };
    let mut text = format!("{mark}  {}: {state}\n", clean(&node.node));
    for (name, fact) in facts(page) {
        let lines = wrapped(&clean(&fact), screen, NAME_WIDTH);
        let indent = format!("\n{}", " ".repeat(NAME_WIDTH));
        text += &format!("{name:<NAME_WIDTH$}{}\n", lines.join(&indent));
    }
    if !page.tunnels_at.is_empty() {
        text.push('\n');
        text += &tunnel_table(&page.tunnels_at).text(screen);
    }
    text
}

/// What is said of the node, a line each.
fn facts(page: &NodePage) -> Vec<(&'static str, String)> {
    let node = &page.node;
    let mut facts = Vec::new();
    if !node.online {
        let fix = format!("`culvert why {}` says since when, and why", node.node);
        facts.push(("fix", fix));
    }
    for NodeAddress { address, problem } in &node.addresses {
        let colon = if problem.is_empty() { "" } else { ": " };
        facts.push(("address", format!("{address}{colon}{problem}")));
    }
    facts.push(("VIPs", format!("{}, {}", node.vip4, node.vip6)));
    facts.push(("ports", or_dash(listed(&node.ports))));
    if !node.forbidden_ports.is_empty() {
        let forbidden = listed(&node.forbidden_ports);
        facts.push((
            "forbidden",
            format!("{forbidden}: its agent would not dial them"),
        ));
    }
    if !node.misplaced.is_empty() {
        facts.push(("agents", node.misplaced.clone()));
        facts.push(("fix", node.fix.clone()));
    }
    facts.push(("agent", in_words(&page.agent)));
    if let Some(hub) = &page.hub {
        let link = hub["link"].as_str().unwrap_or("unknown");
        facts.push(("hub", format!("its link is {link}")));
    }
    for stream in page.moved.iter().take(MOVED_MAX) {
        let way = stream.way().unwrap_or_default();
        let text = format!("{} -> {}: {way}", stream.client, stream.destination);
        facts.push(("moved", text));
    }
    if let Some(more) = page.moved.len().checked_sub(MOVED_MAX + 1) {
        facts.push(("moved", format!("{} more: `culvert streams`", more + 1)));
    }
    facts
}

fn in_words(agent: &AgentSays) -> String {
    let state = match agent.ready {
        None => "was not reached",
        Some(true) => "is ready",
        Some(false) => "is not ready",
    };
    let colon = if agent.remarks.is_empty() { "" } else { ": " };
    format!("{state}{colon}{}", agent.remarks.join("; "))
}

fn listed(ports: &[u32]) -> String {
    let ports: Vec<String> = ports.iter().map(u32::to_string).collect();
    ports.join(", ")
}

fn tunnel_table(tunnels: &[TunnelAt]) -> Table {
    let mut table = Table::new(&[
        "PROXY",
        "TUNNEL",
        "RTT",
        "STREAMS",
        "UP",
        "VERSION",
        "AGENT FROM",
    ]);
    for tunnel in tunnels {
        let round_trip = tunnel.round_trip_ms.map(milliseconds);
        table.row(
            Verdict::Ok,
            [
                tunnel.proxy.clone(),
                tunnel.tunnel.to_string(),
                or_dash(round_trip.unwrap_or_default()),
                tunnel.streams.to_string(),
                span(tunnel.age_seconds),
                tunnel.version.clone(),
                tunnel.agent.clone(),
            ],
        );
    }
    table
}
