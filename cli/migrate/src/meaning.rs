//! What a setting that was found means, and why an input cannot be used.

/// What a setting that was found means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Equal(String),
    NoEqual(String),
    /// No table has it.
    Unknown,
}

/// The reason why an input cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub(super) struct Problem {
    place: String,
    problem: String,
}

impl Problem {
    pub(super) fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            problem: problem.into(),
        }
    }
}

impl Meaning {
    pub(super) fn equal(text: impl Into<String>) -> Self {
        Self::Equal(text.into())
    }

    pub(super) fn no_equal(text: impl Into<String>) -> Self {
        Self::NoEqual(text.into())
    }
}
