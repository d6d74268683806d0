//! Metrics that are computed at each scrape: nodes by state, refused claims, and the round-trip
//! times of tunnels.

use std::fmt;
use std::time::Duration;

use culvert_proxy_core::directory::Directory;
use culvert_proxy_streams::registry::Registry;
use culvert_tunnel::Budget;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// The quantiles of all tunnels' round-trip times. A label for each node would create thousands of
/// series. `/debug/tunnels` and `culvert why` show each tunnel's.
const QUANTILES: [(&str, f64); 4] = [("0", 0.0), ("0.5", 0.5), ("0.9", 0.9), ("1", 1.0)];

/// Computes its metrics at each scrape.
pub struct Scraped {
    /// The nodes.
    pub directory: Directory,
    /// The tunnels.
    pub registry: Registry,
    /// The memory in which data may wait.
    pub budget: Budget,
}

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_directory(&mut encoder)?;
        let help = "Payload bytes in memory for clients that take nothing at the moment";
        let waiting = encoder.encode_descriptor("waiting_bytes", help, None, MetricType::Gauge)?;
        gauge(self.budget.stalled_bytes()).encode(waiting)?;
        let help = "Other proxies to which this one is connected";
        let peers = encoder.encode_descriptor("peers", help, None, MetricType::Gauge)?;
        let mut connected = self.registry.peers();
        connected.retain(|peer| peer.links > 0);
        gauge(connected.len()).encode(peers)?;
        self.encode_round_trips(&mut encoder)
    }
}

impl Scraped {
    fn encode_directory(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let census = self.directory.census();
        let help = "Nodes of the directory, by whether they have a tunnel";
        let mut nodes = encoder.encode_descriptor("nodes", help, None, MetricType::Gauge)?;
        for (state, count) in [("online", census.online), ("offline", census.offline)] {
            gauge(count).encode(nodes.encode_family(&[("state", state)])?)?;
        }
        let help = "What nodes claim and is not used: addresses that do not route, and parts of \
            Nodes that are left out";
        let mut claims =
            encoder.encode_descriptor("refused_claims", help, None, MetricType::Gauge)?;
        for (reason, count) in self.directory.refusals() {
            gauge(count).encode(claims.encode_family(&[("reason", reason)])?)?;
        }
        let help =
            "Seconds since the cluster's API server confirmed the directory; +Inf if it never did";
        let age =
            encoder.encode_descriptor("directory_age_seconds", help, None, MetricType::Gauge)?;
        if let Some(freshness) = self.directory.freshness() {
            ConstGauge::new(freshness.age_seconds()).encode(age)?;
        }
        Ok(())
    }

    fn encode_round_trips(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut round_trips = Vec::new();
        for registered in self.registry.all() {
            round_trips.extend(registered.tunnel.round_trip());
        }
        if round_trips.is_empty() {
            return Ok(());
        }
        round_trips.sort_unstable();
        let help = "Round trips of the tunnels as last measured: of the nearest, the median, at \
            90 % and the farthest";
        let name = "tunnel_round_trip_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (label, quantile) in QUANTILES {
            let at = at_quantile(&round_trips, quantile);
            ConstGauge::new(at.as_secs_f64())
                .encode(family.encode_family(&[("quantile", label)])?)?;
        }
        Ok(())
    }
}

fn gauge(count: impl TryInto<i64>) -> ConstGauge<i64> {
    ConstGauge::new(count.try_into().unwrap_or(i64::MAX))
}

/// Nearest rank; `sorted` is not empty.
fn at_quantile(sorted: &[Duration], quantile: f64) -> Duration {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank among some thousand tunnels"
    )]
    let rank = ((sorted.len() - 1) as f64 * quantile).round() as usize;
    sorted[rank]
}

impl fmt::Debug for Scraped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraped").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use culvert_api::NodeName;
    use culvert_proxy_core::metrics::Metrics;

    use super::*;

    #[test]
    fn the_quantiles_of_one_tunnel_are_all_that_one() {
        let ms = Duration::from_millis;
        assert!(
            QUANTILES
                .iter()
                .all(|(_, quantile)| at_quantile(&[ms(7)], *quantile) == ms(7))
        );
        let many: Vec<Duration> = (0..=100).map(ms).collect();
        let shown: Vec<Duration> = QUANTILES
            .iter()
            .map(|(_, quantile)| at_quantile(&many, *quantile))
            .collect();
        assert_eq!(shown, [ms(0), ms(50), ms(90), ms(100)]);
    }

    #[test]
    fn what_never_happened_is_zero_and_nodes_are_counted_by_state() {
        let state = tempfile::tempdir().unwrap();
        let node: NodeName = "edge-1".parse().unwrap();
        let directory =
            Directory::for_tests(state.path(), &[node.clone(), "edge-2".parse().unwrap()]);
        let metrics = Metrics::default();
        let registry = Registry::new(directory.clone(), metrics.clone());
        directory.set_presence(&node, culvert_proxy_core::directory::Presence::Online);
        let mut all = prometheus_client::registry::Registry::default();
        metrics
            .transferred
            .start_stream()
            .into_tunnel
            .add(&[b'a'; 7]);
        metrics.register(
            &mut all,
            Scraped {
                directory,
                registry,
                budget: Budget::new(1),
            },
        );
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &all).unwrap();
        for line in [
            "culvert_proxy_nodes{state=\"online\"} 1",
            "culvert_proxy_nodes{state=\"offline\"} 1",
            "culvert_proxy_refused_claims{reason=\"protected\"} 0",
            "culvert_proxy_dials_total{outcome=\"timed_out\"} 0",
            "culvert_proxy_bytes_total{direction=\"to_backend\"} 7",
            "culvert_proxy_bytes_total{direction=\"to_client\"} 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
        assert!(
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .all(|line| line.starts_with("culvert_proxy_"))
        );
    }
}
