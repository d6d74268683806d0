//! Clients with many connections. A line of input makes some of them do their next step; the end of
//! the input ends them.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::bytes;
use super::client;
use super::report::{Failure, Phase, Report};

/// Opens connections in which data waits. Reads all of it after a line of input.
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

/// Exchanges one byte on each connection, in rounds with pauses.
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

/// Sends a request, half-closes the connection, and reports each line of the answer.
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

/// Sends a request on each of many connections, and counts those that are answered in time.
pub(super) fn count_answered(
    target: &str,
    count: usize,
    patience: Duration,
) -> Result<Report, Failure> {
    let address = client::resolve(target)?;
    let mut threads = Vec::new();
    for _ in 0..count {
        threads.push(std::thread::spawn(move || ask_once(address, patience)));
    }
    let mut answered = 0;
    for thread in threads {
        if let Ok(Ok(1)) = thread.join() {
            answered += 1;
        }
    }
    Ok(Report::Answered(answered))
}

/// Waits for the first byte of an answer, and leaves it unread.
fn ask_once(address: SocketAddr, patience: Duration) -> io::Result<usize> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(b"request")?;
    stream.peek(&mut [0])
}

fn connect_all(target: &str, count: usize) -> Result<Vec<TcpStream>, Failure> {
    (0..count).map(|_| client::connect(target)).collect()
}

fn announce(report: &Report) -> Result<(), Failure> {
    report.print().map_err(Failure::of(Phase::Report))
}

/// Waits for a line of input. `false`: the input has ended.
fn wait_for_line() -> Result<bool, Failure> {
    let mut line = String::new();
    let count = io::stdin()
        .read_line(&mut line)
        .map_err(Failure::of(Phase::Report))?;
    Ok(count > 0)
}
