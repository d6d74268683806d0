//! Reads the files of another tunnel, and says what each part of them is. Values that may be secrets
//! are dropped here, and no message repeats a line of a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::kubernetes::{Object, text};
use super::meaning::Problem;

/// An object of Kubernetes has at most that.
const MAX_BYTES: u64 = 1 << 20;

/// A part of the input, and where it was.
#[derive(Debug)]
pub(super) struct PlacedPiece {
    pub(super) place: String,
    pub(super) piece: Piece,
}

/// What a part of the input is.
#[derive(Debug)]
pub(super) enum Piece {
    Object(Object),
    /// A configuration of SuperEdge.
    Toml(toml::Table),
    /// The nodes that SuperEdge's token file names, without their tokens.
    TokenNodes(Vec<String>),
}

impl PlacedPiece {
    /// An object of the cluster.
    pub(super) fn object(object: Value) -> Self {
        let object = Object(object);
        Self {
            place: object.name(),
            piece: Piece::Object(object),
        }
    }
}

/// Reads one file. Its name says what it is, or else its content.
pub(super) fn read_file(path: &Path) -> Result<Vec<PlacedPiece>, Problem> {
    let place = path.display().to_string();
    let text = read_text(path).map_err(|problem| Problem::new(&place, problem))?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    pieces(place, extension, &text)
}

/// The parts of a file with this extension.
pub(super) fn pieces(
    place: String,
    extension: Option<&str>,
    text: &str,
) -> Result<Vec<PlacedPiece>, Problem> {
    match extension {
        Some("toml") => toml_piece(&place, text),
        Some("yaml" | "yml" | "json") => objects(&place, text),
        _ if text
            .lines()
            .any(|line| line.trim_start().starts_with("[mode")) =>
        {
            toml_piece(&place, text)
        }
        _ if text.contains("apiVersion") => objects(&place, text),
        _ => Ok(vec![PlacedPiece {
            piece: Piece::TokenNodes(token_nodes(&place, text)?),
            place,
        }]),
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = match File::open(path) {
        Ok(file) => file.take(MAX_BYTES + 1).read_to_end(&mut bytes),
        Err(error) => Err(error),
    };
    if let Err(error) = read {
        return Err(format!("{error}: give a file that can be read"));
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err("it has more than 1 MiB: give only the manifests of the tunnel".to_owned());
    }
    String::from_utf8(bytes)
        .map_err(|_| "it is not UTF-8 text: give manifests, TOML files or a token file".to_owned())
}

fn objects(place: &str, content: &str) -> Result<Vec<PlacedPiece>, Problem> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(content).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        Problem::new(
            place,
            format!("line {line} is not YAML: `kubectl apply --dry-run=client -f` says more"),
        )
    })?;
    let mut found = Vec::new();
    for document in documents {
        let items = items(document);
        for item in items {
            if item.is_null() {
                continue;
            }
            if text(item.get("kind")).is_empty() {
                return Err(Problem::new(
                    place,
                    "a document of it has no `kind`: give manifests, with apiVersion, kind and metadata",
                ));
            }
            let object = Object(item);
            found.push(PlacedPiece {
                place: format!("{place}: {}", object.name()),
                piece: Piece::Object(object),
            });
        }
    }
    Ok(found)
}

/// The items of a list, or the document itself.
fn items(mut document: Value) -> Vec<Value> {
    if !text(document.get("kind")).ends_with("List") {
        return vec![document];
    }
    match document.get_mut("items") {
        Some(Value::Array(items)) => std::mem::take(items),
        _ => Vec::new(),
    }
}

fn toml_piece(place: &str, content: &str) -> Result<Vec<PlacedPiece>, Problem> {
    Ok(vec![PlacedPiece {
        place: place.to_owned(),
        piece: Piece::Toml(parse_toml(place, content)?),
    }])
}

/// A configuration of SuperEdge. The message of the parser has only the kind of the mistake.
pub(super) fn parse_toml(place: &str, content: &str) -> Result<toml::Table, Problem> {
    toml::from_str(content).map_err(|error| {
        let end = error.span().map_or(0, |span| span.start.min(content.len()));
        let line = content.as_bytes()[..end]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        Problem::new(
            place,
            format!("line {line} is not TOML: write `key = value`, texts in quotes"),
        )
    })
}

/// The nodes of a token file, whose lines are `NODE:TOKEN`.
pub(super) fn token_nodes(place: &str, content: &str) -> Result<Vec<String>, Problem> {
    let mut nodes = Vec::new();
    for (number, line) in content.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line is not repeated: it may be a token.
        let Some((node, _)) = line.split_once(':') else {
            return Err(Problem::new(
                place,
                format!(
                    "line {} is not NODE:TOKEN. A token file has one node in a line; manifests are \
                     named *.yaml, SuperEdge's settings *.toml",
                    number + 1
                ),
            ));
        };
        nodes.push(node.trim().to_owned());
    }
    Ok(nodes)
}
