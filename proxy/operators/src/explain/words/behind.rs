//! The text for destinations behind nodes. Pure.

use std::net::{IpAddr, SocketAddr};

use culvert_api::Routing;
use culvert_proxy_core::directory::{BehindView, NodeView, ResolveError};

use super::Page;

/// Explains a destination that several nodes have behind them, or that the cloud uses.
pub(super) fn refused_behind(page: &mut Page, error: &ResolveError, routing: Routing) {
    page.line("directory", format!("refused: {error}"));
    let steering = match routing {
        Routing::Protected => "passes: the client dials it itself",
        Routing::Routed | Routing::Shared => "steered",
    };
    page.line("steering", steering);
    page.fix(
        "one node alone may have it behind it, and nothing else its address: labels \
         node-restriction.kubernetes.io/culvert-behind... of Nodes, or `behind` in the file of \
         --directory",
    );
}

/// Whether the address and port lead behind this node.
pub(super) fn leads(owner: &NodeView, address: IpAddr, port: Option<u16>) -> bool {
    let Some(port) = port else {
        return false;
    };
    let destination = SocketAddr::new(address, port);
    let mut behind = owner.behind.iter();
    behind.any(|view| view.destination == destination)
}

/// What is behind a node, after its own properties.
pub(super) fn listed(owner: &NodeView) -> String {
    if owner.behind.is_empty() {
        return String::new();
    }
    let destinations: Vec<String> = owner.behind.iter().map(destination_text).collect();
    format!("; behind it {}", destinations.join(", "))
}

fn destination_text(view: &BehindView) -> String {
    match view.routing {
        Routing::Routed => view.destination.to_string(),
        Routing::Shared => format!("{} (shared)", view.destination),
        Routing::Protected => format!("{} (protected)", view.destination),
    }
}
