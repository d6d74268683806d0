//! What the agent dials for clients: the allow-list, and the dials of the streams.

pub(crate) mod allow_list;
pub(crate) mod dial;
