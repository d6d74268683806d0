//! Short connections.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::SockRef;

use super::endpoint::Endpoint;
use super::observed::percentile;
use super::{Figures, ping};

/// Connects, pings once and closes, repeatedly. Measures the rate, and the median time from the
/// start of a connect to its answer.
pub(super) fn run(endpoint: &Endpoint, at_once: usize, seconds: f64) -> Result<Figures> {
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(seconds);
    let times = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once)
            .map(|_| scope.spawn(|| one_after_another(endpoint, until)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect::<Result<Vec<_>>>()
    })?;
    let mut times = times.concat();
    let elapsed = started.elapsed();
    times.sort_unstable();
    Ok(vec![
        ("per_second", times.len() as f64 / elapsed.as_secs_f64()),
        ("p50_us", percentile(&times, 0.5)),
    ])
}

fn one_after_another(endpoint: &Endpoint, until: Instant) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    while Instant::now() < until {
        let started = Instant::now();
        let stream = ping::open(endpoint)?;
        times.push(started.elapsed());
        drop(stream);
    }
    Ok(times)
}

/// Measures the median time of one `connect()`. The connections end with RST, so that they leave no
/// ports in TIME_WAIT.
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
