//! What a reader asks the table of nodes for. It is part of the address, so that it stays when the
//! page is loaded again.

use serde::Deserialize;

use crate::node::Node;
use crate::node_choice::{Sort, State, choose};

/// Rows of one page.
pub(super) const ROWS: usize = 100;

/// The query of the first page.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PageQuery {
    /// A part of a node's name, address or proxy.
    pub(super) find: String,
    pub(super) state: State,
    pub(super) sort: Sort,
    /// From 1 on; 0 is the first too.
    pub(super) page: usize,
}

impl PageQuery {
    /// The nodes that are wanted, in the wanted order.
    pub(super) fn choose<'a>(&self, nodes: &'a [Node]) -> Vec<&'a Node> {
        choose(nodes, &self.find, self.state, self.sort)
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
        let state = word_of(&State::ALL, self.state);
        let sort = word_of(&Sort::ALL, self.sort);
        format!("?find={find}&state={state}&sort={sort}&page={page}#nodes")
    }
}

fn word_of<T: Copy + PartialEq>(all: &[(T, &'static str, &str)], wanted: T) -> &'static str {
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
