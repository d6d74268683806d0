//! Clients of many connections, some of them steered line by line from outside.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::bytes;
use super::client::{self, Failure, Outcome};

/// Connections with data waiting that nobody reads.
pub(super) fn stall(target: &str, count: usize) -> Outcome {
    let mut streams = connect_all(target, count)?;
    for stream in &streams {
        stream.peek(&mut [0]).map_err(Failure::of("peek"))?;
    }
    announce("stalled")?;
    if !wait_for_line()? {
        return Ok("left".to_owned());
    }
    let mut total = 0;
    for stream in &mut streams {
        total += bytes::consume(stream).map_err(Failure::of("read"))?.count();
    }
    Ok(format!("{total} bytes"))
}

/// Connections that are established, idle, and tried whenever a line comes in.
pub(super) fn hold(target: &str, count: usize) -> Outcome {
    let mut streams = connect_all(target, count)?;
    for stream in &mut streams {
        client::exchange(stream, b"first")?;
    }
    announce("held")?;
    while wait_for_line()? {
        let failed: Vec<String> = streams
            .iter_mut()
            .filter_map(|stream| client::exchange(stream, b"still there").err())
            .map(|failure| failure.to_string())
            .collect();
        let verdict = match failed.first() {
            None => "ok".to_owned(),
            Some(first) => format!("{} of {count} failed, the first by {first}", failed.len()),
        };
        announce(&verdict)?;
    }
    Ok("left".to_owned())
}

/// Connections in which hardly anything ever moves.
pub(super) fn drip(target: &str, count: usize, pause: Duration, rounds: usize) -> Outcome {
    let mut streams = connect_all(target, count)?;
    for round in 0..=rounds {
        for stream in &mut streams {
            client::exchange(stream, b".")?;
        }
        if round == 0 {
            announce("held")?;
        }
        if round < rounds {
            std::thread::sleep(pause);
        }
    }
    announce("ok")?;
    wait_for_line()?;
    Ok("left".to_owned())
}

/// A client that has said all it has to say.
pub(super) fn half_close(target: &str, lines: usize) -> Outcome {
    let mut stream = client::connect(target)?;
    stream.write_all(b"all").map_err(Failure::of("write"))?;
    stream
        .shutdown(Shutdown::Write)
        .map_err(Failure::of("shutdown"))?;
    announce("ended its direction")?;
    let mut reader = BufReader::new(stream);
    for _ in 0..lines {
        let mut line = String::new();
        reader.read_line(&mut line).map_err(Failure::of("read"))?;
        announce(line.trim_end())?;
    }
    wait_for_line()?;
    Ok("left".to_owned())
}

/// Connections that are dropped when no answer came for a while.
pub(super) fn give_up(target: &str, count: usize, patience: Duration) -> Outcome {
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
    let answered = tries
        .into_iter()
        .filter_map(|thread| thread.join().ok())
        .filter(|result| matches!(result, Ok(1)))
        .count();
    Ok(format!("{answered} of {count} answered"))
}

fn connect_all(target: &str, count: usize) -> Result<Vec<TcpStream>, Failure> {
    (0..count).map(|_| client::connect(target)).collect()
}

fn announce(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(Failure::of("announce"))
}

fn wait_for_line() -> Result<bool, Failure> {
    let mut line = String::new();
    let count = io::stdin()
        .read_line(&mut line)
        .map_err(Failure::of("input"))?;
    Ok(count > 0)
}
