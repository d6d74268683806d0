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

/// Time until threads run and bulk has filled its buffers.
const WARM_UP: Duration = Duration::from_millis(500);

pub(super) fn run(
    endpoint: &Endpoint,
    connections: usize,
    bulk: usize,
    seconds: f64,
) -> Result<Figures> {
    let mut streams = (0..connections)
        .map(|_| open(endpoint))
        .collect::<Result<Vec<_>>>()?;
    let directions = [Direction::Up, Direction::Down]
        .into_iter()
        .cycle()
        .take(bulk);
    let bulk = Bulk::start(endpoint, directions)?;
    let (counts, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let times = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter_mut()
            .map(|stream| scope.spawn(|| ping_pong(stream, &counts, &stop)))
            .collect();
        sleep(WARM_UP);
        counts.store(true, Ordering::Relaxed);
        sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect::<std::io::Result<Vec<_>>>()
    })?;
    bulk.check()?;
    let mut times = times.concat();
    ensure!(!times.is_empty(), "no ping came back within {seconds} s");
    times.sort_unstable();
    Ok(vec![
        ("p50_us", percentile(&times, 0.5)),
        ("p99_us", percentile(&times, 0.99)),
    ])
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
    }
    Ok(times)
}
