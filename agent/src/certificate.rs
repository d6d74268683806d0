//! The agent's certificate: how it gets the first one, keeps it, and renews it.

pub(crate) mod calls;
pub(crate) mod cluster;
pub(crate) mod current;
pub(crate) mod first;
pub(crate) mod join;
pub(crate) mod renewal;
pub(crate) mod store;
pub(crate) mod token;
