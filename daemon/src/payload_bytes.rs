//! The metric `bytes` of proxy and agent.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::idle::Counts;

/// Exports the result of the function as counters named `bytes`, one per direction. It is called at
/// each scrape.
pub struct PayloadBytes<F>(pub F);

impl<F: Fn() -> Counts + Send + Sync + 'static> Collector for PayloadBytes<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Payload bytes of clients' connections";
        let mut family = encoder.encode_descriptor("bytes", help, None, MetricType::Counter)?;
        for (direction, bytes) in ["to_backend", "to_client"].into_iter().zip((self.0)()) {
            ConstCounter::new(bytes).encode(family.encode_family(&[("direction", direction)])?)?;
        }
        Ok(())
    }
}

impl<F> fmt::Debug for PayloadBytes<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadBytes").finish_non_exhaustive()
    }
}
