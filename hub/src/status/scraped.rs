//! Metrics that are computed at each scrape: what is in memory, whether the node would survive a
//! reboot, and until when its certificate is valid.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Pages, PoolLine};

/// Computes its metrics at each scrape.
pub(crate) struct Scraped(pub(crate) Pages);

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let sets = self.0.sets();
        let behind = sets.iter().filter(|set| set.behind).count();
        let help = "Lists in memory, by whether they have all that the API server has sent";
        let mut family = encoder.encode_descriptor("sets", help, None, MetricType::Gauge)?;
        for (state, count) in [("whole", sets.len() - behind), ("behind", behind)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(family.encode_family(&[("state", state)])?)?;
        }
        let help = "Whether the node would start its pods after a reboot without a link now";
        let survives =
            encoder.encode_descriptor("survives_reboot", help, None, MetricType::Gauge)?;
        let missing = self.0.missing_after_reboot();
        ConstGauge::new(i64::from(missing.is_empty())).encode(survives)?;
        let help = "Whether another cluster answers at the address of the API server";
        let other = encoder.encode_descriptor("other_cluster", help, None, MetricType::Gauge)?;
        let is_other = self.0.hub.upstream.cluster.is_other();
        ConstGauge::new(i64::from(is_other)).encode(other)?;
        let help = "Time when the node's certificate for the API server expires, since 1970";
        let expiry = encoder.encode_descriptor(
            "certificate_expiry_timestamp_seconds",
            help,
            None,
            MetricType::Gauge,
        )?;
        if let Some(at) = self.0.hub.upstream.certificate_expiry() {
            ConstGauge::new(at).encode(expiry)?;
        }
        self.encode_pools(&mut encoder)
    }
}

impl Scraped {
    fn encode_pools(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pools = self.0.pools();
        let help = "Open connections to the API server, without upgraded ones";
        let name = "upstream_connections";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for pool in &pools {
            let count = i64::try_from(pool.connections).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(family.encode_family(&pool.labels())?)?;
        }
        let help = "Requests on these connections";
        let name = "upstream_streams";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for pool in &pools {
            let count = i64::try_from(pool.streams).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(family.encode_family(&pool.labels())?)?;
        }
        Ok(())
    }
}

impl PoolLine {
    fn labels(&self) -> [(&'static str, &'static str); 2] {
        [("credential", self.credential), ("requests", self.requests)]
    }
}

impl fmt::Debug for Scraped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraped").finish_non_exhaustive()
    }
}
