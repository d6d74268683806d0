//! Answers of the hub itself: from its memory, and refusals; and the copies of the API server's.

pub(crate) mod copy;
pub(crate) mod documents;
pub(crate) mod local;
pub(crate) mod refusal;
pub(crate) mod writes;
