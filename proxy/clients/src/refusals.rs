//! Connections that are not served: each one counts, and few are logged.

use std::sync::Arc;

use culvert_daemon::LogBudget;
use prometheus_client::metrics::counter::Counter;

/// Counts refused connections of one kind of port. Clones share it.
#[derive(Clone, Debug)]
pub struct Refusals {
    count: Counter,
    /// Limits the log lines that clients can cause.
    lines: Arc<LogBudget>,
}

impl Refusals {
    /// `count` is the metric of the port.
    pub fn new(count: Counter) -> Self {
        Self {
            count,
            lines: Arc::default(),
        }
    }

    /// Counts one. `Some` if it may be logged: with the number of those before it that were not.
    pub(crate) fn count(&self) -> Option<u64> {
        self.count.inc();
        self.lines.spend()
    }
}
