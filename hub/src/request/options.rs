//! The query of a list or watch: `ListOptions` of the API.

use super::selector::{FieldSelector, InvalidSelector, LabelSelector};

/// Which state of a collection is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AskedVersion {
    /// No `resourceVersion`: the newest.
    #[default]
    Newest,
    /// `0`: any.
    Any,
    /// A number.
    At(u64),
}

/// `resourceVersionMatch`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    Exact,
    NotOlderThan,
}

/// The query of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListOptions {
    pub(crate) resource_version: AskedVersion,
    pub(crate) resource_version_match: Option<VersionMatch>,
    /// Zero: all at once.
    pub(crate) limit: u64,
    /// Empty: the first page.
    pub(crate) continue_token: String,
    pub(crate) allow_watch_bookmarks: bool,
    pub(crate) send_initial_events: bool,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) label_selector: LabelSelector,
    pub(crate) field_selector: FieldSelector,
}

/// A query that the API server answers with 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidOptions {
    #[error("{parameter} is not a number")]
    Number { parameter: &'static str },
    #[error("resourceVersionMatch is neither Exact nor NotOlderThan")]
    VersionMatch,
    #[error("the label selector cannot be parsed")]
    LabelSelector { source: InvalidSelector },
    #[error("the field selector cannot be parsed")]
    FieldSelector { source: InvalidSelector },
}
