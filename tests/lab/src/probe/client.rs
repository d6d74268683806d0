//! Clients with one connection.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::report::{Failure, Phase, Report};
use super::{PATIENCE, bytes};

/// Connects to `host:port`. The host's resolver looks names up.
pub(super) fn connect(target: &str) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(target).map_err(Failure::of(Phase::Connect))?;
    set_timeouts(&stream).map_err(Failure::of(Phase::Connect))?;
    Ok(stream)
}

fn set_timeouts(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// Sends a text, ends its direction, and returns the answer. Without a text it reads the first
/// line.
pub(super) fn talk(target: &str, text: &[u8]) -> Result<Report, Failure> {
    let mut stream = connect(target)?;
    let mut answer = String::new();
    if text.is_empty() {
        BufReader::new(stream)
            .read_line(&mut answer)
            .map_err(Failure::of(Phase::Read))?;
    } else {
        stream.write_all(text).map_err(Failure::of(Phase::Write))?;
        match stream.shutdown(Shutdown::Write) {
            // Reset already: reading says so.
            Err(error) if error.kind() == ErrorKind::NotConnected => {}
            ended => ended.map_err(Failure::of(Phase::End))?,
        }
        stream
            .read_to_string(&mut answer)
            .map_err(Failure::of(Phase::Read))?;
    }
    Ok(Report::Answer(answer.trim_end().to_owned()))
}

/// Connects and closes.
pub(super) fn dial(target: &str, patience: Duration) -> Result<Report, Failure> {
    let address = resolve(target)?;
    TcpStream::connect_timeout(&address, patience).map_err(Failure::of(Phase::Connect))?;
    Ok(Report::Connected)
}

/// The first address of `host:port`.
pub(super) fn resolve(target: &str) -> Result<SocketAddr, Failure> {
    first_address(target).map_err(Failure::of(Phase::Resolve))
}

fn first_address(target: &str) -> io::Result<SocketAddr> {
    let Some(address) = target.to_socket_addrs()?.next() else {
        return Err(io::Error::other("the name has no address"));
    };
    Ok(address)
}

/// Sends while it reads. The server may close while our bytes are unread, so both directions may
/// fail.
pub(super) fn overrun(target: &str, count: u64) -> Result<Report, Failure> {
    let mut stream = connect(target)?;
    let mut writer = stream.try_clone().map_err(Failure::of(Phase::Connect))?;
    let sender = std::thread::spawn(move || bytes::generate(&mut writer, count).is_ok());
    let said = bytes::consume_to_any_end(&mut stream);
    // Ends the sender if the server has not read its bytes.
    stream.shutdown(Shutdown::Both).ok();
    sender.join().ok();
    Ok(Report::Received(said))
}

/// Continues to send after the server has ended its direction.
pub(super) fn out_live(target: &str, count: u64) -> Result<Report, Failure> {
    let mut stream = connect(target)?;
    let mut said = String::new();
    stream
        .read_to_string(&mut said)
        .map_err(Failure::of(Phase::Read))?;
    let sent = bytes::generate(&mut stream, count).map_err(Failure::of(Phase::Write))?;
    stream
        .shutdown(Shutdown::Write)
        .map_err(Failure::of(Phase::End))?;
    Ok(Report::OutLived {
        answer: said.trim_end().to_owned(),
        sent,
    })
}

/// Reads all that the server sends.
pub(super) fn download(target: &str) -> Result<Report, Failure> {
    let mut stream = connect(target)?;
    bytes::consume(&mut stream)
        .map(Report::Received)
        .map_err(Failure::of(Phase::Read))
}

/// Sends bytes, ends its direction, then reads the server's answer.
pub(super) fn upload(target: &str, count: u64) -> Result<Report, Failure> {
    let mut stream = connect(target)?;
    let sent = bytes::generate(&mut stream, count).map_err(Failure::of(Phase::Write))?;
    stream
        .shutdown(Shutdown::Write)
        .map_err(Failure::of(Phase::End))?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .map_err(Failure::of(Phase::Read))?;
    Ok(Report::Uploaded {
        sent,
        answer: answer.trim_end().to_owned(),
    })
}

/// Exchanges one message at a time, on an upgraded HTTP connection as `kubectl exec` makes it.
pub(super) fn ping_pong(target: &str, rounds: u32) -> Result<Report, Failure> {
    let mut stream = connect(target)?;
    stream
        .set_nodelay(true)
        .map_err(Failure::of(Phase::Connect))?;
    exchange(
        &mut stream,
        b"POST /exec HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )?;
    for round in 0..rounds {
        exchange(&mut stream, format!("message {round:>2000}").as_bytes())?;
    }
    Ok(Report::Exchanged(rounds))
}

/// Sends a message and reads the same one back.
pub(super) fn exchange(stream: &mut TcpStream, message: &[u8]) -> Result<(), Failure> {
    stream
        .write_all(message)
        .map_err(Failure::of(Phase::Write))?;
    let mut answer = vec![0; message.len()];
    stream
        .read_exact(&mut answer)
        .map_err(Failure::of(Phase::Read))?;
    if answer == message {
        Ok(())
    } else {
        Err(Failure::of(Phase::Compare)(io::Error::other(
            "another message came back",
        )))
    }
}
