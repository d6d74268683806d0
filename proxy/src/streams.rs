//! The choice of a tunnel for each connection, and the open connections.

pub(crate) mod copies;
pub(crate) mod direct;
pub(crate) mod elsewhere;
pub(crate) mod ended;
pub(crate) mod error;
pub(crate) mod history;
pub(crate) mod limits;
pub(crate) mod live;
pub(crate) mod rank;
pub(crate) mod registry;
pub(crate) mod route;
pub(crate) mod routed;
