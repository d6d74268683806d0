//! What happens to clients' connections: one has begun or ended, or events are missing.

use culvert_api::proto::control as proto;
use serde::Serialize;

/// A connection that has begun or ended, or how many events are missing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// The host of the proxy.
    pub proxy: String,
    /// Milliseconds since 1970.
    pub unix_millis: u64,
    /// `begun`, `ended`, `idle` or `lost`.
    pub event: &'static str,
    /// Events that are missing here; 0 unless `event` is `lost`.
    pub lost: u64,
    /// Its number at the proxy.
    pub stream: u64,
    /// How it came to the proxy.
    pub frontend: String,
    /// Address and port of the client.
    pub client: String,
    /// What the client dialled.
    pub destination: String,
    /// Empty while it is not known.
    pub node: String,
    /// Empty while it has not ended.
    pub outcome: String,
    /// Why, after a failure.
    pub reason: String,
    /// Since it began.
    pub duration_millis: u64,
    /// Payload so far.
    pub bytes_to_backend: u64,
    /// Payload so far.
    pub bytes_to_client: u64,
    /// Since the last byte in either direction; 0 unless `event` is `idle`.
    pub idle_seconds: u64,
}

impl Event {
    /// A connection in which nothing moves, as a proxy of this name lists it.
    pub fn idle(proxy: &str, unix_millis: u64, status: proto::StreamStatus) -> Self {
        Self {
            proxy: proxy.to_owned(),
            unix_millis,
            event: "idle",
            lost: 0,
            stream: status.stream,
            frontend: status.frontend,
            client: status.client,
            destination: status.destination,
            node: status.node,
            outcome: String::new(),
            reason: String::new(),
            duration_millis: status.age_seconds.saturating_mul(1_000),
            bytes_to_backend: status.bytes_to_backend,
            bytes_to_client: status.bytes_to_client,
            idle_seconds: status.idle_seconds,
        }
    }

    /// As a proxy of this name sends it.
    pub fn of(proxy: &str, event: proto::StreamEvent) -> Self {
        let kind = match (event.lost, event.outcome.as_str()) {
            (0, "") => "begun",
            (0, _) => "ended",
            _ => "lost",
        };
        Self {
            proxy: proxy.to_owned(),
            unix_millis: event.unix_millis,
            event: kind,
            lost: event.lost,
            stream: event.stream,
            frontend: event.frontend,
            client: event.client,
            destination: event.destination,
            node: event.node,
            outcome: event.outcome,
            reason: event.reason,
            duration_millis: event.duration_millis,
            bytes_to_backend: event.bytes_to_backend,
            bytes_to_client: event.bytes_to_client,
            idle_seconds: 0,
        }
    }

    /// The node, or the name in the destination while it is not known.
    pub fn is_of_node(&self, node: &str) -> bool {
        let host = self.destination.rsplit_once(':').map(|(host, _)| host);
        self.node == node || (self.node.is_empty() && host == Some(node))
    }
}

impl Event {
    /// What to do about a connection that failed.
    pub fn fix(&self) -> String {
        match self.outcome.as_str() {
            "forbidden" => "the agent may not dial it: add it to --allow of the agent, or to \
                            ConfigMap culvert-ports"
                .to_owned(),
            "refused" => "nothing listens there: start the backend on its node".to_owned(),
            "timed_out" | "unreachable" => {
                "look at the backend on its node, and at the firewall between it and the agent"
                    .to_owned()
            }
            "client_share" => "this client has very many connections to one node: it should close \
                               those that it does not use"
                .to_owned(),
            "reset" | "client_left" => "the client ended it: look at the client".to_owned(),
            "peer_reset" => "the backend ended it: look at the backend's log".to_owned(),
            _ => format!("`culvert why {}` says why", self.destination),
        }
    }
}
