//! How a client reaches the backend.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use super::PATIENCE;
use super::tls::{Client, TlsStream};

/// `tcp:ADDRESS`, `connect:SOCKET:HOST:PORT` for HTTP CONNECT on a Unix socket, or
/// `connect-tls:IP:PORT:AUTHORITY:CERTIFICATE:KEY:HOST:PORT` for the same over TLS, with the files of
/// the server's authority and of the client.
#[derive(Clone)]
pub(super) enum Endpoint {
    Tcp(SocketAddr),
    Connect {
        socket: PathBuf,
        target: String,
    },
    ConnectTls {
        address: SocketAddr,
        client: Client,
        target: String,
    },
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
            Some(("connect-tls", rest)) => {
                let [ip, port, authority, certificate, key, host, target_port] =
                    rest.split(':').collect::<Vec<_>>()[..]
                else {
                    bail!("expected connect-tls:IP:PORT:AUTHORITY:CERTIFICATE:KEY:HOST:PORT")
                };
                Ok(Self::ConnectTls {
                    address: format!("{ip}:{port}").parse()?,
                    client: Client::read(authority.as_ref(), certificate.as_ref(), key.as_ref())?,
                    target: format!("{host}:{target_port}"),
                })
            }
            _ => bail!("{text:?} is not an endpoint"),
        }
    }
}

impl Endpoint {
    pub(super) fn connect(&self) -> Result<Stream> {
        match self {
            Self::Tcp(address) => Ok(Stream::Tcp(dial(address)?)),
            Self::Connect { socket, target } => {
                let mut stream = UnixStream::connect(socket)
                    .with_context(|| format!("connect {}", socket.display()))?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                ask(&mut stream, target)?;
                Ok(Stream::Unix(stream))
            }
            Self::ConnectTls {
                address,
                client,
                target,
            } => {
                let mut stream = client.connect(address.ip(), dial(address)?)?;
                ask(&mut stream, target)?;
                Ok(Stream::Tls(Box::new(stream)))
            }
        }
    }
}

fn dial(address: &SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, PATIENCE)
        .with_context(|| format!("connect {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Asks for a connection to the target.
fn ask(stream: &mut (impl Read + Write), target: &str) -> Result<()> {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let head = read_head(stream)?;
    ensure!(head.starts_with("HTTP/1.1 200"), "CONNECT {target}: {head}");
    Ok(())
}

/// Reads the response head. The backend sends nothing unasked, so nothing follows the head.
fn read_head(stream: &mut impl Read) -> Result<String> {
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
    Tls(Box<TlsStream>),
}

impl Stream {
    /// The connection itself, with which another thread can end it.
    pub(super) fn handle(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tls(stream) => Self::Tcp(stream.sock.try_clone()?),
        })
    }

    /// Ends both directions, and so the waits of other threads for it.
    pub(super) fn end(&self) {
        let ended = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tls(stream) => stream.sock.shutdown(Shutdown::Both),
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
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
