//! The tunnels to the proxies: set up, kept, and replaced.

pub(crate) mod keeper;
pub(crate) mod slot;
pub(crate) mod states;
