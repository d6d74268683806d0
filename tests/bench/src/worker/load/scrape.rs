//! Scrapes: answers of one size, each after silence or many at once.

use std::io::{Read, Write};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Figures;
use super::backend::{ANSWER, REQUEST};
use super::endpoint::{Endpoint, Stream};
use super::observed::percentile;

/// Which connection a request has.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum Reuse {
    /// One that has been used before, for all.
    Kept,
    /// Each its own.
    New,
}

/// Asks on many connections for as many bytes, each time the answer is there. Counts the answers of
/// all connections and measures the slowest but one of 100.
pub(super) fn at_once(
    endpoint: &Endpoint,
    connections: usize,
    bytes: usize,
    time: Duration,
) -> Result<Figures> {
    let streams = (0..connections).map(|_| open_used(endpoint, bytes));
    let streams = streams.collect::<Result<Vec<_>>>()?;
    let started = Instant::now();
    let times = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(move || scrape_until(started + time, stream, bytes)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect::<std::io::Result<Vec<_>>>()
    })?;
    let elapsed = started.elapsed().as_secs_f64();
    let mut times = times.concat();
    times.sort_unstable();
    Ok(vec![
        ("per_second", times.len() as f64 / elapsed),
        ("p99_us", percentile(&times, 0.99)),
    ])
}

/// Asks all endpoints at once for as many bytes, `count` times after a pause each. Measures the
/// median time to the last byte of an answer, with that of a new connection's connect, the slowest
/// but one of 100, and the time until all have answered.
pub(super) fn run(
    endpoints: &[Endpoint],
    bytes: usize,
    count: usize,
    pause: Duration,
    reuse: Reuse,
) -> Result<Figures> {
    let mut kept: Vec<Option<Stream>> = endpoints.iter().map(|_| None).collect();
    if let Reuse::Kept = reuse {
        scrape_each(endpoints, &mut kept, bytes, reuse)?;
    }
    let mut times = Vec::new();
    let mut until_all = Vec::new();
    for _ in 0..count {
        sleep(pause);
        let started = Instant::now();
        times.extend(scrape_each(endpoints, &mut kept, bytes, reuse)?);
        until_all.push(started.elapsed());
    }
    times.sort_unstable();
    until_all.sort_unstable();
    Ok(vec![
        ("p50_us", percentile(&times, 0.5)),
        ("p99_us", percentile(&times, 0.99)),
        ("all_us", percentile(&until_all, 0.5)),
    ])
}

/// One answer of each endpoint, all at once; returns how long each took.
fn scrape_each(
    endpoints: &[Endpoint],
    kept: &mut [Option<Stream>],
    bytes: usize,
    reuse: Reuse,
) -> Result<Vec<Duration>> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (endpoint, kept) in endpoints.iter().zip(kept) {
            threads.push(scope.spawn(move || {
                let started = Instant::now();
                let mut stream = match kept.take() {
                    Some(stream) => stream,
                    None => open(endpoint)?,
                };
                scrape(&mut stream, bytes)?;
                if let Reuse::Kept = reuse {
                    *kept = Some(stream);
                }
                Ok(started.elapsed())
            }));
        }
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect()
    })
}

/// Asks again and again; returns how long each answer took.
fn scrape_until(end: Instant, mut stream: Stream, bytes: usize) -> std::io::Result<Vec<Duration>> {
    let mut times = Vec::new();
    while Instant::now() < end {
        let asked = Instant::now();
        scrape(&mut stream, bytes)?;
        times.push(asked.elapsed());
    }
    Ok(times)
}

/// A connection that has had one answer.
fn open_used(endpoint: &Endpoint, bytes: usize) -> Result<Stream> {
    let mut stream = open(endpoint)?;
    scrape(&mut stream, bytes)?;
    Ok(stream)
}

fn open(endpoint: &Endpoint) -> Result<Stream> {
    let mut stream = endpoint.connect()?;
    stream.write_all(&[ANSWER])?;
    Ok(stream)
}

fn scrape(stream: &mut Stream, bytes: usize) -> std::io::Result<()> {
    let mut request = [0; REQUEST];
    request[..8].copy_from_slice(&(bytes as u64).to_be_bytes());
    stream.write_all(&request)?;
    let mut buffer = vec![0; bytes];
    stream.read_exact(&mut buffer)
}
