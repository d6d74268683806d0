//! A client's connection, as a proxy lists it.

use std::cmp::Reverse;

use culvert_api::non_empty;
use culvert_api::proto::control as proto;
use serde::Serialize;

/// A client's connection.
#[derive(Clone, Debug, Serialize)]
pub struct Stream {
    /// The host of the proxy.
    pub proxy: String,
    /// As in the log of the proxy and of the agent.
    pub stream: u64,
    /// How it came to the proxy, such as `ebpf` or `connect_socket`.
    pub frontend: String,
    /// Address and port of the client.
    pub client: String,
    /// What the client dialled.
    pub destination: String,
    /// Empty while it is not known.
    pub node: String,
    /// Since it was accepted.
    pub age_seconds: u64,
    /// Since the last byte in either direction.
    pub idle_seconds: u64,
    /// Payload so far.
    pub bytes_to_backend: u64,
    /// Payload so far.
    pub bytes_to_client: u64,
    /// The backend has the last bytes, and has not answered.
    pub waits: bool,
    /// The tunnel of the proxy that it is in.
    pub tunnel: Option<u64>,
    /// The host of the other proxy by way of which it goes.
    pub peer: Option<String>,
    /// How often it has moved to another tunnel.
    pub moves: u32,
    /// Why it moved last: `shared_tunnel` or `by_peer`.
    pub move_reason: Option<String>,
}

impl Stream {
    /// The way that it takes, and why; `None` while it has none.
    pub fn way(&self) -> Option<String> {
        let mut text = match (self.tunnel, &self.peer) {
            (Some(tunnel), _) => format!("tunnel {tunnel}"),
            (None, Some(peer)) => format!("by proxy {peer}"),
            (None, None) => return None,
        };
        match self.move_reason.as_deref() {
            Some("by_peer") => text += ", moved from another proxy",
            Some(_) => text += ", moved from a shared tunnel",
            None => {}
        }
        Some(text)
    }

    /// Orders those that wait for the longest first.
    pub fn urgency(&self) -> Reverse<(bool, u64)> {
        Reverse((self.waits, self.idle_seconds))
    }

    /// As a proxy lists it.
    pub fn of(proxy: &str, status: &proto::StreamStatus) -> Self {
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
            tunnel: (status.tunnel != 0).then_some(status.tunnel),
            peer: non_empty(&status.peer),
            moves: status.moves,
            move_reason: non_empty(&status.move_reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_connection_is_and_why_it_moved_is_said() {
        let status = proto::StreamStatus {
            tunnel: 7,
            moves: 1,
            move_reason: "by_peer".to_owned(),
            ..proto::StreamStatus::default()
        };
        let way = Stream::of("cloud-1", &status).way().unwrap();
        assert!(
            way.starts_with("tunnel 7") && way.contains("moved"),
            "{way}"
        );
        let status = proto::StreamStatus {
            peer: "cloud-2".to_owned(),
            ..proto::StreamStatus::default()
        };
        let way = Stream::of("cloud-1", &status).way().unwrap();
        assert!(way.contains("cloud-2") && !way.contains("moved"), "{way}");
        let unopened = Stream::of("cloud-1", &proto::StreamStatus::default());
        assert_eq!(unopened.way(), None);
    }
}
