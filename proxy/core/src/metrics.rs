//! The proxy's metrics, all named `culvert_proxy_...`; docs/metrics.md lists them.

use std::time::Instant;

use culvert_daemon::{PayloadBytes, VERSION};
use culvert_tunnel::{Total, dial_codes, dial_reason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use strum::{IntoStaticStr, VariantArray};

/// From a backend in the same rack to the 8 s that the proxy waits for an agent's answer.
const DIAL_BUCKETS: [f64; 10] = [0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// The outcome of a dial without an answer of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum UnansweredDial {
    /// The node had no tunnel.
    Offline,
    /// The tunnel ended first.
    TunnelLost,
    /// The client left first.
    ClientLeft,
}

/// A request for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CertificateRequest {
    /// With a one-time token.
    Join,
    /// With the token of a service account.
    JoinAccount,
    /// With the certificate that ends.
    Renew,
}

/// A port that asks its clients for no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OpenPort {
    /// A name-routed port.
    Name,
    /// A forwarded port.
    Forward,
}

/// Shared by all parts of the proxy.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Tunnels of agents.
    pub tunnels: Gauge,
    /// Connections of clients.
    pub active_streams: Gauge,
    /// Streams of other proxies that go on into tunnels that end here.
    pub forwarded_streams: Gauge,
    /// Moves of streams to tunnels of their own.
    pub moved_streams: Counter,
    /// Payload of connections of clients so far.
    pub transferred: Total,
    streams: Family<Stream, Counter>,
    /// All of these. It is not registered.
    ended_streams: Counter,
    dials: Family<Outcome, Counter>,
    dial_duration: Histogram,
    refused_clients: Family<Port, Counter>,
    agents: Family<Outcome, Counter>,
    node_events: Family<Outcome, Counter>,
    enrolments: Family<Enrolment, Counter>,
    capped_proxies: Family<Capped, Gauge>,
    pub(crate) spans: Family<Outcome, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Enrolment {
    request: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Capped {
    cap: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Stream {
    frontend: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Port {
    port: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Outcome {
    pub(crate) outcome: &'static str,
}

/// The outcome of a connection to the agent port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum AgentOutcome {
    /// It was a tunnel, and has ended.
    TunnelEnded,
    /// It was a tunnel, and has failed.
    TunnelFailed,
    /// The agent gave it up before it was used.
    Declined,
    /// It was a tunnel, until its certificate ended or was revoked.
    CertificateEnded,
    /// It was a tunnel, until the proxy ended.
    Drained,
    /// The agent got a certificate.
    Enrolled,
    /// The agent got no certificate.
    EnrollFailed,
    /// Its certificate is of no node, or void.
    IdentityRefused,
    /// The TLS handshake failed.
    HandshakeFailed,
    /// Its PROXY header was refused.
    HeaderRefused,
    /// Too many strangers were there already.
    Busy,
    /// Its turn never came: it made room for another stranger.
    Evicted,
}

/// A list of proxies that takes only so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ProxyCap {
    /// The addresses that are published for agents.
    AgentConfig,
    /// The other proxies of the cluster that this one knows from their Leases.
    Leases,
}

/// What became of spans for `--otlp-endpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum SpanOutcome {
    /// The collector has them.
    Sent,
    /// The collector does not want them.
    Refused,
    /// The queue was full, or the proxy ended.
    Dropped,
}

/// Whether a change of a Node matters to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum NodeChange {
    /// It matters.
    Changed,
    /// Only a heartbeat, or a part without a reader.
    Unchanged,
}

/// A dial under way. It is counted when its outcome is known, or on drop.
#[derive(Debug)]
pub struct Dialling<'a> {
    metrics: &'a Metrics,
    started: Instant,
    outcome: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            tunnels: Gauge::default(),
            active_streams: Gauge::default(),
            forwarded_streams: Gauge::default(),
            moved_streams: Counter::default(),
            transferred: Total::default(),
            streams: Family::default(),
            ended_streams: Counter::default(),
            dials: Family::default(),
            dial_duration: Histogram::new(DIAL_BUCKETS),
            refused_clients: Family::default(),
            agents: Family::default(),
            node_events: Family::default(),
            enrolments: Family::default(),
            capped_proxies: Family::default(),
            spans: Family::default(),
        }
    }
}

impl Metrics {
    /// Registers all metrics, and `scraped`, which computes its own at each scrape.
    pub fn register(&self, registry: &mut Registry, scraped: impl Collector) {
        self.initialize_to_zero();
        let registry = registry.sub_registry_with_prefix("culvert_proxy");
        registry.register(
            "build",
            "Version of the proxy",
            Info::new([("version", VERSION)]),
        );
        registry.register("tunnels", "Tunnels of agents", self.tunnels.clone());
        registry.register(
            "active_streams",
            "Connections of clients, dialling ones included",
            self.active_streams.clone(),
        );
        registry.register(
            "forwarded_streams",
            "Streams of other proxies that go on into tunnels here",
            self.forwarded_streams.clone(),
        );
        registry.register(
            "moved_streams",
            "Moves of heavy streams to tunnels of their own",
            self.moved_streams.clone(),
        );
        registry.register(
            "streams",
            "Connections of clients that ended, by how",
            self.streams.clone(),
        );
        registry.register(
            "dials",
            "Dials for clients, by what came of them",
            self.dials.clone(),
        );
        registry.register(
            "dial_duration_seconds",
            "From a client's wish to its backend's answer, or to none",
            self.dial_duration.clone(),
        );
        registry.register(
            "refused_clients",
            "Connections to name-routed and forwarded ports that were refused before they named a node",
            self.refused_clients.clone(),
        );
        let total = self.transferred.clone();
        registry.register_collector(Box::new(PayloadBytes(move || {
            [total.into_tunnel(), total.out_of_tunnel()]
        })));
        registry.register(
            "agent_connections",
            "Connections to the agent port, by what became of them",
            self.agents.clone(),
        );
        let enrolments = self.enrolments.clone();
        registry.register(
            "enrolments",
            "Requests for certificates, by what became of them",
            enrolments,
        );
        let node_events = self.node_events.clone();
        registry.register(
            "node_events",
            "Changes of the cluster's Nodes, by whether they matter here",
            node_events,
        );
        let capped = self.capped_proxies.clone();
        registry.register(
            "capped_proxies",
            "Proxies of the cluster that a list leaves out, because it is full",
            capped,
        );
        registry.register(
            "spans",
            "Spans of connections that ended, by what became of them",
            self.spans.clone(),
        );
        registry.register_collector(Box::new(scraped));
    }

