//! Changes at a steady rate, and how late a watch shows them.

use std::iter::StepBy;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Interval, interval, timeout};

use super::connection::{Connection, Target, Watch};
use super::{Figures, PATIENCE, objects};
use crate::load::observed::{percentile, processor_time};

/// Objects that are changed in turn.
pub(super) const OBJECTS: usize = 100;
/// An API server takes some milliseconds for a change, so one writer would be late.
const WRITERS: u32 = 4;

/// The changes of a run, and when each was sent, by its number.
#[derive(Clone)]
struct Sent {
    first_change: u64,
    times: Arc<Mutex<Vec<Option<Instant>>>>,
}

impl Sent {
    fn new(count: u32) -> Result<Self> {
        Ok(Self {
            first_change: objects::new_change()?,
            times: Arc::new(Mutex::new(vec![None; count as usize])),
        })
    }

    fn record(&self, number: usize) {
        self.times.lock()[number] = Some(Instant::now());
    }

    fn time_of(&self, number: usize) -> Option<Instant> {
        *self.times.lock().get(number)?
    }
}

/// Makes the changes of these numbers, one after another.
async fn change_all(
    mut connection: Connection,
    path: String,
    mut pace: Interval,
    numbers: StepBy<Range<u32>>,
    sent: Sent,
) -> Result<()> {
    for number in numbers {
        pace.tick().await;
        let change = sent.first_change + u64::from(number);
        sent.record(number as usize);
        let object = number as usize % OBJECTS;
        objects::change(&mut connection, &path, object, change).await?;
    }
    Ok(())
}

/// Receives the events of that many changes; returns how late each was.
async fn receive_all(mut watch: Watch, count: usize, sent: &Sent) -> Result<Vec<Duration>> {
    let mut delays = Vec::new();
    while delays.len() < count {
        let event = timeout(PATIENCE, watch.next())
            .await
            .with_context(|| format!("{} of {count} events came", delays.len()))??;
        let arrived = Instant::now();
        let Some(change) = objects::change_of(&event) else {
            continue;
        };
        let Some(number) = change.checked_sub(sent.first_change) else {
            continue;
        };
        let sent = sent
            .time_of(usize::try_from(number)?)
            .with_context(|| format!("an event of a change that was not made: {number}"))?;
        delays.push(arrived - sent);
    }
    Ok(delays)
}

/// The delays of `count` events from the begin of the request that caused each, and the processor
/// time of `pids` meanwhile.
pub(super) async fn run(
    target: &Target,
    writer: &Target,
    path: &str,
    count: u32,
    per_second: u32,
    pids: &[u32],
) -> Result<Figures> {
    let watch = target.connect().await?.watch(path).await?;
    let sent = Sent::new(count)?;
    let mut writers = JoinSet::new();
    for first in 0..WRITERS {
        let connection = writer.connect().await?;
        let pace = interval(Duration::from_secs(1) * WRITERS / per_second);
        let numbers = (first..count).step_by(WRITERS as usize);
        writers.spawn(change_all(
            connection,
            path.to_owned(),
            pace,
            numbers,
            sent.clone(),
        ));
    }
    let before = processor_time(pids)?;
    let mut delays = receive_all(watch, count as usize, &sent).await?;
    let used = processor_time(pids)? - before;
    while let Some(done) = writers.join_next().await {
        done??;
    }
    delays.sort_unstable();
    Ok(vec![
        ("p50_us", percentile(&delays, 0.5)),
        ("p99_us", percentile(&delays, 0.99)),
        ("cpu_per_1000", used.as_secs_f64() / f64::from(count) * 1e3),
    ])
}
