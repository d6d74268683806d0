//! The file of `token create --nodes`: a node in each line, with its addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use culvert_api::NodeName;

/// A node of the file, and the addresses that it has in its own network.
pub(super) type Listed = (NodeName, Vec<IpAddr>);

/// Reads the whole file, so that a mistake in it is found before anything is done.
///
/// # Errors
///
/// It cannot be read, or a line of it is wrong.
pub(super) fn read(path: &Path) -> Result<Vec<Listed>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("--nodes {shown}"))?;
    parse(&text).with_context(|| format!("--nodes {shown}"))
}

/// Empty lines, and those that begin with `#`, say nothing.
fn parse(text: &str) -> Result<Vec<Listed>> {
    let mut listed = Vec::new();
    let mut names = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split_whitespace();
        let name = match words.next() {
            Some(name) if !name.starts_with('#') => name,
            _ => continue,
        };
        let name: NodeName = name.parse().with_context(|| format!("line {number}"))?;
        if !names.insert(name.clone()) {
            bail!("line {number}: {name} is there twice: write each node once");
        }
        let mut addresses = Vec::new();
        for word in words {
            addresses.push(word.parse().with_context(|| {
                format!("line {number}: {word:?} is not an IP address: write NODE [IP...]")
            })?);
        }
        listed.push((name, addresses));
    }
    ensure!(!listed.is_empty(), "it has no node: write one in each line");
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_node_with_its_addresses() {
        let listed = parse("# site a\nedge-1 10.0.3.7 fd00::7\n\n  edge-2\n").unwrap();
        let edge_1 = vec!["10.0.3.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        assert_eq!(
            listed,
            [
                ("edge-1".parse().unwrap(), edge_1),
                ("edge-2".parse().unwrap(), Vec::new())
            ]
        );
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, words) in [
            ("edge-1\nEdge 2", "line 2"),
            ("edge-1 10.0.3", "line 1: \"10.0.3\" is not an IP address"),
            ("edge-1\n\nedge-1", "line 3: edge-1 is there twice"),
            ("# none", "it has no node"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
