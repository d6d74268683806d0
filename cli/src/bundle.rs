//! One archive with all that helps to find out later what was wrong: collected from every host at
//! once, cleaned of what looks like a secret, and on request without names and addresses. What cannot
//! be had is a line of its index, with the reason.

mod anonymous;
mod archive;
mod collect;
mod found_names;
mod index;
mod secrets;

use std::path::PathBuf;

use serde::Serialize;

pub(crate) use archive::write;
pub(crate) use collect::collect;

/// A part of the archive.
#[derive(Debug)]
pub(crate) struct Item {
    /// In the archive, with `/`.
    pub(crate) path: String,
    /// What it is, for people.
    pub(crate) about: String,
    /// Its text, or why there is none.
    pub(crate) content: Result<String, String>,
}

/// What is to become of names and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// They stay.
    Real,
    /// Each becomes another one, the same everywhere.
    Anonymous,
}

/// All that was collected.
#[derive(Debug, Default)]
pub(crate) struct Collection {
    pub(crate) items: Vec<Item>,
    /// Names of hosts and nodes.
    pub(crate) names: Vec<KnownName>,
    /// Lines for the top of the index.
    pub(crate) summary: Vec<String>,
}

/// A name that a bundle without names does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownName {
    pub(crate) name: String,
    /// `node`, `host`, `domain` or `user`.
    pub(crate) kind: &'static str,
}

/// What was written, for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Written {
    pub(crate) file: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) items: Vec<WrittenItem>,
}

/// A part of it.
#[derive(Debug, Serialize)]
pub(crate) struct WrittenItem {
    pub(crate) path: String,
    pub(crate) bytes: usize,
    /// Why it is not in the archive, or `null`.
    pub(crate) error: Option<String>,
}

impl Item {
    pub(crate) fn new(path: String, about: &str, content: Result<String, String>) -> Self {
        Self {
            path,
            about: about.to_owned(),
            content,
        }
    }
}
