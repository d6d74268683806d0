//! What a reader asks the table of nodes for. It is part of the address, so that it stays when the
//! page is loaded again.

use serde::Deserialize;

use crate::node::Node;
use crate::verdict::{self, Verdict};

/// Rows of one page.
pub(super) const ROWS: usize = 100;

/// The query of the first page.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PageQuery {
    /// A part of a node's name, address or proxy.
    pub(super) find: String,
    pub(super) state: State,
    pub(super) sort: Sort,
    /// From 1 on; 0 is the first too.
    pub(super) page: usize,
}

/// Which nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    #[default]
    All,
    Offline,
    /// Those with something that is wrong.
    Wrong,
}

/// In which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sort {
    /// The worst first.
    #[default]
    Worst,
    Name,
    Far,
    Busy,
}

impl State {
    pub(super) const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::All, "all", "all states"),
        (Self::Offline, "offline", "offline"),
        (Self::Wrong, "wrong", "with a problem"),
    ];
}

impl Sort {
    pub(super) const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Worst, "worst", "worst first"),
        (Self::Name, "name", "by name"),
        (Self::Far, "far", "longest round trip"),
        (Self::Busy, "busy", "most streams"),
    ];
}

impl PageQuery {
    /// The nodes that are wanted, in the wanted order.
    pub(super) fn choose<'a>(&self, nodes: &'a [Node]) -> Vec<&'a Node> {
        let mut chosen = Vec::new();
        for node in nodes {
            if self.has(node) {
                chosen.push(node);
            }
        }
        // Nodes come by name, and stay so where nothing else differs.
        match self.sort {
            Sort::Worst => chosen.sort_by_key(|node| std::cmp::Reverse(verdict::of_node(node))),
            Sort::Name => {}
            Sort::Far => chosen.sort_by(|one, other| {
                let [one, other] = [one, other].map(|node| node.round_trip_ms.unwrap_or(-1.0));
                other.total_cmp(&one)
            }),
            Sort::Busy => chosen.sort_by_key(|node| std::cmp::Reverse(node.streams)),
        }
        chosen
    }

    fn has(&self, node: &Node) -> bool {
        let is_in_state = match self.state {
            State::All => true,
            State::Offline => !node.online,
            State::Wrong => verdict::of_node(node) != Verdict::Ok,
        };
        let find = self.find.trim();
        is_in_state
            && (node.node.contains(find)
                || node.proxies.iter().any(|proxy| proxy.contains(find))
                || node.addresses.iter().any(|own| own.address == find))
    }

    /// Which rows of so many are shown.
    pub(super) fn range(&self, rows: usize) -> std::ops::Range<usize> {
        let pages = rows.div_ceil(ROWS).max(1);
        let index = self.page.clamp(1, pages) - 1;
        let begin = (index * ROWS).min(rows);
        begin..(begin + ROWS).min(rows)
    }

    /// The same query of another page.
    pub(super) fn address(&self, page: usize) -> String {
        let find = super::format::path_segment(self.find.trim());
        let state = word(&State::ALL, self.state);
        let sort = word(&Sort::ALL, self.sort);
        format!("?find={find}&state={state}&sort={sort}&page={page}#nodes")
    }
}

fn word<T: Copy + PartialEq>(all: &[(T, &'static str, &str)], wanted: T) -> &'static str {
    for (value, word, _) in all {
        if *value == wanted {
            return word;
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::site;

    #[test]
    fn the_worst_come_first_and_a_filter_takes_the_others_away() {
        let site = site(30);
        let mut query = PageQuery::default();
        let all = query.choose(&site.nodes);
        assert_eq!(all.len(), site.nodes.len());
        assert!(!all[0].online);
        query.state = State::Offline;
        let offline = query.choose(&site.nodes);
        assert!(!offline.is_empty() && offline.iter().all(|node| !node.online));
        query.state = State::All;
        query.find = format!(" {} ", site.nodes[4].node);
        assert_eq!(query.choose(&site.nodes)[0].node, site.nodes[4].node);
    }

    #[test]
    fn a_page_that_does_not_exist_is_the_last_one() {
        let query = |page| PageQuery {
            page,
            ..PageQuery::default()
        };
        assert_eq!(query(0).range(250), 0..100);
        assert_eq!(query(2).range(250), 100..200);
        assert_eq!(query(usize::MAX).range(250), 200..250);
        assert_eq!(query(3).range(0), 0..0);
    }
}
