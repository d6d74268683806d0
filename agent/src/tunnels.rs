//! The tunnels to the proxies: where each one goes, set up, kept, and replaced.

mod demand;
pub(crate) mod keeper;
pub(crate) mod placement;
pub(crate) mod round_trips;
pub(crate) mod slot;
pub(crate) mod states;
