//! DNS queries, one after another from several sockets.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::observed::percentile;
use super::{Figures, PATIENCE};

pub(super) fn run(server: SocketAddr, name: &str, at_once: usize, seconds: f64) -> Result<Figures> {
    let query = query(name);
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(seconds);
    let times = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once)
            .map(|_| scope.spawn(|| ask(server, &query, until)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect::<Result<Vec<_>>>()
    })?;
    let mut times = times.concat();
    let per_second = times.len() as f64 / started.elapsed().as_secs_f64();
    times.sort_unstable();
    Ok(vec![
        ("per_second", per_second),
        ("p99_us", percentile(&times, 0.99)),
    ])
}

fn ask(server: SocketAddr, query: &[u8], until: Instant) -> Result<Vec<Duration>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(server)?;
    let mut times = Vec::new();
    let mut answer = [0; 512];
    while Instant::now() < until {
        let started = Instant::now();
        socket.send(query)?;
        let count = socket.recv(&mut answer)?;
        // Response code 0 and at least one answer.
        ensure!(
            count > 12 && answer[3] & 0x0f == 0 && answer[7] > 0,
            "{server} has no address for it"
        );
        times.push(started.elapsed());
    }
    Ok(times)
}

/// A query for the IPv4 address of a name.
fn query(name: &str) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    query
}
