//! The clients' side: steered connections, HTTP CONNECT, and destinations of CONNECT without a
//! tunnel.

pub(crate) mod connect;
pub(crate) mod direct;
pub(crate) mod intercept;
pub(crate) mod original_dst;
