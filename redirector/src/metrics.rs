//! The redirector's metrics, `culvert_redirector_*`.

use culvert_daemon::VERSION;
use hickory_proto::op::ResponseCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use strum::{IntoStaticStr, VariantArray};

use crate::plan::{Liveness, Plan};
use culvert_api::installed::Mechanism;

/// The metrics that the process itself counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) dns: DnsMetrics,
    pub(crate) steering: SteeringMetrics,
}

impl Metrics {
    /// A registry with all of them.
    pub(crate) fn registry(&self) -> Registry {
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
        registry.register(
            "mechanism",
            "1 for what steers connections now, 0 for all else",
            steering.mechanism.clone(),
        );
        registry.register(
            "destinations",
            "Destinations that are steered, by state",
            steering.destinations.clone(),
        );
        registry.register(
            "drift",
            "Times that another program had removed or changed what is installed, by what it was \
             and by the outcome of its repair",
            steering.drift.clone(),
        );
        registry
    }
}

/// Metrics of the DNS server.
#[derive(Clone, Debug)]
pub(crate) struct DnsMetrics {
    answers: Family<AnswerLabels, Counter>,
}

/// The response codes that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
enum AnswerCode {
    NoError,
    NxDomain,
    Refused,
    ServFail,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    code: &'static str,
}

impl AnswerCode {
    fn of(code: ResponseCode) -> Self {
        if code == ResponseCode::NoError {
            Self::NoError
        } else if code == ResponseCode::NXDomain {
            Self::NxDomain
        } else if code == ResponseCode::Refused {
            Self::Refused
        } else if code == ResponseCode::ServFail {
            Self::ServFail
        } else {
            Self::Other
        }
    }
}

impl Default for DnsMetrics {
    /// All label values start at zero, so that `rate()` sees the first answer too.
    fn default() -> Self {
        let metrics = Self {
            answers: Family::default(),
        };
        for code in AnswerCode::VARIANTS {
            drop(metrics.counter(*code));
        }
        metrics
    }
}

impl DnsMetrics {
    /// Counts an answer with this code.
    pub(crate) fn record_answer(&self, code: ResponseCode) {
        self.counter(AnswerCode::of(code)).inc();
    }

    fn counter(&self, code: AnswerCode) -> Counter {
        let code = code.into();
        self.answers.get_or_create_owned(&AnswerLabels { code })
    }
}

/// Metrics of what is installed on the host.
#[derive(Clone, Debug)]
pub(crate) struct SteeringMetrics {
    mechanism: Family<MechanismLabels, Gauge>,
    destinations: Family<DestinationLabels, Gauge>,
    drift: Family<DriftLabels, Counter>,
}

/// Something that was installed and that another program has removed or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Drift {
    Hooks,
    Destinations,
    Nftables,
    Routes,
}

/// The outcome of putting it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Repair {
    Repaired,
    Failed,
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
struct DriftLabels {
    what: &'static str,
    outcome: &'static str,
}

/// How a planned destination is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
enum DestinationState {
    Online,
    Offline,
    NftablesOnly,
}

impl DestinationState {
    fn count(self, plan: &Plan) -> usize {
        match self {
            Self::Online => count_with(Liveness::Online, plan),
            Self::Offline => count_with(Liveness::Offline, plan),
            Self::NftablesOnly => plan.nftables_only.len(),
        }
    }
}

fn count_with(liveness: Liveness, plan: &Plan) -> usize {
    let mut count = 0;
    for found in plan.destinations.values() {
        count += usize::from(*found == liveness);
    }
    count
}

impl Default for SteeringMetrics {
    /// All label values start at zero, so that `rate()` sees the first event too.
    fn default() -> Self {
        let metrics = Self {
            mechanism: Family::default(),
            destinations: Family::default(),
            drift: Family::default(),
        };
        metrics.set_mechanism(Mechanism::None);
        for drift in Drift::VARIANTS {
            for repair in Repair::VARIANTS {
                drop(metrics.counter(*drift, *repair));
            }
        }
        metrics
    }
}

impl SteeringMetrics {
    /// Shows what steers now.
    pub(crate) fn set_mechanism(&self, mechanism: Mechanism) {
        for each in Mechanism::ALL {
            let labels = MechanismLabels {
                mechanism: each.label(),
            };
            self.mechanism
                .get_or_create(&labels)
                .set(i64::from(each == mechanism));
        }
    }

    /// Counts a repair of what another program had removed or changed.
    pub(crate) fn record_drift(&self, drift: Drift, repair: Repair) {
        self.counter(drift, repair).inc();
    }

    fn counter(&self, drift: Drift, repair: Repair) -> Counter {
        self.drift.get_or_create_owned(&DriftLabels {
            what: drift.into(),
            outcome: repair.into(),
        })
    }

    /// Shows how the destinations of the installed plan are steered.
    pub(crate) fn set_destinations(&self, plan: &Plan) {
        for state in DestinationState::VARIANTS {
            let count = i64::try_from(state.count(plan)).unwrap_or(i64::MAX);
            let state = state.into();
            self.destinations
                .get_or_create(&DestinationLabels { state })
                .set(count);
        }
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
        metrics.dns.record_answer(ResponseCode::NXDomain);
        metrics.steering.set_mechanism(Mechanism::Nftables);
        metrics
            .steering
            .set_destinations(&plan(&examples::directory(), Freshness::Live));
        let mut text = String::new();
        let registry = metrics.registry();
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
