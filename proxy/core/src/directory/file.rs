//! The static directory: one TOML file that the operator maintains, with a table for each node.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use culvert_api::{NodeName, other_meaning};
use serde::Deserialize;

use super::node::{InvalidNode, NodeSpec};
use crate::state::read_bounded;

/// The reason why the file's nodes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("read the directory file {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{}, line {line}, column {column}: {problem}: write each node as [nodes.edge-1] with \
         addresses = [\"10.0.3.7\"] and ports = [9100]",
        path.display()
    )]
    Parse {
        path: PathBuf,
        line: usize,
        column: usize,
        problem: String,
    },
    #[error("{} is empty: to have no nodes on purpose, write [nodes] into it", path.display())]
    Empty { path: PathBuf },
    #[error("{}, [nodes.{node}]", path.display())]
    Node {
        path: PathBuf,
        node: NodeName,
        source: InvalidNode,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Layout {
    #[serde(default)]
    nodes: BTreeMap<NodeName, NodeSpec>,
}

/// The text of the file.
pub(crate) fn read(path: &Path) -> Result<String, FileError> {
    read_bounded(path).map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The nodes in the text of the file at `path`.
pub(crate) fn parse(text: &str, path: &Path) -> Result<BTreeMap<NodeName, NodeSpec>, FileError> {
    // Many programs empty a file before they write it. An empty file would close all tunnels.
    if text.trim().is_empty() {
        return Err(FileError::Empty {
            path: path.to_owned(),
        });
    }
    let layout: Layout = toml::from_str(text).map_err(|error| {
        let (line, column) = position(text, error.span().map_or(0, |span| span.start));
        FileError::Parse {
            path: path.to_owned(),
            line,
            column,
            problem: error.message().trim().replace('\n', ", "),
        }
    })?;
    let mut nodes = BTreeMap::new();
    for (node, spec) in layout.nodes {
        match checked(&node, spec) {
            Ok(spec) => drop(nodes.insert(node, spec)),
            Err(source) => {
                return Err(FileError::Node {
                    path: path.to_owned(),
                    node,
                    source,
                });
            }
        }
    }
    Ok(nodes)
}

fn checked(node: &NodeName, spec: NodeSpec) -> Result<NodeSpec, InvalidNode> {
    match other_meaning(node) {
        Some(meaning) => Err(InvalidNode::Name { meaning }),
        None => spec.checked(),
    }
}

fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let error =
            anyhow::Error::new(parse(text, Path::new("/etc/culvert/nodes.toml")).unwrap_err());
        format!("{error:#}")
    }

    #[test]
    fn nodes_are_tables_with_addresses_and_ports() {
        let text = r#"
            [nodes.edge-1]
            addresses = ["10.0.3.7", "fd00::7"]
            ports = [9100]
            [nodes."press.hall-2"]
            addresses = ["10.0.3.8"]
            [nodes.edge-3]
        "#;
        let nodes = parse(text, Path::new("nodes.toml")).unwrap();
        let node = |name: &str| &nodes[&name.parse::<NodeName>().unwrap()];
        assert_eq!(node("edge-1").ports, [9100]);
        assert_eq!(node("press.hall-2").ports, culvert_api::ports::NODE_PORTS);
        assert!(node("edge-3").addresses.is_empty());
        assert!(
            parse("[nodes]", Path::new("nodes.toml"))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        let unknown = problem("[nodes.edge-1]\naddresses = []\nadresses = []\n");
        assert!(
            unknown.contains("/etc/culvert/nodes.toml, line 3") && unknown.contains("adresses"),
            "{unknown}"
        );
        let address = problem("[nodes.edge-1]\naddresses = [\"10.0.3\"]\n");
        assert!(address.contains("line 2, column 14"), "{address}");
        let name = problem("[nodes.Edge_1]\n");
        assert!(
            name.contains("Edge_1") && name.contains("lower-case"),
            "{name}"
        );
        let loopback = problem("[nodes.edge-1]\naddresses = [\"127.0.0.1\"]\n");
        assert!(
            loopback.contains("[nodes.edge-1]: 127.0.0.1 is a loopback address"),
            "{loopback}"
        );
        let localhost = problem("[nodes.localhost]\n");
        assert!(localhost.contains("asking host itself"), "{localhost}");
        assert!(problem("[nodes.a]\n[nodes.a]\n").contains("line 2"));
        assert!(problem(" \n").contains("is empty"));
    }
}
