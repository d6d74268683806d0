//! Clients of one connection.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::{PATIENCE, bytes};

/// What went wrong, and when: `error connect ConnectionRefused`.
pub(super) struct Failure {
    phase: &'static str,
    error: io::Error,
}

impl Failure {
    /// For `map_err`: the failure of a phase.
    pub(super) fn of(phase: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self { phase, error }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "error {} {:?}: {}",
            self.phase,
            self.error.kind(),
            self.error
        )
    }
}

/// What a client prints: its result, or what went wrong.
pub(super) type Outcome = Result<String, Failure>;

/// Connects to `host:port`, asking the host's resolver for a name.
pub(super) fn connect(target: &str) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(target).map_err(Failure::of("connect"))?;
    let patient = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    patient.map_err(Failure::of("connect"))?;
    Ok(stream)
}

/// Sends a text, ends its direction, returns what comes back. Without a text it listens for the
/// first line.
pub(super) fn talk(target: &str, text: &[u8]) -> Outcome {
    let mut stream = connect(target)?;
    let mut answer = String::new();
    if text.is_empty() {
        BufReader::new(stream)
            .read_line(&mut answer)
            .map_err(Failure::of("read"))?;
    } else {
        stream.write_all(text).map_err(Failure::of("write"))?;
        stream
            .shutdown(Shutdown::Write)
            .map_err(Failure::of("shutdown"))?;
        stream
            .read_to_string(&mut answer)
            .map_err(Failure::of("read"))?;
    }
    Ok(answer.trim_end().to_owned())
}

/// Connects and leaves.
pub(super) fn dial(target: &str, patience: Duration) -> Outcome {
    let address = resolve(target)?;
    TcpStream::connect_timeout(&address, patience).map_err(Failure::of("connect"))?;
    Ok("connected".to_owned())
}

/// The first address of `host:port`.
pub(super) fn resolve(target: &str) -> Result<SocketAddr, Failure> {
    let found = target
        .to_socket_addrs()
        .map_err(Failure::of("resolve"))?
        .next();
    found.ok_or_else(|| Failure::of("resolve")(io::Error::other("the name has no address")))
}

/// Sends while it reads. The server may close with our bytes unread, so neither direction need end
/// well.
pub(super) fn overrun(target: &str, count: u64) -> Outcome {
    let mut stream = connect(target)?;
    let mut writer = stream.try_clone().map_err(Failure::of("clone"))?;
    let sender = std::thread::spawn(move || bytes::generate(&mut writer, count).is_ok());
    let said = bytes::consume_to_any_end(&mut stream);
    // Lets the sender go if the server has left its bytes where they are.
    stream.shutdown(Shutdown::Both).ok();
    sender.join().ok();
    Ok(said.to_string())
}

/// Goes on sending after the server has ended its direction.
pub(super) fn out_live(target: &str, count: u64) -> Outcome {
    let mut stream = connect(target)?;
    let mut said = String::new();
    stream
        .read_to_string(&mut said)
        .map_err(Failure::of("read"))?;
    let sent = bytes::generate(&mut stream, count).map_err(Failure::of("write"))?;
    stream
        .shutdown(Shutdown::Write)
        .map_err(Failure::of("shutdown"))?;
    Ok(format!("{} {sent}", said.trim_end()))
}

/// Reads all that the server sends.
pub(super) fn download(target: &str) -> Outcome {
    let mut stream = connect(target)?;
    Ok(bytes::consume(&mut stream)
        .map_err(Failure::of("read"))?
        .to_string())
}

/// Sends bytes, ends its direction, then reads what the server says of them.
pub(super) fn upload(target: &str, count: u64) -> Outcome {
    let mut stream = connect(target)?;
    let sent = bytes::generate(&mut stream, count).map_err(Failure::of("write"))?;
    stream
        .shutdown(Shutdown::Write)
        .map_err(Failure::of("shutdown"))?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .map_err(Failure::of("read"))?;
    Ok(format!("{sent}\n{}", answer.trim_end()))
}

/// One message each way at a time, on an upgraded HTTP connection as `kubectl exec` makes them.
pub(super) fn ping_pong(target: &str, rounds: u32) -> Outcome {
    let mut stream = connect(target)?;
    stream.set_nodelay(true).map_err(Failure::of("connect"))?;
    exchange(
        &mut stream,
        b"POST /exec HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )?;
    for round in 0..rounds {
        exchange(&mut stream, format!("message {round:>2000}").as_bytes())?;
    }
    Ok(format!("{rounds} rounds"))
}

/// Sends a message and reads the same back.
pub(super) fn exchange(stream: &mut TcpStream, message: &[u8]) -> Result<(), Failure> {
    stream.write_all(message).map_err(Failure::of("write"))?;
    let mut answer = vec![0; message.len()];
    stream
        .read_exact(&mut answer)
        .map_err(Failure::of("read"))?;
    if answer == message {
        Ok(())
    } else {
        Err(Failure::of("compare")(io::Error::other(
            "another message came back",
        )))
    }
}
