//! Measures the memory of idle connections.

use std::time::Duration;

use anyhow::Result;

use super::endpoint::{Endpoint, Stream};
use super::observed::resident;
use super::{Figures, ping};

/// Enough streams to fill every pool and buffer of the programs before the measurement.
const WARM_UP: usize = 64;
/// Time for the programs to release what they needed to connect.
const REST: Duration = Duration::from_secs(1);

/// Resident memory per stream that was used once and is idle since.
pub(super) fn idle(endpoint: &Endpoint, streams: usize, pids: &[u32]) -> Result<Figures> {
    let warm = (0..WARM_UP)
        .map(|_| ping::open(endpoint))
        .collect::<Result<Vec<_>>>()?;
    std::thread::sleep(REST);
    let before = resident(pids)?;
    let open = (0..streams)
        .map(|_| ping::open(endpoint))
        .collect::<Result<Vec<_>>>()?;
    std::thread::sleep(REST);
    let taken = resident(pids)?.saturating_sub(before);
    warm.iter().chain(&open).for_each(Stream::end);
    Ok(vec![(
        "kb_per_stream",
        taken as f64 / 1000.0 / streams as f64,
    )])
}
