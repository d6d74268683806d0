//! The text of a hosts file in which some lines are ours. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use culvert_api::NodeName;

/// The end of each of our lines. Resolvers ignore text after `#`.
const MARK: &str = "# culvert";

/// The updated hosts file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) text: String,
    /// Nodes that did not fit.
    pub(super) left_out: usize,
}

/// Updates `before`: each of `nodes` gets a line, all other lines that Culvert wrote are removed, and the text
/// has at most `room` bytes. Other lines stay, except those that name only such nodes: an earlier
/// tunnel made them, and half of all connections would take them.
pub(super) fn merged(before: &str, nodes: &BTreeMap<NodeName, IpAddr>, room: usize) -> Merged {
    let mut text = String::new();
    for line in before.lines() {
        if is_foreign(line, nodes) {
            text.push_str(line);
            text.push('\n');
        }
    }
    let mut left_out = 0;
    for (name, address) in nodes {
        let line = format!("{address}\t{name} {MARK}\n");
        if text.len() + line.len() <= room {
            text.push_str(&line)
        } else {
            left_out += 1
        }
    }
    Merged { text, left_out }
}

fn is_foreign(line: &str, nodes: &BTreeMap<NodeName, IpAddr>) -> bool {
    if line.trim_end().ends_with(MARK) {
        return false;
    }
    let entry = line.split('#').next().unwrap_or_default();
    let mut names = entry.split_whitespace().skip(1).peekable();
    names.peek().is_none() || !names.all(|name| is_one_of(nodes, name))
}

fn is_one_of(nodes: &BTreeMap<NodeName, IpAddr>, name: &str) -> bool {
    match name.parse::<NodeName>() {
        Ok(name) => nodes.contains_key(&name),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(nodes: &[(&str, &str)]) -> BTreeMap<NodeName, IpAddr> {
        nodes
            .iter()
            .map(|(name, address)| (name.parse().unwrap(), address.parse().unwrap()))
            .collect()
    }

    fn text(before: &str, entries: &[(&str, &str)]) -> String {
        merged(before, &nodes(entries), 1 << 20).text
    }

    #[test]
    fn a_node_has_one_line_that_goes_with_it() {
        let both = text("", &[("edge-2", "198.18.0.2"), ("edge-1", "198.18.0.1")]);
        assert_eq!(
            both,
            "198.18.0.1\tedge-1 # culvert\n198.18.0.2\tedge-2 # culvert\n"
        );
        let moved = text(&both, &[("edge-2", "198.18.0.9")]);
        assert_eq!(moved, "198.18.0.9\tedge-2 # culvert\n");
        assert_eq!(
            text(&moved, &[("edge-2", "198.18.0.9")]),
            moved,
            "nothing to write"
        );
        assert_eq!(text(&moved, &[]), "");
    }

    #[test]
    fn lines_of_others_stay_as_they_are() {
        let foreign =
            "# by hand\n\n10.0.0.9   registry  edge-1 # not ours\n::1\tlocalhost\nnonsense\n";
        let with_ours = text(foreign, &[("edge-1", "198.18.0.1")]);
        assert_eq!(
            with_ours,
            format!("{foreign}198.18.0.1\tedge-1 # culvert\n")
        );
        assert_eq!(text(&with_ours, &[]), foreign);
    }

    #[test]
    fn what_an_earlier_tunnel_said_of_a_node_is_replaced() {
        let yurt_tunnel = "10.97.3.4\tedge-1\n10.97.3.4\tedge-9\n192.0.2.1\tmaster";
        let ours = text(
            yurt_tunnel,
            &[("edge-1", "198.18.0.1"), ("master", "192.0.2.1")],
        );
        assert_eq!(
            ours,
            "10.97.3.4\tedge-9\n198.18.0.1\tedge-1 # culvert\n192.0.2.1\tmaster # culvert\n"
        );
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_counted() {
        let nodes = nodes(&[("edge-1", "198.18.0.1"), ("edge-2", "198.18.0.2")]);
        let one = merged("10.0.0.9 registry\n", &nodes, 50);
        assert_eq!(
            one.text,
            "10.0.0.9 registry\n198.18.0.1\tedge-1 # culvert\n"
        );
        assert_eq!(one.left_out, 1);
        assert_eq!(
            merged(&one.text, &nodes, 50),
            one,
            "and does not change from one time to the next"
        );
    }
}
