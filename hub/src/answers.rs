//! Answers of the hub itself: from its memory, and refusals; and the copies of the API server's.

pub(crate) mod absence;
pub(crate) mod documents;
mod events;
mod list;
pub(crate) mod local;
mod node_writes;
mod tokens;
mod write_body;
pub(crate) mod writes;
