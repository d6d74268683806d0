//! How clients come in: steered connections, HTTP CONNECT, and what CONNECT reaches without a tunnel.

pub(crate) mod connect;
pub(crate) mod direct;
pub(crate) mod intercept;
pub(crate) mod original_dst;
