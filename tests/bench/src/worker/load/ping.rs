//! Round trips of small messages.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::backend::ECHO;
use super::bulk::Bulk;
use super::endpoint::{Endpoint, Stream};
use super::observed::percentile;
use super::{Direction, Figures};

/// How long a measurement takes.
pub(super) struct Times {
    /// Between the pings of a connection.
    pub(super) pause: Duration,
    /// Until threads run and bulk has filled its buffers.
    pub(super) warm_up: Duration,
    /// Connect only after that.
    pub(super) late: bool,
    /// The measurement itself.
    pub(super) time: Duration,
}

impl Times {
    pub(super) fn of_seconds(pause: f64, warm_up: f64, time: f64) -> Self {
        Self {
            pause: Duration::from_secs_f64(pause),
            warm_up: Duration::from_secs_f64(warm_up),
            late: false,
            time: Duration::from_secs_f64(time),
        }
    }
}

pub(super) fn run(
    endpoint: &Endpoint,
    connections: usize,
    bulk: impl IntoIterator<Item = Direction>,
    limits: &Times,
) -> Result<Figures> {
    let mut streams = Vec::new();
    if !limits.late {
        streams = open_all(endpoint, connections)?;
    }
    let bulk = Bulk::start(endpoint, bulk)?;
    if limits.late {
        sleep(limits.warm_up);
        streams = open_all(endpoint, connections)?;
    }
    let times = ping_all(&mut streams, limits)?;
    bulk.check()?;
    let mut times = times.concat();
    ensure!(
        !times.is_empty(),
        "no ping came back within {:?}",
        limits.time
    );
    times.sort_unstable();
    Ok(vec![
        ("p50_us", percentile(&times, 0.5)),
        ("p99_us", percentile(&times, 0.99)),
    ])
}

/// Pings on all connections at once; returns the times of each.
fn ping_all(streams: &mut [Stream], limits: &Times) -> std::io::Result<Vec<Vec<Duration>>> {
    let counts = AtomicBool::new(false);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter_mut()
            .map(|stream| scope.spawn(|| ping_pong(stream, limits.pause, &counts, &stop)))
            .collect();
        if !limits.late {
            sleep(limits.warm_up);
        }
        counts.store(true, Ordering::Relaxed);
        sleep(limits.time);
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect()
    })
}

fn open_all(endpoint: &Endpoint, connections: usize) -> Result<Vec<Stream>> {
    (0..connections).map(|_| open(endpoint)).collect()
}

/// A connection to an echo that has answered once.
pub(super) fn open(endpoint: &Endpoint) -> Result<Stream> {
    let mut stream = endpoint.connect()?;
    stream.write_all(&[ECHO])?;
    stream.ping()?;
    Ok(stream)
}

fn ping_pong(
    stream: &mut Stream,
    pause: Duration,
    counts: &AtomicBool,
    stop: &AtomicBool,
) -> std::io::Result<Vec<Duration>> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        stream.ping()?;
        if counts.load(Ordering::Relaxed) {
            times.push(started.elapsed());
        }
        sleep(pause);
    }
    Ok(times)
}
