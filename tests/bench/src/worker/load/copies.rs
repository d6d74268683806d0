//! Copies of a fixed size that begin together, until the last one has ended. Unlike a rate between two
//! moments, the time has how copies begin, and how much longer the slowest one takes.

use std::io::{Read, Write};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::backend::{FETCH, PIECE, STORE};
use super::endpoint::{Endpoint, Stream};
use super::observed::processor_time;
use super::{Direction, Figures};

const GIB: f64 = (1 << 30) as f64;

/// Copies so many bytes in all, as much on each stream.
pub(super) fn run(
    endpoint: &Endpoint,
    direction: Direction,
    streams: usize,
    bytes: usize,
    pids: &[u32],
) -> Result<Figures> {
    let each = bytes / streams;
    let mut connected = Vec::new();
    for _ in 0..streams {
        connected.push(endpoint.connect()?);
    }
    let cpu_before = processor_time(pids)?;
    let took = copy_all(connected, direction, each)?;
    let cpu = processor_time(pids)?.saturating_sub(cpu_before);
    let last = *took.last().context("no streams")?;
    let gib = (each * streams) as f64 / GIB;
    let per_second = gib / last.as_secs_f64();
    let mut figures = vec![
        ("gib_per_second", per_second),
        ("mbit_per_second", per_second * GIB * 8.0 / 1e6),
        (
            "slowest_to_fastest",
            last.as_secs_f64() / took[0].as_secs_f64(),
        ),
    ];
    if !pids.is_empty() {
        figures.push(("cpu_per_gib", cpu.as_secs_f64() / gib));
    }
    Ok(figures)
}

/// The time of each, the shortest first.
fn copy_all(streams: Vec<Stream>, direction: Direction, each: usize) -> Result<Vec<Duration>> {
    let start = Barrier::new(streams.len());
    let mut took = std::thread::scope(|scope| {
        let mut copies = Vec::new();
        for mut stream in streams {
            let start = &start;
            copies.push(scope.spawn(move || {
                start.wait();
                let started = Instant::now();
                match direction {
                    Direction::Up => store(&mut stream, each)?,
                    Direction::Down => fetch(&mut stream, each)?,
                }
                Ok(started.elapsed())
            }));
        }
        let ended = copies.into_iter().map(|copy| copy.join());
        let ended = ended.map(|copy| copy.expect("a copy does not panic"));
        ended.collect::<Result<Vec<_>>>()
    })?;
    took.sort_unstable();
    Ok(took)
}

fn fetch(stream: &mut Stream, bytes: usize) -> Result<()> {
    ask(stream, FETCH, bytes)?;
    let mut buffer = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "a copy ended {left} bytes early");
        left = left.saturating_sub(count);
    }
    Ok(())
}

fn store(stream: &mut Stream, bytes: usize) -> Result<()> {
    ask(stream, STORE, bytes)?;
    let buffer = vec![7; PIECE];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(PIECE);
        stream.write_all(&buffer[..count])?;
        left -= count;
    }
    // The backend has all of it.
    stream.read_exact(&mut [0])?;
    Ok(())
}

fn ask(stream: &mut Stream, wish: u8, bytes: usize) -> Result<()> {
    let mut request = vec![wish];
    request.extend_from_slice(&(bytes as u64).to_be_bytes());
    stream.write_all(&request)?;
    Ok(())
}
