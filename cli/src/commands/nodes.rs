//! `culvert nodes`.

use std::time::Duration;

use anyhow::Result;
use culvert_site::answered::all_ok;
use culvert_site::node::{Node, nodes};
use culvert_site::units::milliseconds;
use culvert_site::verdict;
use serde::Serialize;

use super::{Unheard, report_unanswered, unheard};
use crate::args::NodesArgs;
use crate::cloud_host::ask_cloud_host;
use crate::screen::{Screen, clean};
use crate::session::Session;
use crate::table::Table;

/// The answer.
#[derive(Debug, Serialize)]
struct Nodes {
    nodes: Vec<Node>,
    unanswered: Vec<Unheard>,
}

/// Lists the nodes of all proxies.
///
/// # Errors
/// No host has answered.
pub(super) async fn run(session: &Session, arguments: &NodesArgs) -> Result<()> {
    let answers = session.ask(Duration::ZERO, ask_cloud_host).await;
    report_unanswered(&answers)?;
    for host in all_ok(&answers) {
        if !host.note.is_empty() {
            eprintln!("# note: {}: {}", clean(host.name()), clean(&host.note));
        }
    }
    let mut listed = nodes(all_ok(&answers));
    if arguments.offline {
        listed.retain(|node| !node.online);
    }
    let answer = Nodes {
        nodes: listed,
        unanswered: unheard(&answers),
    };
    session.print(&answer, text)
}

fn text(answer: &Nodes, screen: &Screen) -> String {
    let mut table = Table::new(&["NODE", "STATE", "TUNNELS", "RTT", "VERSION", "ADDRESSES"]);
    let mut notes = String::new();
    for node in &answer.nodes {
        table.row(verdict::of_node(node), cells(node));
        if !node.misplaced.is_empty() {
            notes += &clean(&format!("! {}: {}", node.node, node.misplaced));
            notes.push('\n');
        }
        for address in &node.addresses {
            let note = format!("* {}\n", clean(&address.problem));
            if !address.problem.is_empty() && !notes.contains(&note) {
                notes += &note;
            }
        }
    }
    table.text(screen) + &notes
}

fn cells(node: &Node) -> [String; 6] {
    let round_trip = node.round_trip_ms.map(milliseconds);
    let state = if node.online { "online" } else { "offline" };
    [
        node.node.clone(),
        state.to_owned(),
        node.tunnels.to_string(),
        round_trip.unwrap_or_default(),
        node.versions.join(","),
        addresses(node),
    ]
    .map(or_dash)
}

/// Its addresses, those with a star that do not lead to it, and where its tunnels end.
fn addresses(node: &Node) -> String {
    let mut addresses = Vec::new();
    for own in &node.addresses {
        let star = if own.problem.is_empty() { "" } else { "*" };
        addresses.push(format!("{}{star}", own.address));
    }
    let mut text = or_dash(addresses.join(", "));
    if !node.proxies.is_empty() {
        text += &format!(" by {}", node.proxies.join(", "));
    }
    text
}

/// A cell that is never empty.
pub(super) fn or_dash(text: String) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}
