//! Which tunnel a connection takes, and the connections that are open.

pub(crate) mod error;
pub(crate) mod history;
pub(crate) mod limits;
pub(crate) mod live;
pub(crate) mod registry;
pub(crate) mod route;
pub(crate) mod routed;
