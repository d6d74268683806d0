//! The agent's metrics, `culvert_agent_*`; docs/metrics.md lists them.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use culvert_daemon::{PayloadBytes, VERSION};
use culvert_tunnel::Total;
use culvert_tunnel::proto::tunnel::DialCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use strum::{IntoStaticStr, VariantArray};

/// One label. Its values are a small fixed set.
type Label = [(&'static str, &'static str); 1];

/// The outcome of a stream that both sides ended.
pub(crate) const FINISHED: &str = "finished";

/// The outcome of an attempt to set up a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum AttemptOutcome {
    Ok,
    Unreachable,
    Tls,
    Refused,
    Dismissed,
    /// The agent had enough tunnels to the proxy that it met.
    Declined,
    TimedOut,
}

/// The outcome of an attempt to renew the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum RenewalOutcome {
    Ok,
    Failed,
    /// In use, but not stored: the disk is full.
    NotStored,
}

/// All of the agent's metrics.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) transferred: Total,
    active_streams: Gauge,
    streams: Family<Label, Counter>,
    dials: Family<Label, Counter>,
    tunnels: Gauge,
    tunnel_attempts: Family<Label, Counter>,
    renewals: Family<Label, Counter>,
    certificate_end: Gauge<f64, AtomicU64>,
}

impl Metrics {
    /// Creates the metrics and registers them with the admin server's registry.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        metrics.initialize_to_zero();
        let prefixed = registry.sub_registry_with_prefix("culvert_agent");
        prefixed.register(
            "build",
            "Version of the agent",
            Info::new([("version", VERSION)]),
        );
        prefixed.register(
            "active_streams",
            "Streams being relayed",
            metrics.active_streams.clone(),
        );
        prefixed.register(
            "streams",
            "Streams that ended, by how",
            metrics.streams.clone(),
        );
        prefixed.register(
            "dials",
            "Dials of backends, by what came of them",
            metrics.dials.clone(),
        );
        let total = metrics.transferred.clone();
        prefixed.register_collector(Box::new(PayloadBytes(move || {
            [total.out_of_tunnel(), total.into_tunnel()]
        })));
        prefixed.register("tunnels", "Tunnels that are up", metrics.tunnels.clone());
        prefixed.register(
            "tunnel_attempts",
            "Attempts to set up a tunnel, by what came of them",
            metrics.tunnel_attempts.clone(),
        );
        prefixed.register(
            "certificate_renewals",
            "Renewals of the certificate, by what came of them",
            metrics.renewals.clone(),
        );
        let end = metrics.certificate_end.clone();
        prefixed.register(
            "certificate_expiry_timestamp_seconds",
            "When the agent's certificate ends",
            end,
        );
        metrics
    }

    /// Creates the label values with zero: a missing series would hide its first event from
    /// `rate()`.
    fn initialize_to_zero(&self) {
        drop(self.streams.get_or_create(&[("outcome", FINISHED)]));
        for code in culvert_tunnel::dial_codes() {
            drop(
                self.dials
                    .get_or_create(&[("outcome", culvert_tunnel::dial_reason(code))]),
            );
        }
        for outcome in RenewalOutcome::VARIANTS {
            drop(self.renewals.get_or_create(&[("outcome", outcome.into())]));
        }
        for outcome in AttemptOutcome::VARIANTS {
            drop(
                self.tunnel_attempts
                    .get_or_create(&[("outcome", outcome.into())]),
            );
        }
    }

    /// Counts a stream as relayed while the guard lives.
    pub(crate) fn stream(&self) -> Active {
        Active::count(&self.active_streams)
    }

    /// Counts a tunnel as up while the guard lives.
    pub(crate) fn tunnel(&self) -> Active {
        self.record_attempt(AttemptOutcome::Ok);
        Active::count(&self.tunnels)
    }

    pub(crate) fn record_attempt(&self, outcome: AttemptOutcome) {
        self.tunnel_attempts
            .get_or_create(&[("outcome", outcome.into())])
            .inc();
    }

    pub(crate) fn record_stream_end(&self, outcome: &'static str) {
        self.streams.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn record_dial(&self, code: DialCode) {
        self.dials
            .get_or_create(&[("outcome", culvert_tunnel::dial_reason(code))])
            .inc();
    }

    pub(crate) fn record_renewal(&self, outcome: RenewalOutcome) {
        self.renewals
            .get_or_create(&[("outcome", outcome.into())])
            .inc();
    }

    /// The renewals that had this outcome.
    #[cfg(test)]
    pub(crate) fn renewals(&self, outcome: RenewalOutcome) -> u64 {
        let outcome = [("outcome", outcome.into())];
        self.renewals.get_or_create(&outcome).get()
    }

    pub(crate) fn set_certificate_end(&self, at: SystemTime) {
        self.certificate_end.set(
            at.duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_into_the_tunnel_goes_to_the_client() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let stream = metrics.transferred.start_stream();
        stream.into_tunnel.add(&[b'a'; 7]);
        stream.out_of_tunnel.add(&[b'a'; 50]);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "culvert_agent_bytes_total{direction=\"to_client\"} 7",
            "culvert_agent_bytes_total{direction=\"to_backend\"} 50",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
    }
}
