//! The counter of payload bytes that proxy and agent have in common.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::idle::Counts;

/// Shows the counts that the function returns as counters named `bytes`, when metrics are asked for.
pub struct Payload<F>(pub F);

impl<F: Fn() -> Counts + Send + Sync + 'static> Collector for Payload<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Payload bytes of clients' connections so far";
        let mut family = encoder.encode_descriptor("bytes", help, None, MetricType::Counter)?;
        for (direction, bytes) in ["to_backend", "to_client"].into_iter().zip((self.0)()) {
            ConstCounter::new(bytes).encode(family.encode_family(&[("direction", direction)])?)?;
        }
        Ok(())
    }
}

impl<F> fmt::Debug for Payload<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload").finish_non_exhaustive()
    }
}
