//! Label and field selectors, with the syntax and meaning that apimachinery gives them. Each has
//! one written form (`Display`), so that equal selectors have equal keys.

mod fields;
mod labels;
mod parse;

pub(crate) use fields::FieldSelector;
pub(crate) use labels::LabelSelector;

/// A selector that the API server refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidSelector {
    #[error("found {found:?}, expected {expected}")]
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
    #[error("{value:?} has a bad escape")]
    Escape { value: String },
}
