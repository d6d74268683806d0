//! Connections that are made to be closed.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::SockRef;

use super::observed::percentile;
use super::way::Way;
use super::{Figures, ping};

/// Connect, ping once, close.
pub(super) fn run(way: &Way, at_once: usize, seconds: f64) -> Result<Figures> {
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(seconds);
    let counts = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(|| one_after_another(way, until))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<Result<Vec<_>>>()
    })?;
    let count: u64 = counts.iter().sum();
    Ok(vec![("per_second", count as f64 / started.elapsed().as_secs_f64())])
}

fn one_after_another(way: &Way, until: Instant) -> Result<u64> {
    let mut count = 0;
    while Instant::now() < until {
        drop(ping::open(way)?);
        count += 1;
    }
    Ok(count)
}

/// The median time of one `connect()`. The connections end by RST, so that they leave no ports behind.
pub(super) fn cost(to: SocketAddr, count: usize) -> Result<Figures> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        let stream = TcpStream::connect(to)?;
        times.push(started.elapsed());
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    times.sort_unstable();
    Ok(vec![("p50_us", percentile(&times, 0.5))])
}
