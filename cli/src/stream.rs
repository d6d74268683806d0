//! A client's connection, as a proxy lists it.

use std::cmp::Reverse;

use culvert_api::proto::control as proto;
use serde::Serialize;

/// A client's connection.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stream {
    pub(crate) proxy: String,
    /// As in the log of the proxy and of the agent.
    pub(crate) stream: u64,
    /// How it came to the proxy, such as `ebpf` or `connect_socket`.
    pub(crate) frontend: String,
    pub(crate) client: String,
    pub(crate) destination: String,
    /// Empty while it is not known.
    pub(crate) node: String,
    pub(crate) age_seconds: u64,
    /// Since the last byte in either direction.
    pub(crate) idle_seconds: u64,
    pub(crate) bytes_to_backend: u64,
    pub(crate) bytes_to_client: u64,
    /// The backend has the last bytes, and has not answered.
    pub(crate) waits: bool,
}

impl Stream {
    /// Orders those that wait for the longest first.
    pub(crate) fn urgency(&self) -> Reverse<(bool, u64)> {
        Reverse((self.waits, self.idle_seconds))
    }

    /// As a proxy lists it.
    pub(crate) fn of(proxy: &str, status: &proto::StreamStatus) -> Self {
        Self {
            proxy: proxy.to_owned(),
            stream: status.stream,
            frontend: status.frontend.clone(),
            client: status.client.clone(),
            destination: status.destination.clone(),
            node: status.node.clone(),
            age_seconds: status.age_seconds,
            idle_seconds: status.idle_seconds,
            bytes_to_backend: status.bytes_to_backend,
            bytes_to_client: status.bytes_to_client,
            waits: status.waits,
        }
    }
}
