//! Metrics of the kernel programs: their counters, and the error of a refused connect.

use std::fmt;

use culvert_api::installed::Refusal;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Pins, Tables, refusal_of_this_kernel};

/// Registers the metrics.
pub(crate) fn register(registry: &mut Registry, pins: Pins) {
    let refusal = refusal_of_this_kernel().map_or("unknown", Refusal::label);
    registry.register(
        "refusal",
        "Error of a connect that the hooks refuse",
        Info::new([("error", refusal)]),
    );
    registry.register_collector(Box::new(KernelCounts { pins }));
}

/// Reads the kernel's counters at each scrape. The counters survive the process.
struct KernelCounts {
    pins: Pins,
}

impl Collector for KernelCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(counts) = Tables::open(&self.pins).and_then(|tables| tables.counts()) else {
            // Without the eBPF mechanism there are no counters.
            return Ok(());
        };
        let mut family = encoder.encode_descriptor(
            "kernel_connections",
            "What the kernel programs did with connections",
            None,
            ConstCounter::new(0_u64).metric_type(),
        )?;
        for (counter, count) in counts {
            let labels = [("reason", counter.name())];
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
