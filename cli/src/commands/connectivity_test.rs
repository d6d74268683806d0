//! `culvert connectivity-test`: whether each node is reached from each cloud host. The node's agent
//! dials a port, by default that of its kubelet; nothing is sent.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_api::proto::control as proto;
use culvert_api::view::{USER_CALLS, USER_SESSIONS};
use culvert_daemon::counted;
use culvert_site::answered::all_ok;
use culvert_site::node::nodes;
use culvert_site::verdict::Verdict;
use futures_util::stream::{self, StreamExt};

use super::{junit, report_unanswered};
use crate::args::ConnectivityArgs;
use crate::cloud_host::ask_cloud_host;
use crate::connectivity::{Connectivity, NodeReach, Trial};
use crate::hops;
use crate::hosts::Host;
use crate::screen::Screen;
use crate::session::Session;
use crate::table::Table;
use crate::unknown_node::unknown_node;

/// Nodes that are dialled at once, from all hosts. Each takes two connections with every host, and has
/// up to two questions under way there.
const AT_ONCE: usize = 8;
/// The same where a proxy limits each user. The rest is for connections that end only just now, and for
/// others of this user.
const AT_ONCE_BY_VIEW: usize = USER_CALLS / 3;
const _: () = assert!(
    AT_ONCE_BY_VIEW > 0 && 4 * AT_ONCE_BY_VIEW <= USER_SESSIONS,
    "the limits of the view hold"
);

/// Tries all of them, and writes the file for JUnit.
///
/// # Errors
/// A node is not reached from a host, there is no such node, or no host has answered.
pub(super) async fn run(session: &Session, arguments: &ConnectivityArgs) -> Result<()> {
    let names = node_names(session, arguments).await?;
    let mut trials = stream::iter(names)
        .map(|name| reach(session, name, arguments.port))
        .buffered(at_once(session));
    let mut answer = Connectivity {
        port: arguments.port,
        tried: 0,
        failed: 0,
        nodes: Vec::new(),
    };
    while let Some(reach) = trials.next().await {
        answer.add(reach);
    }
    session.print(&answer, text)?;
    if let Some(file) = &arguments.junit {
        write(file, &junit::report(&answer))?;
    }
    match answer.failed {
        0 => Ok(()),
        failed => bail!(
            "{} of {} failed",
            failed,
            counted(answer.tried, "connection", "connections")
        ),
    }
}

/// How many nodes are dialled at once. All hosts have been asked before.
fn at_once(session: &Session) -> usize {
    if session.hosts.cloud.iter().any(Host::is_by_view) {
        AT_ONCE_BY_VIEW
    } else {
        AT_ONCE
    }
}

/// The nodes that are named, or else all.
async fn node_names(session: &Session, arguments: &ConnectivityArgs) -> Result<Vec<String>> {
    let answers = session.ask(Duration::ZERO, ask_cloud_host).await;
    report_unanswered(&answers)?;
    let mut known = Vec::new();
    for node in nodes(all_ok(&answers)) {
        known.push(node.node);
    }
    let mut wanted = Vec::new();
    for name in &arguments.nodes {
        ensure!(
            known.iter().any(|node| node == name.as_str()),
            unknown_node(name.as_str(), known.iter().map(String::as_str))
        );
        wanted.push(name.to_string());
    }
    if wanted.is_empty() {
        wanted = known;
    }
    ensure!(!wanted.is_empty(), "there is no edge node");
    Ok(wanted)
}

async fn reach(session: &Session, node: String, port: u16) -> NodeReach {
    let request = proto::ExplainRequest {
        destination: format!("{node}:{port}"),
        dial: true,
    };
    let mut from = Vec::new();
    for path in hops::ask_all(session, &request).await {
        from.push(Trial::of(path));
    }
    NodeReach { node, from }
}

fn text(answer: &Connectivity, screen: &Screen) -> String {
    let mut table = Table::new(&["NODE", "REACHED FROM", "NOT FROM"]);
    for NodeReach { node, from } in &answer.nodes {
        let mut failures = Vec::new();
        for trial in from {
            if !trial.reachable {
                failures.push(format!("{} ({})", trial.host, trial.broken));
            }
        }
        let verdict = match failures.len() {
            0 => Verdict::Ok,
            _ => Verdict::Failure,
        };
        let reached = format!("{} of {}", from.len() - failures.len(), from.len());
        table.row(verdict, [node.clone(), reached, failures.join("; ")]);
    }
    let hint = match answer.failed {
        0 => String::new(),
        _ => format!("`culvert why NODE:{}` says how to repair it\n", answer.port),
    };
    table.text(screen) + &hint
}

fn write(file: &Path, report: &str) -> Result<()> {
    std::fs::write(file, report).with_context(|| format!("write {}", file.display()))
}
