//! Connections to proxies: TCP, directly or through a forward proxy, then TLS.

pub(crate) mod connect;
pub(crate) mod outbound;
pub(crate) mod pin;
pub(crate) mod tls;
