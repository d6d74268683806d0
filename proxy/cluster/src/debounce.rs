//! When an object in the cluster is written after a change.

use std::time::{Duration, Instant};

/// Changes within this time are written together. Each proxy waits between one and two of these.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// The time at which a change of now is written.
pub(super) fn debounced() -> Instant {
    Instant::now() + DEBOUNCE + DEBOUNCE.mul_f64(rand::random::<f64>())
}

/// Waits for that time; for ever if there is nothing to write.
pub(super) async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
