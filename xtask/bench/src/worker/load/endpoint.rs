//! How a client reaches the backend.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use super::PATIENCE;

/// `tcp:ADDRESS`, or `connect:SOCKET:HOST:PORT` for HTTP CONNECT on a Unix socket.
#[derive(Clone, Debug)]
pub(super) enum Endpoint {
    Tcp(SocketAddr),
    Connect { socket: PathBuf, target: String },
}

impl FromStr for Endpoint {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("tcp", address)) => Ok(Self::Tcp(address.parse()?)),
            Some(("connect", rest)) => {
                let (socket, target) = rest
                    .split_once(':')
                    .context("expected connect:SOCKET:HOST:PORT")?;
                Ok(Self::Connect {
                    socket: socket.into(),
                    target: target.to_owned(),
                })
            }
            _ => bail!("{text:?} is not an endpoint"),
        }
    }
}

impl Endpoint {
    pub(super) fn connect(&self) -> Result<Stream> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, PATIENCE)
                    .with_context(|| format!("connect {address}"))?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(Stream::Tcp(stream))
            }
            Self::Connect { socket, target } => {
                let mut stream = UnixStream::connect(socket)
                    .with_context(|| format!("connect {}", socket.display()))?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.write_all(
                    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes(),
                )?;
                let head = read_head(&mut stream)?;
                ensure!(head.starts_with("HTTP/1.1 200"), "CONNECT {target}: {head}");
                Ok(Stream::Unix(stream))
            }
        }
    }
}

/// Reads the response head. The backend sends nothing unasked, so nothing follows the head.
fn read_head(stream: &mut UnixStream) -> Result<String> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut piece)?;
        ensure!(count > 0, "CONNECT: closed without an answer");
        head.extend_from_slice(&piece[..count]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// A connection to the backend.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Another handle, with which another thread can end it.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// Ends both directions, and so the waits of other threads for it.
    pub(super) fn end(&self) {
        let ended = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
        // It may have ended by itself.
        ended.ok();
    }

    /// Sends 100 bytes and reads 100 bytes.
    pub(super) fn ping(&mut self) -> io::Result<()> {
        let mut message = [7; 100];
        self.write_all(&message)?;
        self.read_exact(&mut message)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
