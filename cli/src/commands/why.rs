//! `culvert why`: what happens to a connection from every cloud host, hop by hop: the kernel of that
//! host, its proxy, the tunnel, the agent, and the backend, which the agent dials.

use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::proto::control as proto;
use culvert_api::{Host, Query};
use culvert_site::answered::all_ok;
use culvert_site::host_path::{Hop, HostPath};
use culvert_site::node::all_names;
use culvert_site::verdict::Verdict;
use serde::Serialize;

use crate::hops;
use crate::nearest::node_list;
use crate::screen::{Screen, clean};
use crate::session::Session;
use crate::table::wrapped;
use crate::unknown_node::unknown_node;

/// What a proxy adds that is no part of the way: it has no mark.
const ADDED: [&str; 6] = ["node", "dns", "ended", "agents", "streams", "unused"];
/// Columns before the text of a hop, after its mark.
const HOP_WIDTH: usize = 11;

/// The answer.
#[derive(Debug, Serialize)]
struct Explanation {
    destination: String,
    /// Whether a connection comes through from every host that was asked; with a port: whether it
    /// did.
    reachable: bool,
    from: Vec<HostPath>,
}

/// Asks all hosts.
///
/// # Errors
/// From one of them a connection does not come through.
pub(super) async fn run(session: &Session, destination: &Query) -> Result<()> {
    let request = proto::ExplainRequest {
        destination: match destination.port {
            Some(_) => destination.to_string(),
            None => destination.host.to_string(),
        },
        dial: destination.port.is_some(),
    };
    let mut from = hops::ask_all(session, &request).await;
    let unknown = unknown_name(session, destination, &mut from).await;
    let why = Explanation {
        destination: request.destination,
        reachable: from.iter().all(|from| from.reachable),
        from,
    };
    session.print(&why, text)?;
    if let Some(unknown) = unknown {
        bail!(unknown);
    }
    if !why.reachable {
        let reached = why.from.iter().filter(|from| from.reachable).count();
        bail!(
            "{} is reached from {reached} of {} hosts",
            why.destination,
            why.from.len()
        );
    }
    Ok(())
}

/// What to say if no proxy that answers knows the node. It is the fix from each of these hosts too.
async fn unknown_name(
    session: &Session,
    destination: &Query,
    from: &mut [HostPath],
) -> Option<String> {
    let Host::Name(name) = &destination.host else {
        return None;
    };
    if !from.iter().any(|path| path.no_node) {
        return None;
    }
    let answers = session.ask(Duration::ZERO, node_list).await;
    let known = all_names(all_ok(&answers));
    if known.contains(name.as_str()) {
        return None;
    }
    let unknown = unknown_node(name, known);
    for path in from.iter_mut().filter(|path| path.no_node) {
        path.fixes = vec![unknown.advice()];
    }
    Some(unknown.to_string())
}

fn text(why: &Explanation, screen: &Screen) -> String {
    let mut text = format!("{}\n", clean(&why.destination));
    for from in &why.from {
        text += &format!("from {}\n", clean(&from.host));
        for hop in &from.hops {
            let mark = mark(screen, hop);
            text += &format!("  {mark}  {}", named(screen, &hop.hop, &hop.text));
        }
        for fix in &from.fixes {
            text += &format!("  {}  {}", screen.no_mark(), named(screen, "fix", fix));
        }
    }
    text
}

fn mark(screen: &Screen, hop: &Hop) -> String {
    match (hop.ok, ADDED.contains(&hop.hop.as_str())) {
        (true, true) => screen.no_mark(),
        (true, false) => screen.mark(Verdict::Ok),
        (false, _) => screen.mark(Verdict::Failure),
    }
}

fn named(screen: &Screen, name: &str, text: &str) -> String {
    let column = 2 + screen.mark_width() + 2 + HOP_WIDTH;
    let indent = format!("\n{}", " ".repeat(column));
    let lines = wrapped(&clean(text), screen, column).join(&indent);
    format!("{:<HOP_WIDTH$}{lines}\n", clean(name))
}
