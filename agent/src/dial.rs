//! Connections to proxies: TCP, directly or through a forward proxy, then TLS.

pub(crate) mod connect;
mod connect_request;
mod forward_proxy;
pub(crate) mod outbound;
pub(crate) mod pin;
pub(crate) mod tls;
