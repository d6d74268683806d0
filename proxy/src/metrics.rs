//! The proxy's metrics, all named `culvert_proxy_...`; the README lists them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Shared by all parts of the proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) tunnels: Gauge,
    pub(crate) active_streams: Gauge,
    streams: Family<Stream, Counter>,
    bytes: Family<Bytes, Counter>,
    agents: Family<Agents, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Stream {
    frontend: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Bytes {
    direction: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Agents {
    outcome: &'static str,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("culvert_proxy");
        registry.register("tunnels", "Tunnels of agents", self.tunnels.clone());
        registry.register(
            "active_streams",
            "Connections of clients, dialling ones included",
            self.active_streams.clone(),
        );
        registry.register("streams", "Connections of clients that ended, by how", self.streams.clone());
        registry.register("bytes", "Payload bytes of streams that ended", self.bytes.clone());
        registry.register(
            "agent_connections",
            "Connections to the agent port, by what became of them",
            self.agents.clone(),
        );
    }

    /// A client's connection through `frontend` has ended.
    pub(crate) fn stream_ended(&self, frontend: &'static str, outcome: &'static str, to_backend: u64, to_client: u64) {
        self.streams.get_or_create(&Stream { frontend, outcome }).inc();
        self.bytes.get_or_create(&Bytes { direction: "to_backend" }).inc_by(to_backend);
        self.bytes.get_or_create(&Bytes { direction: "to_client" }).inc_by(to_client);
    }

    /// A connection to the agent port came to something.
    pub(crate) fn agent_connection(&self, outcome: &'static str) {
        self.agents.get_or_create(&Agents { outcome }).inc();
    }
}
