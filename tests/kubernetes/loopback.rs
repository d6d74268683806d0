//! What the tests use on this host's loopback: the programs' admin servers, and an echo.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Time for a stream to answer, on two busy cores.
pub(crate) const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

/// The whole response, with any status.
pub(crate) fn http_get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(STREAM_TIMEOUT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Starts an echo that runs as long as the test. Returns its port.
pub(crate) fn echo_backend() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            std::thread::spawn(move || {
                let mut writer = stream.try_clone()?;
                std::io::copy(&mut &stream, &mut writer)
            });
        }
    });
    Ok(port)
}

/// Sends some bytes and waits until they come back.
pub(crate) fn echo(stream: &mut (impl Read + Write)) -> Result<()> {
    stream.write_all(b"still there?")?;
    let mut answer = [0; 12];
    stream
        .read_exact(&mut answer)
        .context("the stream's other end")?;
    ensure!(&answer == b"still there?", "{answer:?}");
    Ok(())
}
