//! What became of the tunnels of a process.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    /// Nothing listens.
    Unreachable,
    /// All handshake permits were taken.
    Busy,
    /// The proxy closed the connection before it used it.
    Dismissed,
    TimedOut,
    Tls,
    /// The proxy does not take the node.
    Refused,
    /// The tunnel ended within a second.
    ShortLived,
}

/// The counts that all tunnels of a process share.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<Report>);

/// What is reported.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Tunnels that are up now.
    up: usize,
    /// Since the last report, for each tunnel that came up: the milliseconds that it was missing.
    back: Vec<u64>,
    /// Attempts that failed, since the start.
    failed: BTreeMap<Failure, u64>,
}

impl Counts {
    pub(crate) fn up(&self, missing: Duration) {
        let mut report = self.0.lock();
        report.up += 1;
        report
            .back
            .push(u64::try_from(missing.as_millis()).unwrap_or(u64::MAX));
    }

    pub(crate) fn down(&self) {
        self.0.lock().up -= 1;
    }

    pub(crate) fn failed(&self, failure: Failure) {
        *self.0.lock().failed.entry(failure).or_default() += 1;
    }

    /// The present counts.
    pub(crate) fn report(&self) -> Report {
        let mut report = self.0.lock();
        Report {
            up: report.up,
            back: std::mem::take(&mut report.back),
            failed: report.failed.clone(),
        }
    }
}
