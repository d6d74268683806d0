//! What one of the hosts that are asked at the same time answers.

use crate::hosts::NoAnswer;

/// What a host answered, or why it did not.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    pub(crate) host: String,
    pub(crate) answer: Result<T, NoAnswer>,
}

impl<T> Answered<T> {
    /// The answer, if there is one.
    pub(crate) fn ok(&self) -> Option<&T> {
        self.answer.as_ref().ok()
    }
}

/// The answers that there are.
pub(crate) fn all_ok<T>(answers: &[Answered<T>]) -> Vec<&T> {
    let mut all = Vec::new();
    for answered in answers {
        all.extend(answered.ok());
    }
    all
}
