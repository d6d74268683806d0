//! Label and field selectors, with the syntax and meaning that apimachinery gives them. Each has one
//! written form (`Display`), so that equal selectors have equal keys.

use std::fmt;
use std::str::FromStr;

use crate::wire::{Labels, Metadata};

/// A selector that the API server refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidSelector {
    #[error("found {found:?} where {expected} was expected")]
    Syntax {
        found: String,
        expected: &'static str,
    },
    #[error("{key:?} is not a label key")]
    Key { key: String },
    #[error("{value:?} is not a label value")]
    Value { value: String },
    #[error("{value:?} is not an integer")]
    Integer { value: String },
    #[error("{value:?} has an escape that is none")]
    Escape { value: String },
}

/// Which labels an object must have. Without requirements it selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LabelSelector {}

impl LabelSelector {
    pub(crate) fn is_empty(&self) -> bool {
        todo!()
    }

    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        todo!()
    }
}

impl FromStr for LabelSelector {
    type Err = InvalidSelector;
    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        todo!()
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

/// Which fields an object must have. Without requirements it selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FieldSelector {}

impl FieldSelector {
    pub(crate) fn is_empty(&self) -> bool {
        todo!()
    }

    /// `None`: it names a field other than `metadata.name` and `metadata.namespace`.
    pub(crate) fn matches(&self, metadata: &Metadata) -> Option<bool> {
        todo!()
    }

    /// The name in `metadata.name=name`.
    pub(crate) fn required_name(&self) -> Option<&str> {
        todo!()
    }
}

impl FromStr for FieldSelector {
    type Err = InvalidSelector;
    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        todo!()
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}
