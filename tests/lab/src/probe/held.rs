//! Clients with many connections. Some of them act on lines of input.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::bytes;
use super::client;
use super::report::{Failure, Phase, Report};

/// Opens connections in which data waits that the client does not read.
pub(super) fn stall(target: &str, count: usize) -> Result<Report, Failure> {
    let mut streams = connect_all(target, count)?;
    for stream in &streams {
        stream.peek(&mut [0]).map_err(Failure::of(Phase::Read))?;
    }
    announce(&Report::Stalled)?;
    if !wait_for_line()? {
        return Ok(Report::Left);
    }
    let mut total = 0;
    for stream in &mut streams {
        total += bytes::consume(stream)
            .map_err(Failure::of(Phase::Read))?
            .count;
    }
    Ok(Report::Drained(total))
}

/// Opens connections that stay idle. Each line of input makes the client test them.
pub(super) fn hold_open(target: &str, count: usize) -> Result<Report, Failure> {
    let mut streams = connect_all(target, count)?;
    for stream in &mut streams {
        client::exchange(stream, b"first")?;
    }
    announce(&Report::Held)?;
    while wait_for_line()? {
        let mut failed = Vec::new();
        for stream in &mut streams {
            if let Err(failure) = client::exchange(stream, b"still there") {
                failed.push(failure);
            }
        }
        let count = failed.len();
        announce(&match failed.into_iter().next() {
            Some(first) => Report::Broken { count, first },
            None => Report::AllServed,
        })?;
    }
    Ok(Report::Left)
}

/// Opens connections with very little traffic.
pub(super) fn drip(
    target: &str,
    count: usize,
    pause: Duration,
    rounds: usize,
) -> Result<Report, Failure> {
    let mut streams = connect_all(target, count)?;
    for round in 0..=rounds {
        for stream in &mut streams {
            client::exchange(stream, b".")?;
        }
        if round == 0 {
            announce(&Report::Held)?;
        }
        if round < rounds {
            std::thread::sleep(pause);
        }
    }
    announce(&Report::AllServed)?;
    wait_for_line()?;
    Ok(Report::Left)
}

/// Ends its direction, then only reads.
pub(super) fn half_close(target: &str, lines: usize) -> Result<Report, Failure> {
    let mut stream = client::connect(target)?;
    stream
        .write_all(b"all")
        .map_err(Failure::of(Phase::Write))?;
    stream
        .shutdown(Shutdown::Write)
        .map_err(Failure::of(Phase::End))?;
    announce(&Report::HalfClosed)?;
    let mut reader = BufReader::new(stream);
    for _ in 0..lines {
        let mut line = String::new();
        reader
            .read_line(&mut line)
            .map_err(Failure::of(Phase::Read))?;
        announce(&Report::Answer(line.trim_end().to_owned()))?;
    }
    wait_for_line()?;
    Ok(Report::Left)
}

/// Opens connections and closes them when no answer came in time.
pub(super) fn give_up(target: &str, count: usize, patience: Duration) -> Result<Report, Failure> {
    let address = client::resolve(target)?;
    let tries: Vec<_> = (0..count)
        .map(|_| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect_timeout(&address, patience)?;
                stream.set_read_timeout(Some(patience))?;
                stream.write_all(b"anybody there?")?;
                stream.peek(&mut [0])
            })
        })
        .collect();
    let mut answered = 0;
    for thread in tries {
        if let Ok(Ok(1)) = thread.join() {
            answered += 1;
        }
    }
    Ok(Report::Answered(answered))
}

fn connect_all(target: &str, count: usize) -> Result<Vec<TcpStream>, Failure> {
    (0..count).map(|_| client::connect(target)).collect()
}

fn announce(report: &Report) -> Result<(), Failure> {
    report.print().map_err(Failure::of(Phase::Report))
}

fn wait_for_line() -> Result<bool, Failure> {
    let mut line = String::new();
    let count = io::stdin()
        .read_line(&mut line)
        .map_err(Failure::of(Phase::Report))?;
    Ok(count > 0)
}
