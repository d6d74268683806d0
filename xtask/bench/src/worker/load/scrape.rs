//! Scrapes: answers of one size, each after silence.

use std::io::{Read, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Figures;
use super::backend::{ANSWER, REQUEST};
use super::endpoint::{Endpoint, Stream};
use super::observed::percentile;

/// Asks `count` times for as many bytes, after a pause each time, on one connection that has been
/// used before or on a new one each time. Measures the median time to the last byte, with that of
/// the connect.
pub(super) fn run(
    endpoint: &Endpoint,
    bytes: usize,
    count: usize,
    pause: Duration,
    is_kept: bool,
) -> Result<Figures> {
    let mut kept = None;
    if is_kept {
        let stream = kept.insert(open(endpoint)?);
        scrape(stream, bytes)?;
    }
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        sleep(pause);
        let started = Instant::now();
        match &mut kept {
            Some(stream) => scrape(stream, bytes)?,
            None => scrape(&mut open(endpoint)?, bytes)?,
        }
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(vec![("p50_us", percentile(&times, 0.5))])
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
