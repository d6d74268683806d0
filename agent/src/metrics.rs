//! The agent's metrics, `culvert_agent_*`.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use culvert_tunnel::proto::tunnel::DialCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// One label with one of a few fixed values.
type Label = [(&'static str, &'static str); 1];

/// All of the agent's metrics.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    streams_active: Gauge,
    streams: Family<Label, Counter>,
    dials: Family<Label, Counter>,
    bytes: Family<Label, Counter>,
    tunnels: Gauge,
    tunnel_attempts: Family<Label, Counter>,
    renewals: Family<Label, Counter>,
    certificate_end: Gauge<f64, AtomicU64>,
}

impl Metrics {
    /// Makes the metrics known to the admin server's registry.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let prefixed = registry.sub_registry_with_prefix("culvert_agent");
        prefixed.register("streams_active", "Streams being relayed", metrics.streams_active.clone());
        prefixed.register("streams", "Streams that ended, by outcome", metrics.streams.clone());
        prefixed.register("dials", "Dials of backends, by result", metrics.dials.clone());
        prefixed.register("bytes", "Payload bytes of ended streams, by direction", metrics.bytes.clone());
        prefixed.register("tunnels", "Tunnels that are up", metrics.tunnels.clone());
        prefixed.register("tunnel_attempts", "Attempts to set up a tunnel, by result", metrics.tunnel_attempts.clone());
        prefixed.register("certificate_renewals", "Renewals of the certificate, by result", metrics.renewals.clone());
        let end = metrics.certificate_end.clone();
        prefixed.register("certificate_expiry_timestamp_seconds", "When the agent's certificate ends", end);
        metrics
    }

    /// A stream is relayed while the guard lives.
    pub(crate) fn stream(&self) -> Active {
        Active::count(&self.streams_active)
    }

    /// A tunnel is up while the guard lives.
    pub(crate) fn tunnel(&self) -> Active {
        self.tunnel_attempt("ok");
        Active::count(&self.tunnels)
    }

    pub(crate) fn tunnel_attempt(&self, result: &'static str) {
        self.tunnel_attempts.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn stream_ended(&self, outcome: &'static str, into_tunnel: u64, out_of_tunnel: u64) {
        self.streams.get_or_create(&[("outcome", outcome)]).inc();
        self.bytes.get_or_create(&[("direction", "into_tunnel")]).inc_by(into_tunnel);
        self.bytes.get_or_create(&[("direction", "out_of_tunnel")]).inc_by(out_of_tunnel);
    }

    pub(crate) fn dialled(&self, code: DialCode) {
        self.dials.get_or_create(&[("result", culvert_tunnel::dial_reason(code))]).inc();
    }

    pub(crate) fn renewal(&self, result: &'static str) {
        self.renewals.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn certificate_ends(&self, at: SystemTime) {
        self.certificate_end.set(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }
}

/// Counts something while it lives.
#[derive(Debug)]
pub(crate) struct Active(Gauge);

impl Active {
    fn count(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}
