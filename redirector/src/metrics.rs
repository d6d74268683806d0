//! What the redirector counts: `culvert_redirector_*`.

use std::fmt;

use culvert_daemon::VERSION;
use hickory_proto::op::ResponseCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::args::Mechanism;
use crate::mechanisms::bpf::{Pins, Refusal, Tables};
use crate::plan::{Liveness, Plan};

/// All metrics of the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) dns: DnsMetrics,
    pub(crate) steering: SteeringMetrics,
}

/// Of the DNS server.
#[derive(Clone, Debug, Default)]
pub(crate) struct DnsMetrics {
    answers: Family<AnswerLabels, Counter>,
}

/// Of what is installed on the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct SteeringMetrics {
    mechanism: Family<MechanismLabels, Gauge>,
    destinations: Family<DestinationLabels, Gauge>,
    drift: Family<DriftLabels, Counter>,
}

/// What of ours somebody else had removed or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drifted {
    Hooks,
    Destinations,
    Nftables,
    Routes,
}

/// What came of putting it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    Done,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriftLabels {
    what: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MechanismLabels {
    mechanism: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DestinationLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

impl Metrics {
    /// A registry with all of them, and with what the kernel programs count.
    pub(crate) fn registry(&self, pins: Pins) -> Registry {
        self.begin_at_zero();
        let mut registry = Registry::with_prefix("culvert_redirector");
        registry.register(
            "build",
            "Version of the redirector",
            Info::new([("version", VERSION)]),
        );
        registry.register(
            "dns_answers",
            "DNS answers by response code",
            self.dns.answers.clone(),
        );
        let steering = &self.steering;
        let help = "1 for what steers connections now, 0 for all else";
        registry.register("mechanism", help, steering.mechanism.clone());
        registry.register(
            "destinations",
            "Destinations that are steered, by state",
            steering.destinations.clone(),
        );
        let help = "Times that somebody had removed or changed what is installed, by what and by \
            what came of its repair";
        registry.register("drift", help, steering.drift.clone());
        let refusal = Refusal::of_this_kernel().map_or("unknown", Refusal::name);
        let help = "Error of a connect that the hooks refuse";
        registry.register("refusal", help, Info::new([("error", refusal)]));
        registry.register_collector(Box::new(KernelCounts { pins }));
        registry
    }

    /// What never happened is zero, not absent: a rate sees the first time too.
    fn begin_at_zero(&self) {
        if self
            .steering
            .mechanism
            .get(&MechanismLabels {
                mechanism: Mechanism::None.name(),
            })
            .is_none()
        {
            self.steering.in_force(Mechanism::None);
        }
        for what in [
            Drifted::Hooks,
            Drifted::Destinations,
            Drifted::Nftables,
            Drifted::Routes,
        ] {
            for repair in [Repair::Done, Repair::Failed] {
                drop(self.steering.drift(what, repair));
            }
        }
        for code in CODES.into_iter().map(|(_, name)| name).chain(["other"]) {
            drop(self.dns.answers.get_or_create(&AnswerLabels { code }));
        }
    }
}

/// The answers that are told apart.
const CODES: [(ResponseCode, &str); 4] = [
    (ResponseCode::NoError, "noerror"),
    (ResponseCode::NXDomain, "nxdomain"),
    (ResponseCode::Refused, "refused"),
    (ResponseCode::ServFail, "servfail"),
];

impl DnsMetrics {
    pub(crate) fn answered(&self, code: ResponseCode) {
        let code = CODES
            .into_iter()
            .find(|(named, _)| *named == code)
            .map_or("other", |(_, name)| name);
        self.answers.get_or_create(&AnswerLabels { code }).inc();
    }
}

impl SteeringMetrics {
    /// What steers now.
    pub(crate) fn in_force(&self, mechanism: Mechanism) {
        for each in Mechanism::ALL {
            let labels = MechanismLabels {
                mechanism: each.name(),
            };
            self.mechanism
                .get_or_create(&labels)
                .set(i64::from(each == mechanism));
        }
    }

    /// Something of ours had been removed or changed.
    pub(crate) fn drifted(&self, what: Drifted, repair: Repair) {
        self.drift(what, repair).inc();
    }

    fn drift(&self, what: Drifted, repair: Repair) -> Counter {
        let what = match what {
            Drifted::Hooks => "hooks",
            Drifted::Destinations => "destinations",
            Drifted::Nftables => "nftables",
            Drifted::Routes => "routes",
        };
        let outcome = match repair {
            Repair::Done => "repaired",
            Repair::Failed => "failed",
        };
        self.drift
            .get_or_create(&DriftLabels { what, outcome })
            .clone()
    }

    pub(crate) fn planned(&self, plan: &Plan) {
        let count = |wanted| {
            plan.destinations
                .values()
                .filter(|liveness| **liveness == wanted)
                .count()
        };
        for (liveness, state) in [(Liveness::Online, "online"), (Liveness::Offline, "offline")] {
            let count = i64::try_from(count(liveness)).unwrap_or(i64::MAX);
            self.destinations
                .get_or_create(&DestinationLabels { state })
                .set(count);
        }
        let beyond = i64::try_from(plan.beyond.len()).unwrap_or(i64::MAX);
        self.destinations
            .get_or_create(&DestinationLabels {
                state: "nftables_only",
            })
            .set(beyond);
    }
}

/// Reads the kernel's counters when metrics are asked for. They outlive the process.
struct KernelCounts {
    pins: Pins,
}

impl Collector for KernelCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(counts) = Tables::open(&self.pins).and_then(|tables| tables.counts()) else {
            // Without the eBPF mechanism there is nothing to read.
            return Ok(());
        };
        let counter = ConstCounter::new(0_u64);
        let help = "What the kernel programs did with connections";
        let mut family =
            encoder.encode_descriptor("kernel_connections", help, None, counter.metric_type())?;
        for (counter, count) in counts {
            let labels = ReasonLabels {
                reason: counter.name(),
            };
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for KernelCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelCounts").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::examples;
    use crate::plan::{Freshness, plan};

    #[test]
    fn every_metric_has_the_prefix_of_its_component() {
        let metrics = Metrics::default();
        metrics.dns.answered(ResponseCode::NXDomain);
        metrics.steering.in_force(Mechanism::Nftables);
        metrics
            .steering
            .planned(&plan(&examples::directory(), Freshness::Live));
        let mut text = String::new();
        let registry = metrics.registry(Pins::new(std::path::Path::new("/nonexistent")));
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(
            text.contains("culvert_redirector_dns_answers_total{code=\"nxdomain\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("culvert_redirector_destinations{state=\"offline\"} 2"),
            "{text}"
        );
        for (mechanism, value) in [("both", 0), ("ebpf", 0), ("nftables", 1), ("none", 0)] {
            let line =
                format!("culvert_redirector_mechanism{{mechanism=\"{mechanism}\"}} {value}\n");
            assert!(text.contains(&line), "no {line} in {text}");
        }
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        assert!(
            samples
                .into_iter()
                .all(|line| line.starts_with("culvert_redirector_")),
            "{text}"
        );
    }
}
