//! What the agent dials for clients: the allow-list, and the dials for streams.

pub(crate) mod allow_list;
pub(crate) mod dial;
pub(crate) mod ports_config;
