//! The metric of round-trip times to the proxies.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::tunnels::states::Tunnels;

/// Round-trip times to the proxies, read at each scrape. They carry a label per tunnel slot, and an
/// agent has only a handful.
#[derive(Debug)]
pub(crate) struct RoundTrips(pub(crate) Tunnels);

impl RoundTrips {
    pub(crate) fn register(self, registry: &mut Registry) {
        registry
            .sub_registry_with_prefix("culvert_agent")
            .register_collector(Box::new(self));
    }
}

impl Collector for RoundTrips {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let round_trips = self.0.round_trips();
        if round_trips.is_empty() {
            return Ok(());
        }
        let help = "Round trips of the tunnels that are up, as last measured";
        let mut family = encoder.encode_descriptor(
            "tunnel_round_trip_seconds",
            help,
            None,
            MetricType::Gauge,
        )?;
        for (number, round_trip) in round_trips {
            let labels = [("tunnel", number.to_string())];
            ConstGauge::new(round_trip.as_secs_f64()).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
