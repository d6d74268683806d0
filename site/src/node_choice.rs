//! Which nodes are shown, and in which order. Pure.

use std::cmp::Reverse;

use serde::Deserialize;

use crate::node::Node;
use crate::verdict::{self, Verdict};

/// Which nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Any.
    #[default]
    All,
    /// Without a tunnel.
    Offline,
    /// Nodes with something that is wrong.
    Wrong,
}

/// In which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// The worst first.
    #[default]
    Worst,
    /// Alphabetically.
    Name,
    /// The longest round trip first.
    Far,
    /// The most streams first.
    Busy,
}

impl State {
    /// With the word of the address, and for people.
    pub const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::All, "all", "all states"),
        (Self::Offline, "offline", "offline"),
        (Self::Wrong, "wrong", "with a problem"),
    ];
}

impl Sort {
    /// With the word of the address, and for people.
    pub const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Worst, "worst", "worst first"),
        (Self::Name, "name", "by name"),
        (Self::Far, "far", "longest round trip"),
        (Self::Busy, "busy", "most streams"),
    ];
}

/// The nodes that are in a state and have a text in their names, addresses or proxies, in order.
pub fn choose<'a>(nodes: &'a [Node], find: &str, state: State, sort: Sort) -> Vec<&'a Node> {
    let mut chosen = Vec::new();
    for node in nodes {
        if is_in(node, state) && has(node, find.trim()) {
            chosen.push(node);
        }
    }
    // Nodes come by name, and stay so where nothing else differs.
    match sort {
        Sort::Worst => chosen.sort_by_key(|node| Reverse(verdict::of_node(node))),
        Sort::Name => {}
        Sort::Far => chosen.sort_by(|one, other| {
            let [one, other] = [one, other].map(|node| node.round_trip_ms.unwrap_or(-1.0));
            other.total_cmp(&one)
        }),
        Sort::Busy => chosen.sort_by_key(|node| Reverse(node.streams)),
    }
    chosen
}

fn is_in(node: &Node, state: State) -> bool {
    match state {
        State::All => true,
        State::Offline => !node.online,
        State::Wrong => verdict::of_node(node) != Verdict::Ok,
    }
}

fn has(node: &Node, find: &str) -> bool {
    node.node.contains(find)
        || node.proxies.iter().any(|proxy| proxy.contains(find))
        || node.addresses.iter().any(|own| own.address == find)
}
