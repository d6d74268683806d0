//! Two copies that the edge sends over one link: one on the measured path, and one on a direct
//! connection beside it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::bulk::Bulk;
use super::endpoint::Endpoint;
use super::{Direction, Figures};

/// Time in which the two share out the link, after both have started.
const WARM_UP: Duration = Duration::from_secs(2);

/// The rate on the measured path, and which part of all bytes the copy beside it has.
pub(super) fn run(endpoint: &Endpoint, beside: &Endpoint, seconds: f64) -> Result<Figures> {
    let beside = Bulk::start(beside, [Direction::Down])?;
    let own = Bulk::start(endpoint, [Direction::Down])?;
    beside.settle(|| beside.received().under_way(), WARM_UP)?;
    own.settle(|| own.received().under_way(), Duration::ZERO)?;
    let started = Instant::now();
    let beside_before = bytes(&beside);
    let own_before = bytes(&own);
    sleep(Duration::from_secs_f64(seconds));
    let seconds = started.elapsed().as_secs_f64();
    let of_beside = bytes(&beside) - beside_before;
    let of_own = bytes(&own) - own_before;
    beside.check()?;
    own.check()?;
    ensure!(of_own > 0.0, "nothing moved");
    Ok(vec![
        ("mbit_per_second", of_own / seconds * 8.0 / 1e6),
        ("share_of_direct", of_beside / (of_beside + of_own)),
    ])
}

/// All bytes that have arrived.
fn bytes(bulk: &Bulk) -> f64 {
    bulk.received().bytes() as f64
}