    /// Creates the label values with zero: a missing series would hide its first event from
    /// `rate()`.
    fn initialize_to_zero(&self) {
        let unanswered = UnansweredDial::VARIANTS.iter().map(Into::into);
        for outcome in dial_codes().map(dial_reason).chain(unanswered) {
            drop(self.dials.get_or_create(&Outcome { outcome }));
        }
        for port in OpenPort::VARIANTS {
            self.refused_clients(*port);
        }
        for change in NodeChange::VARIANTS {
            let outcome = change.into();
            drop(self.node_events.get_or_create(&Outcome { outcome }));
        }
        for end in AgentOutcome::VARIANTS {
            let outcome = end.into();
            drop(self.agents.get_or_create(&Outcome { outcome }));
        }
        for outcome in SpanOutcome::VARIANTS {
            self.spans(*outcome, 0);
        }
        for cap in ProxyCap::VARIANTS {
            self.capped_proxies(*cap, 0);
        }
        for request in CertificateRequest::VARIANTS {
            drop(self.enrolments.get_or_create(&Enrolment {
                request: request.into(),
                outcome: "ok",
            }));
        }
    }

    /// Counts a report of the cluster's API server about a Node.
    pub fn node_event(&self, change: NodeChange) {
        let outcome = change.into();
        self.node_events.get_or_create(&Outcome { outcome }).inc();
    }

    /// Starts at zero to count the connections with this end. All ends of all frontends would be too
    /// many, so this is for those that an alert watches.
    pub fn expect_stream(&self, frontend: &'static str, outcome: &'static str) {
        drop(self.streams.get_or_create(&Stream { frontend, outcome }));
    }

    /// Counts a client's connection through `frontend` that has ended.
    pub fn stream_ended(&self, frontend: &'static str, outcome: &'static str) {
        self.streams
            .get_or_create(&Stream { frontend, outcome })
            .inc();
        self.ended_streams.inc();
    }

    /// How many connections of clients have ended.
    pub fn ended_streams(&self) -> u64 {
        self.ended_streams.get()
    }

    /// Counts clients that such a port refuses.
    pub fn refused_clients(&self, port: OpenPort) -> Counter {
        let port = port.into();
        self.refused_clients.get_or_create(&Port { port }).clone()
    }

    /// Begins a dial. If it is dropped before its end, it counts as one whose client left.
    pub fn dial(&self) -> Dialling<'_> {
        Dialling {
            metrics: self,
            started: Instant::now(),
            outcome: UnansweredDial::ClientLeft.into(),
        }
    }

    /// Counts the answer to a request for a certificate.
    pub fn enrolment(&self, request: CertificateRequest, outcome: &'static str) {
        let request = request.into();
        self.enrolments
            .get_or_create(&Enrolment { request, outcome })
            .inc();
    }

    /// Notes how many proxies a full list leaves out.
    pub fn capped_proxies(&self, cap: ProxyCap, left_out: usize) {
        let left_out = i64::try_from(left_out).unwrap_or(i64::MAX);
        let cap = cap.into();
        self.capped_proxies
            .get_or_create(&Capped { cap })
            .set(left_out);
    }

    /// Counts spans.
    pub fn spans(&self, outcome: SpanOutcome, count: usize) {
        let outcome = outcome.into();
        self.spans
            .get_or_create(&Outcome { outcome })
            .inc_by(count as u64);
    }

    /// Counts a connection to the agent port that has ended.
    pub fn agent_connection(&self, outcome: AgentOutcome) {
        let outcome = outcome.into();
        self.agents.get_or_create(&Outcome { outcome }).inc();
    }
}

impl Dialling<'_> {
    /// Notes the outcome.
    pub fn ended(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.metrics
            .dials
            .get_or_create(&Outcome {
                outcome: self.outcome,
            })
            .inc();
        self.metrics
            .dial_duration
            .observe(self.started.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(metrics: &Metrics, outcome: &'static str) -> u64 {
        metrics.dials.get_or_create(&Outcome { outcome }).get()
    }

    #[test]
    fn every_dial_is_counted_once_however_it_ends() {
        let metrics = Metrics::default();
        metrics.dial().ended("refused");
        drop(metrics.dial());
        assert_eq!(
            (count(&metrics, "refused"), count(&metrics, "client_left")),
            (1, 1)
        );
    }
}
